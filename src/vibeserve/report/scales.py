"""From values to places on paper: linear and logarithmic scales, round ticks, and how their numbers read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["linear", "log"]

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_PREFIXED_UNITS = frozenset({"B", "B/s", "FLOP", "FLOPs", "FLOP/s"})


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a plot. `low` and `high` fix its ends; `zero` makes a linear axis start at 0; `whole` keeps ticks whole."""

    label: str = ""
    unit: str = ""
    kind: Kind = "linear"
    zero: bool = True
    low: float | None = None
    high: float | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps [low, high] to [start, end] on paper (end < start for an axis that grows upwards)."""

    kind: Kind
    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        if self.kind == "log":
            value, low, high = math.log10(max(value, self.low * 1e-6)), math.log10(self.low), math.log10(self.high)
        else:
            low, high = self.low, self.high
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def clip(self, value: float) -> float:
        """The place of `value`, moved to the nearest end where it lies outside."""
        return self(min(max(value, self.low), self.high))


def linear_ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """About `count` round numbers from at or below `low` to at or above `high` (1, 2, 2.5 or 5 times a power of 10)."""
    if not high > low:
        pad = abs(low) * 0.5 or 1.0
        low, high = low - pad, high + pad
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in _STEPS if power * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(index * step for index in range(first, last + 1))


def log_ticks(low: float, high: float, count: int = 6) -> tuple[float, ...]:
    """Powers of 10 that lie within [low, high], thinned to about `count`; 1-2-5 steps where the range is short."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    factors = (1.0, 2.0, 5.0) if high / low <= 200 else (1.0,)
    every = max(1, math.ceil((last - first) / count)) if len(factors) == 1 else 1
    ticks = [10.0**power * factor for power in range(first, last + 1, every) for factor in factors]
    return tuple(tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9))


def scale(axis: Axis, values: Iterable[float], start: float, end: float, count: int = 5) -> Scale:
    """The scale of `axis` that shows all of `values` between `start` and `end` on paper.

    A logarithmic axis takes the positive values only; an empty one shows 0 to 1 (1 to 10 where logarithmic).
    """
    finite = [value for value in values if math.isfinite(value) and (axis.kind == "linear" or value > 0)]
    if axis.kind == "log":
        low = axis.low or (min(finite) if finite else 1.0)
        high = axis.high or (max(finite) if finite else 10.0)
        if not high > low * 1.001:
            low, high = low / 3, high * 3
        pad = (high / low) ** 0.04
        low, high = axis.low or low / pad, axis.high or high * pad
        return Scale("log", low, high, start, end, log_ticks(low, high, count))
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if axis.zero:
        low, high = min(low, 0.0), max(high, 0.0)
    low = axis.low if axis.low is not None else low
    high = axis.high if axis.high is not None else high
    ticks = linear_ticks(low, high, count)
    if axis.whole and len(ticks) > 1 and ticks[1] - ticks[0] < 1:
        ticks = tuple(float(tick) for tick in range(math.floor(low), math.ceil(high) + 1))
    low = axis.low if axis.low is not None else ticks[0]
    high = axis.high if axis.high is not None else ticks[-1]
    if not high > low:
        high = low + 1.0
    inside = tuple(tick for tick in ticks if low - 1e-12 <= tick <= high * (1 + 1e-12) + 1e-12)
    return Scale("linear", low, high, start, end, inside)


def axis_unit(unit: str, ticks: Sequence[float]) -> tuple[float, str]:
    """(factor, unit) that makes the ticks of an axis short: seconds become ms or µs, bytes and FLOPs take a prefix."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    if unit == "s":
        return (
            next(((f, u) for f, u in _TIME_UNITS if largest >= f * 0.999), _TIME_UNITS[-1]) if largest else (1.0, "s")
        )
    if unit in _PREFIXED_UNITS:
        return next(((f, p + unit) for f, p in _PREFIXES if largest >= f * 0.999), (1.0, unit))
    return 1.0, unit


def tick_text(value: float) -> str:
    """A tick's number as people write it: 0, 0.25, 1,500, 2M, 1e-7."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6:
        factor, prefix = next((f, p) for f, p in _PREFIXES if size >= f)
        return f"{value / factor:.4g}{prefix}" if size < 1e18 else f"{value:.0e}"
    if size >= 1000:
        return f"{value:,.0f}" if abs(value - round(value)) < 1e-6 * size else f"{value:,.1f}"
    if size >= 1e-4:
        return f"{value:.4g}"
    return f"{value:.0e}".replace("e-0", "e-")


def tick_texts(ticks: Sequence[float], unit: str, kind: Kind) -> tuple[list[str], str]:
    """(labels, unit) of an axis. A long logarithmic axis gives each tick its own prefix, and no unit of its own."""
    wide = unit in _PREFIXED_UNITS or unit == "s"
    crossing = unit == "s" and bool(ticks) and ticks[0] < 1 <= ticks[-1]
    if kind == "log" and ticks and wide and (crossing or ticks[-1] / ticks[0] >= 1e4):
        texts = []
        for tick in ticks:
            factor, own = axis_unit(unit, [tick])
            texts.append(f"{tick / factor:.4g} {own}")
        return texts, ""
    factor, shown = axis_unit(unit, ticks[:1] if kind == "log" else ticks)
    return [tick_text(tick / factor) for tick in ticks], shown
