"""The verdict: how many times better one server is than another, from pairs of windows, with its interval.

The pair is the unit. Both windows of a pair run the same prompts close together in time, so that what the machine does
to both cancels in their ratio; logarithms make "twice as fast" and "half as fast" mirror images. The interval is
Student's t on the mean of the log ratios (W. S. Gosset, "The probable error of a mean", Biometrika 6, 1908).

How many pairs a gain needs depends on the noise, which nobody knows beforehand. So the first pairs tell the spread, the
spread tells how many more are measured (`pairs_needed`), and the interval keeps to the spread of the first: mean and
spread of normal noise are independent, so that the interval is as sure as with a number fixed beforehand, and power no
longer depends on the noise (C. Stein, "A two-sample test for a linear hypothesis whose power is independent of the
variance", Annals of Mathematical Statistics 16, 1945). Looking at the mean itself before going on would not be so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vibeserve.base.errors import InputError
from vibeserve.targets.types import Direction

MIN_PAIRS = 5
CONFIDENCE = 0.95
#: The gain that a comparison is made to find, in this share of cases.
GAIN = 1.05
FOUND = 0.8


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better b is than a: `low` and `high` end the interval; `log_sd` is the spread of one pair in it."""

    ratio: float
    low: float
    high: float
    pairs: int
    log_sd: float

    @property
    def better(self) -> bool:
        """Whether b is better for certain: the whole interval lies above 1."""
        return self.low > 1.0

    @property
    def worse(self) -> bool:
        """Whether b is worse for certain: the whole interval lies below 1."""
        return self.high < 1.0


def log_ratios(values_a: Sequence[float], values_b: Sequence[float], direction: Direction) -> list[float]:
    """One log ratio a pair; above 0 says that b was better. Raises InputError for values that have no ratio."""
    if len(values_a) != len(values_b):
        raise InputError(f"{len(values_a)} values of a and {len(values_b)} of b are no pairs")
    for value in (*values_a, *values_b):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"a ratio needs finite values above 0, not {value!r}", hint="choose another metric")
    sign = 1.0 if direction == "higher" else -1.0
    return [sign * (math.log(b) - math.log(a)) for a, b in zip(values_a, values_b, strict=True)]


def paired_ratio(
    values_a: Sequence[float],
    values_b: Sequence[float],
    direction: Direction = "higher",
    confidence: float = CONFIDENCE,
    first: int | None = None,
) -> Ratio:
    """The ratio of b to a (above 1: better, whatever the direction) over at least 5 pairs, with its interval.

    With m the mean of the n log ratios and s the standard deviation of the `first` k of them (all, where it is left
    out), the interval is exp(m ± t(1 − (1 − confidence) / 2; k − 1) · s / √n). `first` is for a number of pairs that was
    chosen by their spread (`pairs_needed`). Raises InputError for fewer first pairs than 5.
    """
    logs = log_ratios(values_a, values_b, direction)
    count = len(logs)
    told = count if first is None else min(first, count)
    if told < MIN_PAIRS:
        raise InputError(f"{told} pairs are too few for an interval", hint=f"measure at least {MIN_PAIRS}")
    mean, spread = math.fsum(logs) / count, _sd(logs[:told])
    half = t_quantile((1.0 + confidence) / 2.0, told - 1) * spread / math.sqrt(count)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), count, spread)


def pairs_needed(
    log_sd: float, first: int, gain: float = GAIN, found: float = FOUND, confidence: float = CONFIDENCE
) -> int:
    """How many pairs find a true `gain` in a share `found` of comparisons, where the `first` of them spread by `log_sd`.

    ((t((1 + confidence) / 2; first − 1) + t(found; first − 1)) · log_sd / ln(gain))², and never fewer than the first.
    """
    quantiles = t_quantile((1.0 + confidence) / 2.0, first - 1) + t_quantile(found, first - 1)
    return max(first, math.ceil((quantiles * log_sd / math.log(gain)) ** 2))


def screen_rejects(
    values_a: Sequence[float], values_b: Sequence[float], direction: Direction = "higher", margin: float = 0.03
) -> bool:
    """Whether a few short pairs already show that b is no better: every one of at least 2 is worse by `margin`.

    A screen may only reject. It never keeps, and its pairs never count in a verdict.
    """
    logs = log_ratios(values_a, values_b, direction)
    return len(logs) >= 2 and all(value < math.log1p(-margin) for value in logs)


def t_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t; scipy is imported late, since it is slow to load."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def power(gain: float, log_sd: float, pairs: int, confidence: float = CONFIDENCE) -> float:
    """How often a true `gain` (1.05: 5 %) is found with normal noise of `log_sd` a pair: for choosing a budget.

    Uses the noncentral t distribution: P(T(n − 1, ln(gain)·√n / log_sd) > t quantile).
    """
    from scipy.special import nctdtr

    if log_sd <= 0:
        return 1.0 if gain > 1 else 0.0
    shift = math.log(gain) * math.sqrt(pairs) / log_sd
    found = 1.0 - float(nctdtr(pairs - 1, shift, t_quantile((1.0 + confidence) / 2.0, pairs - 1)))
    return found if math.isfinite(found) else 1.0


def findable_gain(low: float, high: float, first: int, found: float = FOUND, confidence: float = CONFIDENCE) -> float:
    """The least true gain (1.12: 12 %) that is found in a share `found` of comparisons, in the noise of this interval.

    With k the `first` pairs, whose spread the interval rests on, half its logarithm is t((1 + confidence) / 2; k − 1) · s / √n;
    a gain of t(found; k − 1) · s / √n more than that leaves 1 below the interval in that share.
    """
    half = (math.log(high) - math.log(low)) / 2.0
    return math.exp(half * (1.0 + t_quantile(found, first - 1) / t_quantile((1.0 + confidence) / 2.0, first - 1)))


def unseen(low: float, high: float, first: int) -> str:
    """What a comparison that found nothing says of small gains; `first` as in `findable_gain`."""
    return f"in this noise gains under {findable_gain(low, high, first):.3g}× may stay unseen"


def _sd(values: Sequence[float]) -> float:
    """The sample standard deviation (n − 1), summed exactly."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
