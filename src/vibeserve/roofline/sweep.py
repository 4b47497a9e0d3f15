"""One size swept over a range: intensity, bound and time bounds at each point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.roofline.analysis import Analysis, VariantAnalysis
from vibeserve.roofline.bounds import bounds

_LONGEST_STEP = 4096


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One variant at one size. Times in seconds."""

    size: int
    flops: float
    bytes: float
    intensity: float
    bound: str
    t_lower_s: float
    t_upper_s: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """A dimension's range, and the points of each variant."""

    dim: str
    sizes: tuple[int, ...]
    points: dict[str, tuple[SweepPoint, ...]]

    def document(self) -> dict[str, Any]:
        """What JSON has of it."""
        return {"dim": self.dim, "sizes": list(self.sizes), "variants": dict(self.points)}


def parse_sweep(text: str) -> tuple[str, int, int, int]:
    """`R=128:4096[:n]` as (dimension, low, high, n); n is 0 where it is not given. Raises InputError."""
    dim, equals, span = text.partition("=")
    parts = span.split(":")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if not equals or len(numbers) not in (2, 3) or not 0 < numbers[0] <= numbers[1] or (numbers[2:] and numbers[2] < 2):
        raise InputError(f"cannot read the sweep {text!r}", hint="write --sweep R=128:4096 or R=128:4096:50")
    return dim.strip(), numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else 0


def sweep(analysis: Analysis, dim: str, low: int, high: int, n: int = 0) -> Sweep:
    """Sweep `dim` over the sizes from `low` to `high` that divide.

    With `n`, about evenly spaced on a logarithmic scale; without, doublings from `low`, and `high`. Raises InputError
    for an unknown dimension and where no size divides.
    """
    op = analysis.operation
    op.sizes({dim: low} if dim in op.dims or dim in op.given else {dim: 1})
    found: dict[int, dict[str, SweepPoint]] = {}
    for start in _grid(low, high, n):
        if start not in found and (point := _first_valid(analysis, dim, start, high)) is not None:
            found.setdefault(point[0], point[1])
    if not found:
        raise InputError(f"no size of {dim} from {low} to {high} divides over the cores", hint="widen the range")
    points = {one.name: tuple(at[one.name] for at in found.values()) for one in analysis.variants}
    return Sweep(dim, tuple(found), points)


def _grid(low: int, high: int, n: int) -> Iterator[int]:
    if not n:
        size = low
        while size < high:
            yield size
            size *= 2
        yield high
    elif n >= high - low + 1:
        yield from range(low, high + 1)
    else:
        for place in range(n):
            yield round(low * (high / low) ** (place / (n - 1)))


def _first_valid(analysis: Analysis, dim: str, start: int, high: int) -> tuple[int, dict[str, SweepPoint]] | None:
    """The first size from `start` on, up to `high`, that all splits and derived sizes divide, counted."""
    for size in range(start, min(high, start + _LONGEST_STEP) + 1):
        try:
            sizes = analysis.operation.sizes({**analysis.changes, dim: size})
            return size, {variant.name: _point(variant, sizes, size) for variant in analysis.variants}
        except InputError:
            continue
    return None


def _point(variant: VariantAnalysis, sizes: dict[str, int], size: int) -> SweepPoint:
    found = bounds(variant.count.numbers(sizes), variant.over)
    compute, memory = float(found.t_compute), float(found.t_memory)
    return SweepPoint(
        size,
        float(found.work),
        float(found.bytes),
        float(found.intensity),
        found.bound,
        max(compute, memory),
        compute + memory,
    )
