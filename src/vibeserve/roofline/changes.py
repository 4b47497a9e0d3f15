"""What would have to change for the other limit to bind: sizes, bytes, bandwidth, peak, each alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from vibeserve.base.errors import InputError
from vibeserve.base.units import si
from vibeserve.roofline.bounds import Bounds, Roof, bounds
from vibeserve.roofline.counting import Count
from vibeserve.roofline.crossings import Crossing
from vibeserve.roofline.numbers import flop_rate, number, short
from vibeserve.roofline.poly import Number


@dataclass(frozen=True, slots=True)
class Change:
    """One change that alone would put the kernel on the ridge: what, from which value, to which."""

    what: str
    now: float
    needed: float
    unit: str
    text: str


def changes(
    count: Count,
    over: Roof,
    found: Bounds,
    sizes: Mapping[str, int],
    crossings: tuple[Crossing, ...],
    given: Mapping[str, Number],
) -> list[Change]:
    """What would make a memory-bound kernel compute-bound, or how far a compute-bound one is from the ridge."""
    memory = found.bound == "memory"
    out = [_size(count, over, crossing, sizes, given, memory) for crossing in crossings]
    least = found.bytes if not memory else Fraction(found.work) / found.ridge
    if memory:
        share = 1 - Fraction(least) / Fraction(found.bytes)
        text = f"move at most {number(round(least))} bytes instead of {number(found.bytes)}: {float(share):.1%} less"
        out.append(Change("bytes", float(found.bytes), float(least), "bytes", text))
        out += _kept_on_chip(count, found, sizes)
    else:
        most = Fraction(found.work) / found.ridge
        text = (
            f"it could move up to {number(int(most))} bytes and still be compute-bound; it moves {number(found.bytes)}"
        )
        out.append(Change("bytes", float(found.bytes), float(most), "bytes", text))
    width = found.peak / found.intensity
    word = "needs" if memory else "would do with"
    text = f"{word} {short(width)} bytes/s of bandwidth; it has {short(found.bandwidth)}"
    out.append(Change("bandwidth", float(found.bandwidth), float(width), "bytes/s", text))
    reach = found.intensity * found.bandwidth
    text = f"memory feeds {flop_rate(reach)} at this intensity: " + (
        f"{float(reach / found.peak):.1%} of the peak" if memory else "above the peak"
    )
    out.append(Change("peak", float(found.peak), float(reach), "FLOP/s", text))
    return [change for change in out if change is not None]


def _size(
    count: Count,
    over: Roof,
    crossing: Crossing,
    sizes: Mapping[str, int],
    given: Mapping[str, Number],
    memory: bool,
) -> Change | None:
    """The nearest whole size on the other side that the cores divide, checked by counting it."""
    dim, parts, now = crossing.dim, count.split.get(crossing.dim, 1), sizes[crossing.dim]
    up = crossing.value > now
    if (crossing.above == "compute") != (up if memory else not up):
        return None
    steps = -(-Fraction(crossing.value) // parts)
    size = int(steps) * parts
    try:
        there = bounds(count.numbers(count.operation.sizes({**given, dim: size})), over)
    except InputError:
        return None
    if there.bound != "compute":
        return None
    local = f" ({size // parts} a core)" if parts > 1 else ""
    if memory:
        word = "at least" if up else "at most"
        text = f"{dim} of {word} {number(size)}{local} instead of {number(now)}"
    else:
        text = f"{dim} could be as {'small' if not up else 'large'} as {number(size)}{local} and it stays compute-bound; it is {number(now)}"
    return Change(f"size {dim}", float(now), float(size), "", text)


def _kept_on_chip(count: Count, found: Bounds, sizes: Mapping[str, int]) -> list[Change]:
    """For each intermediate tensor that crosses: what keeping it on chip alone would give."""
    made = {stage.stage.subscripts.output.tensor for stage in count.stages}
    read = {operand.tensor for stage in count.stages for operand in stage.stage.subscripts.inputs}
    names = count.environment(sizes)
    out = []
    for item in count.counted:
        if item.tensor.name not in made & read or item.on_chip:
            continue
        saved = item.bytes.evaluate(names) * count.cores
        left = Fraction(found.bytes) - saved
        intensity = Fraction(found.work) / left
        verdict = "compute-bound" if intensity >= found.ridge else "still memory-bound"
        text = f"{item.tensor.name} kept on chip saves {si(float(saved), 'B')}: I = {number(intensity)}, {verdict}"
        out.append(Change(f"keep {item.tensor.name}", float(found.bytes), float(left), "bytes", text))
    return out
