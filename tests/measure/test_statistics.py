"""The interval and what it decides."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vibeserve.base.errors import InputError
from vibeserve.measure.statistics import (
    findable_gain,
    log_ratios,
    paired_ratio,
    pairs_needed,
    power,
    screen_rejects,
    t_quantile,
    unseen,
)

VALUES = st.floats(0.01, 1e6)
PAIRS = st.lists(st.tuples(VALUES, VALUES), min_size=5, max_size=12)


@given(PAIRS)
def test_it_is_the_t_interval_of_scipy(pairs):
    a, b = zip(*pairs, strict=True)
    ratio = paired_ratio(a, b)
    logs = [math.log(y / x) for x, y in pairs]
    assert ratio.ratio == pytest.approx(math.exp(sum(logs) / len(logs)))
    if ratio.log_sd > 1e-6:
        low, high = stats.t.interval(0.95, len(logs) - 1, loc=sum(logs) / len(logs), scale=stats.sem(logs))
        assert ratio.low == pytest.approx(math.exp(low), rel=1e-6)
        assert ratio.high == pytest.approx(math.exp(high), rel=1e-6)


@given(PAIRS)
def test_swapping_the_servers_and_turning_the_direction_are_mirror_images(pairs):
    a, b = zip(*pairs, strict=True)
    there, back, lower = paired_ratio(a, b), paired_ratio(b, a), paired_ratio(a, b, "lower")
    for other in (back, lower):
        assert other.ratio == pytest.approx(1 / there.ratio)
        assert other.low == pytest.approx(1 / there.high)
    assert there.low <= there.ratio * (1 + 1e-12)
    assert there.ratio <= there.high * (1 + 1e-12)
    assert not (there.better and there.worse)


@given(PAIRS, st.floats(0.01, 100), st.randoms(use_true_random=False))
def test_units_and_the_order_of_pairs_do_not_matter(pairs, unit, chance):
    ratio = paired_ratio(*zip(*pairs, strict=True))
    shuffled = list(pairs)
    chance.shuffle(shuffled)
    scaled = paired_ratio(*zip(*[(x * unit, y * unit) for x, y in shuffled], strict=True))
    for name in ("ratio", "low", "high"):
        assert getattr(scaled, name) == pytest.approx(getattr(ratio, name), rel=1e-6)


def test_a_constant_gain_is_certain_and_equals_are_not_better():
    gain = paired_ratio([1, 2, 3, 4, 5], [2, 4, 6, 8, 10])
    assert (gain.ratio, gain.low, gain.high) == pytest.approx((2, 2, 2))
    assert gain.better
    same = paired_ratio([1.0] * 5, [1.0] * 5)
    assert not same.better
    assert not same.worse


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_values_without_a_ratio_are_refused(bad):
    with pytest.raises(InputError, match="finite values above 0"):
        paired_ratio([1.0] * 5, [1.0] * 4 + [bad])


def test_too_few_or_unpaired():
    with pytest.raises(InputError, match="4 pairs are too few"):
        paired_ratio([1.0] * 4, [1.0] * 4)
    with pytest.raises(InputError, match="no pairs"):
        log_ratios([1.0], [1.0, 2.0], "higher")


@given(st.floats(0.5001, 0.9999), st.integers(1, 60))
def test_t_quantile(probability, degrees):
    assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-6)


@given(PAIRS)
def test_a_screen_never_rejects_what_is_better_once(pairs):
    a, b = zip(*pairs, strict=True)
    if any(y >= x for x, y in pairs):
        assert not screen_rejects(a, b)


def test_a_screen_rejects_what_is_clearly_slower_and_needs_two_pairs():
    assert screen_rejects([100, 100], [90, 95])
    assert not screen_rejects([100, 100], [90, 99])
    assert not screen_rejects([100], [10])
    assert screen_rejects([0.1, 0.1], [0.2, 0.2], "lower")


@pytest.mark.parametrize(("log_sd", "pairs"), [(0.02, 5), (0.03, 6), (0.05, 8)])
def test_power_is_what_simulation_finds(log_sd, pairs):
    chance = random.Random(3)
    hits = 0
    for _ in range(1500):
        b = [1.05 * math.exp(chance.gauss(0, log_sd)) for _ in range(pairs)]
        hits += paired_ratio([1.0] * pairs, b).better
    assert hits / 1500 == pytest.approx(power(1.05, log_sd, pairs), abs=0.04)


@pytest.mark.parametrize(("log_sd", "pairs"), [(0.02, 5), (0.04, 8), (0.1, 12)])
def test_the_gain_that_noise_hides_is_the_one_that_power_finds_in_four_of_five(log_sd, pairs):
    half = t_quantile(0.975, pairs - 1) * log_sd / math.sqrt(pairs)
    gain = findable_gain(math.exp(0.3 - half), math.exp(0.3 + half), pairs)
    assert power(gain, log_sd, pairs) == pytest.approx(0.8, abs=0.03)
    assert findable_gain(math.exp(-half), math.exp(half), pairs, found=0.5) == pytest.approx(math.exp(half))
    assert findable_gain(math.exp(-half), math.exp(half), pairs, confidence=0.5) > gain


def test_the_gain_that_noise_hides_by_scipys_t():
    half, degrees = math.log(1.1), 4
    share = stats.t.ppf(0.8, degrees) / stats.t.ppf(0.975, degrees)
    assert findable_gain(1 / 1.1, 1.1, degrees + 1) == pytest.approx(math.exp(half * (1 + share)), rel=1e-6)


def test_more_pairs_after_the_first_keep_to_the_spread_of_the_first():
    first = [1.0, 1.1, 0.9, 1.05, 1.0]
    whole = paired_ratio([1.0] * 7, [*first, 2.0, 0.5], first=5)
    logs = [math.log(value) for value in [*first, 2.0, 0.5]]
    half = stats.t.ppf(0.975, 4) * statistics.stdev(logs[:5]) / math.sqrt(7)
    assert whole.pairs == 7
    assert whole.log_sd == pytest.approx(statistics.stdev(logs[:5]))
    assert math.log(whole.high) == pytest.approx(statistics.fmean(logs) + half)
    assert paired_ratio([1.0] * 5, first, first=8) == paired_ratio([1.0] * 5, first)
    with pytest.raises(InputError, match="4 pairs are too few"):
        paired_ratio([1.0] * 7, [*first, 2.0, 0.5], first=4)


@pytest.mark.parametrize(("log_sd", "pairs"), [(0.0, 8), (0.04, 8), (0.05, 12), (0.068, 21), (0.066, 20), (0.2, 179)])
def test_pairs_needed(log_sd, pairs):
    quantiles = stats.t.ppf(0.975, 7) + stats.t.ppf(0.8, 7)
    assert pairs_needed(log_sd, 8) == pairs == max(8, math.ceil((quantiles * log_sd / math.log(1.05)) ** 2))


@pytest.mark.parametrize("log_sd", [0.01, 0.05, 0.1])
@pytest.mark.parametrize(("gain", "low", "high"), [(1.0, 0.0, 0.05), (1.05, 0.78, 1.0)])
def test_with_the_pairs_that_noise_asks_for_a_gain_is_found_whatever_the_noise(log_sd, gain, low, high):
    chance, better = random.Random(11), 0
    for _ in range(1500):
        b = [gain * math.exp(chance.gauss(0, log_sd)) for _ in range(8)]
        wanted = pairs_needed(paired_ratio([1.0] * 8, b).log_sd, 8)
        b += [gain * math.exp(chance.gauss(0, log_sd)) for _ in range(wanted - 8)]
        better += paired_ratio([1.0] * wanted, b, first=8).better
    assert low <= better / 1500 <= high


def test_what_hides_in_the_noise_is_said():
    assert unseen(1.0, 1.0, 5) == "in this noise gains under 1× may stay unseen"
    assert unseen(0.95, 1.05, 8) == "in this noise gains under 1.07× may stay unseen"


def test_power_at_its_ends():
    assert power(1.05, 0.0, 5) == 1.0
    assert power(1.0, 0.02, 5) == pytest.approx(0.025, abs=1e-3)
    assert power(2.0, 0.001, 5) == pytest.approx(1.0)
