"""Where acceptance draws its lines: the figures beside a verdict, and when a search may give a candidate up."""

from __future__ import annotations

import pytest

from vibeserve.measure.statistics import paired_ratio, power, screen_rejects
from vibeserve.search import verdict
from vibeserve.search.verdict import Comparison, compare, futile, in_words


def test_values_beside_the_ratio_are_geometric_means() -> None:
    found = compare([2.0, 8.0, 4.0], [1.0, 1.0, 8.0], "higher")
    assert (found.value, found.value_against, found.pairs) == (pytest.approx(4.0), pytest.approx(2.0), 3)
    assert found.ratio == pytest.approx(2.0)
    assert found.ci95 is None


@pytest.mark.parametrize(
    ("ci95", "better", "worse"),
    [((1.0, 1.2), False, False), ((1.001, 1.2), True, False), ((0.8, 1.0), False, False), ((0.8, 0.999), False, True)],
)
def test_an_interval_that_holds_one_decides_nothing(ci95: tuple[float, float], better: bool, worse: bool) -> None:
    found = Comparison(1.0, ci95, 5, 1.0, 1.0)
    assert (found.better, found.worse) == (better, worse)


def test_giving_up_takes_three_pairs_that_are_all_worse() -> None:
    assert futile([1.0] * 3, [2.0] * 3, "higher")
    assert not futile([1.0] * 2, [2.0] * 2, "higher")
    assert not futile([1.0, 1.0, 2.0], [2.0, 2.0, 2.0], "higher")


def test_a_screen_rejects_only_what_is_far_behind() -> None:
    assert 0.5 <= verdict.SCREEN_REJECTS_BELOW <= 0.8


def test_in_words() -> None:
    assert in_words(Comparison(3.2, None, 1, 1.0, 1.0)) == "3.2× (1 pair, no interval)"
    assert in_words(Comparison(3.2, (3.1, 3.3), 5, 1.0, 1.0)) == "3.2× (95 % interval 3.1 to 3.3, 5 pairs)"


def test_worse_for_certain() -> None:
    assert paired_ratio([2.0, 2.1, 2.0, 2.1, 2.0], [1.0] * 5).worse is True
    assert paired_ratio([1.0, 1.1, 1.0, 1.1, 1.0], [1.0] * 5).worse is False


def test_a_screen_at_its_margin_does_not_reject() -> None:
    assert not screen_rejects([1.0, 1.0], [0.5, 0.5], margin=0.5)
    assert screen_rejects([1.0, 1.0], [0.49, 0.49], margin=0.5)


@pytest.mark.parametrize(("gain", "found"), [(1.0, 0.0), (0.9, 0.0), (1.01, 1.0)])
def test_without_noise_every_gain_is_found_and_nothing_else(gain: float, found: float) -> None:
    assert power(gain, 0.0, 5) == found


def test_a_gain_far_beyond_the_noise_is_found() -> None:
    assert power(2.0, 1e-300, 5) == 1.0
