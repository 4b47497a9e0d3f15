"""Acceptance from recorded values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.base.errors import InputError
from vibeserve.search.verdict import compare, futile, improvement, in_words

values = st.lists(st.floats(0.1, 1e4), min_size=5, max_size=12)


@given(values)
def test_equals_are_never_better(numbers: list[float]) -> None:
    comparison = compare(numbers, numbers, "higher")
    assert comparison.ratio == 1.0
    assert not comparison.better
    assert not comparison.worse


@given(values, st.floats(1.01, 50))
def test_a_constant_factor_is_found_exactly(numbers: list[float], factor: float) -> None:
    more = [value * factor for value in numbers]
    comparison = compare(more, numbers, "higher")
    assert comparison.ratio == pytest.approx(factor)
    assert comparison.better
    assert compare(more, numbers, "lower").worse
    assert comparison.value / comparison.value_against == pytest.approx(comparison.ratio)


@given(values, values)
def test_the_other_direction_is_the_inverse(one: list[float], other: list[float]) -> None:
    count = min(len(one), len(other))
    higher = compare(one[:count], other[:count], "higher")
    lower = compare(one[:count], other[:count], "lower")
    assert higher.ratio == pytest.approx(1 / lower.ratio)
    assert higher.ci95 is not None
    assert lower.ci95 is not None
    assert higher.ci95[0] == pytest.approx(1 / lower.ci95[1])


def test_few_pairs_have_no_interval_and_decide_nothing() -> None:
    comparison = compare([9.0] * 4, [1.0] * 4, "higher")
    assert comparison.ci95 is None
    assert not comparison.better
    assert "no interval" in in_words(comparison)


@pytest.mark.parametrize(("mine", "theirs"), [([1.0], [1.0, 2.0]), ([0.0] * 5, [1.0] * 5), ([-1.0] * 5, [1.0] * 5)])
def test_what_has_no_ratio(mine: list[float], theirs: list[float]) -> None:
    with pytest.raises(InputError):
        compare(mine, theirs, "higher")


def test_only_what_is_worse_in_every_pair_is_given_up() -> None:
    assert futile([0.5, 0.6, 0.7], [1.0, 1.0, 1.0], "higher")
    assert not futile([0.5, 0.6], [1.0, 1.0], "higher")
    assert not futile([0.5, 0.6, 1.1], [1.0, 1.0, 1.0], "higher")
    assert futile([2.0, 2.0, 2.0], [1.0, 1.0, 1.0], "lower")


def test_improvement() -> None:
    assert improvement(20, 10, "higher") == 2
    assert improvement(20, 10, "lower") == 0.5
