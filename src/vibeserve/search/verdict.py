"""Acceptance: what the paired values say, and whether a candidate is kept. Pure functions of recorded numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vibeserve.measure.statistics import MIN_PAIRS, log_ratios, paired_ratio, screen_rejects
from vibeserve.targets.types import Direction

#: A screen is one unpaired window: it may only reject, and only what is far from good enough.
SCREEN_REJECTS_BELOW = 0.7
#: Pairs after which a comparison may be given up because all of them are worse. Giving up never accepts.
FUTILE_AFTER = 3


@dataclass(frozen=True)
class Comparison:
    """Improvement over the other side: above 1 is better, whatever the metric's direction."""

    ratio: float
    ci95: tuple[float, float] | None
    pairs: int
    value: float
    value_against: float

    @property
    def better(self) -> bool:
        """The whole interval is above 1."""
        return self.ci95 is not None and self.ci95[0] > 1.0

    @property
    def worse(self) -> bool:
        """The whole interval is below 1."""
        return self.ci95 is not None and self.ci95[1] < 1.0


def compare(values: Sequence[float], against: Sequence[float], direction: Direction) -> Comparison:
    """Pair i is (values[i], against[i]). Values are geometric means, so that their quotient is the ratio.

    The interval is Student's t on the paired log ratios; None for fewer pairs than it needs. Raises InputError where a
    value is not above 0, or the sides differ in number.
    """
    logs = log_ratios(against, values, direction)
    ratio, ci95 = math.exp(math.fsum(logs) / len(logs)), None
    if len(logs) >= MIN_PAIRS:
        found = paired_ratio(against, values, direction)
        ratio, ci95 = found.ratio, (found.low, found.high)
    return Comparison(ratio, ci95, len(logs), _geometric_mean(values), _geometric_mean(against))


def futile(values: Sequence[float], against: Sequence[float], direction: Direction) -> bool:
    """Whether the pairs so far show that more would not make the candidate better: every one of them is worse."""
    return len(values) >= FUTILE_AFTER and screen_rejects(against, values, direction)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def improvement(value: float, against: float, direction: Direction) -> float:
    """How many times better `value` is than `against`."""
    return value / against if direction == "higher" else against / value


def in_words(comparison: Comparison) -> str:
    """'3.2× (3.1 to 3.3, 5 pairs)'."""
    if comparison.ci95 is None:
        return f"{comparison.ratio:.3g}× ({comparison.pairs} pair, no interval)"
    low, high = comparison.ci95
    return f"{comparison.ratio:.3g}× (95 % interval {low:.3g} to {high:.3g}, {comparison.pairs} pairs)"
