"""Measured beside counted: read what a profiler or a simulator reports, and say what could explain a difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.files import parse_json
from vibeserve.hardware import bytes_of
from vibeserve.roofline.analysis import Analysis, VariantAnalysis
from vibeserve.roofline.explain import Fit, Term, describe, in_powers, search
from vibeserve.roofline.poly import Number

_SHOWN = 8
_TILE = 128

# A profiler's and a simulator's names for what is counted here; the first word of each is ours in reports.
_METRICS: dict[str, str] = {
    "hardware_flops": "hardware_flops",
    "flops": "flops",
    "transpose_flops": "transpose_flops",
    "mm_arithmetic_intensity": "intensity",
    "intensity": "intensity",
    "hbm_read_bytes": "read_bytes",
    "hbm_write_bytes": "write_bytes",
    "hbm_bytes": "bytes",
    "bytes": "bytes",
    "total_time": "time",
    "latency_s": "time",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """A measured figure and one unit of its last printed digit."""

    value: Fraction
    unit: Fraction


@dataclass(frozen=True, slots=True)
class Explanation:
    """What could make the difference: in words, as a formula, and its size (bytes or FLOPs)."""

    what: str
    formula: str
    value: float
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of one variant. `excess` is the range of the difference that the printed digits leave open."""

    variant: str
    metric: str
    counted: float
    measured: float
    relative_difference: float
    agrees: bool
    excess: tuple[float, float] | None
    excess_unit: str
    explanations: tuple[Explanation, ...]
    fits: int
    note: str

    def document(self) -> dict[str, Any]:
        """What JSON has of it."""
        return {
            "variant": self.variant,
            "metric": self.metric,
            "counted": self.counted,
            "measured": self.measured,
            "relative_difference": self.relative_difference,
            "agrees": self.agrees,
            "excess": list(self.excess) if self.excess else None,
            "excess_unit": self.excess_unit,
            "fits": self.fits,
            "note": self.note,
            "explanations": [
                {"what": one.what, "formula": one.formula, "value": one.value, "also": list(one.also)}
                for one in self.explanations
            ],
        } | ({} if self.excess else {"excess_reason": "counted and measured agree, or it is no amount"})


def read(
    source: str, analysis: Analysis, variant: str = "", data_path: Path | None = None
) -> dict[str, dict[str, Reading]]:
    """Measured metrics by variant: from a JSON file, or from a profile of the store (`sim:NAME` or `NAME`).

    A file is `{variant: {metric: figure}}`, or flat with `variant` given; a profiler's summary (one object under a node's
    name) is taken as it is. Raises InputError for what cannot be read and for an unknown variant.
    """
    path = Path(source)
    names = [one.name for one in analysis.variants]
    if path.is_file():
        document = _json(path)
        if variant == "" and document and all(isinstance(value, dict) for value in document.values()):
            if unknown := [name for name in document if name not in analysis.operation.variants]:
                if len(document) > 1 or len(names) > 1:
                    raise InputError(
                        f"{path}: unknown variant {unknown[0]!r}: {analysis.operation.name} has {', '.join(names)}",
                        hint="name the variants in the file, or say which one it is: --variant NAME",
                    )
                return {names[0]: _readings(document[unknown[0]], path)}
            return {name: _readings(metrics, path) for name, metrics in document.items() if name in names}
        if variant and isinstance(document.get(variant), dict):
            document = document[variant]
        elif len(document) == 1 and isinstance(next(iter(document.values())), dict):
            document = next(iter(document.values()))
        flat = _readings(document, path)
    elif path.suffix == ".json":
        raise InputError(f"no file {source}", hint="give a JSON file of summary metrics, or the name of a profile")
    else:
        flat = _profile(source.removeprefix("sim:"), data_path)
    if not variant and len(names) > 1:
        raise InputError(
            f"{source} is of one variant, and {analysis.operation.name} has {', '.join(names)}",
            hint="say which one it is: --variant NAME",
        )
    return {variant or names[0]: flat}


def _json(path: Path) -> dict[str, Any]:
    try:
        document = parse_json(path.read_text(encoding="utf-8"), parse_float=Decimal, parse_int=Decimal)
    except ValueError as error:
        raise InputError(f"{path}: no JSON: {error}", hint="write {variant: {metric: number}}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: not an object", hint="write {variant: {metric: number}}")
    return document


def _readings(metrics: Any, where: object) -> dict[str, Reading]:
    if not isinstance(metrics, Mapping):
        raise InputError(f"{where}: not an object of metrics: {metrics!r}", hint="write {metric: number}")
    known = {name: metrics[name] for name in metrics if name in _METRICS}
    found = {
        name: reading for name, value in known.items() if (reading := _reading(value, f"{where}: {name}")) is not None
    }
    if not found:
        raise InputError(f"{where}: no metric that is counted here", hint=f"known ones: {', '.join(_METRICS)}")
    return found


def _reading(value: Any, where: str) -> Reading | None:
    """A figure with its last digit: `39.729e9` is known to 0.001e9. None for null."""
    if value is None:
        return None
    try:
        decimal = value if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation as error:
        raise InputError(f"{where}: not a number: {value!r}", hint="write 39.729e9") from error
    if not decimal.is_finite():
        return None
    exponent = decimal.as_tuple().exponent
    assert isinstance(exponent, int)
    # A float written in full claims more digits than it has.
    unit = max(Fraction(10) ** exponent, abs(Fraction(decimal)) / 10**12)
    return Reading(Fraction(decimal), unit)


def _profile(name: str, data_path: Path | None) -> dict[str, Reading]:
    from vibeserve import profiles

    return _readings(profiles.metrics(profiles.open(name, data_path)), f"profile {name}")


def compare(analysis: Analysis, readings: Mapping[str, Mapping[str, Reading]]) -> tuple[Comparison, ...]:
    """Every measured metric beside its count."""
    return tuple(
        _compare(analysis.variant(name), metric, reading, metrics)
        for name, metrics in readings.items()
        for metric, reading in metrics.items()
    )


def _useful(metrics: Mapping[str, Reading]) -> Fraction | None:
    """Measured FLOPs that are no transposes, where both are there: what the measured intensity is made of."""
    if "hardware_flops" in metrics and "transpose_flops" in metrics:
        return metrics["hardware_flops"].value - metrics["transpose_flops"].value
    return metrics["flops"].value if "flops" in metrics else None


def _compare(variant: VariantAnalysis, metric: str, reading: Reading, metrics: Mapping[str, Reading]) -> Comparison:
    kind = _METRICS[metric]
    counted = _counted(variant)[kind]
    difference = reading.value - counted
    half = reading.unit / 2
    agrees = abs(difference) <= half
    relative = float(difference / counted) if counted else (0.0 if agrees else 1.0)
    excess: tuple[Fraction, Fraction] | None = None
    fits: list[Explanation] = []
    count, note, unit = 0, "", ""
    if kind == "time":
        agrees = reading.value >= counted
        upper = variant.bounds.t_upper
        note = f"{float(reading.value / counted):.3g} times the lower bound"
        note += "" if reading.value <= upper else ", above the upper bound too"
        note = note if agrees else "below the lower bound: the count, the machine or the measurement is wrong"
    elif not agrees:
        excess, wide, unit = _excess(variant, kind, reading, counted, _useful(metrics))
        fits, count, complete = _explain(variant, kind, excess, wide, _transposes(variant, metrics))
        note = _note(count, complete, excess, unit)
        scale = _whole_factor(variant, reading, counted)
        if scale:
            fits, note = [scale, *fits], f"{note}; or simply {scale.what}"
            count += 1
    return Comparison(
        variant.name,
        metric,
        float(counted),
        float(reading.value),
        relative,
        agrees,
        (float(excess[0]), float(excess[1])) if excess else None,
        unit,
        tuple(fits),
        count,
        note,
    )


def _counted(variant: VariantAnalysis) -> dict[str, Fraction]:
    cores, numbers = variant.numbers.cores, variant.numbers
    moves = Fraction(numbers.transpose_flops) * cores
    return {
        "flops": Fraction(variant.bounds.work),
        "hardware_flops": Fraction(variant.bounds.work) + moves,
        "transpose_flops": moves,
        "intensity": variant.bounds.intensity,
        "read_bytes": Fraction(numbers.read_bytes) * cores,
        "write_bytes": Fraction(numbers.write_bytes) * cores,
        "bytes": Fraction(variant.bounds.bytes),
        "time": variant.bounds.t_lower,
    }


Range = tuple[Fraction, Fraction]


def _excess(
    variant: VariantAnalysis, kind: str, reading: Reading, counted: Fraction, useful: Fraction | None
) -> tuple[Range, Range, str]:
    """The difference in bytes or FLOPs: as the printed digit rounds, and within one unit of it.

    An intensity gives bytes through the useful FLOPs that were measured, or through those counted.
    """
    if kind != "intensity":
        off = reading.value - counted
        unit = "FLOPs" if "flops" in kind else "bytes"
        return (off - reading.unit / 2, off + reading.unit / 2), (off - reading.unit, off + reading.unit), unit
    work, moved = useful or Fraction(variant.bounds.work), Fraction(variant.bounds.bytes)

    def moved_at(intensity: Fraction) -> Fraction:
        return work / max(intensity, reading.unit / 1000) - moved

    half, value = reading.unit / 2, reading.value
    near = (moved_at(value + half), moved_at(value - half))
    return near, (moved_at(value + reading.unit), moved_at(value - reading.unit)), "bytes"


def _transposes(variant: VariantAnalysis, metrics: Mapping[str, Reading]) -> bool:
    """Whether something is transposed by the matmul array: counted, or seen as FLOPs beyond the count."""
    total = metrics.get("hardware_flops")
    more = total is not None and total.value - Fraction(variant.bounds.work) > total.unit
    return bool(variant.numbers.transpose_flops) or more


def _explain(
    variant: VariantAnalysis, kind: str, near: Range, wide: Range, transposes: bool
) -> tuple[list[Explanation], int, bool]:
    flops = "flops" in kind
    less = wide[1] < 0
    low, high = (-wide[1], -wide[0]) if less else wide
    terms, word = (_flop_terms(variant), "transposed") if flops else (_byte_terms(variant, transposes), "traffic")
    tiles = _tiles(variant)
    hunt = search(terms, low, high, tiles, near=(min(map(abs, near)), max(map(abs, near))))
    rows = variant.over.machine.array.rows if variant.over.machine.array else 0
    by_value: dict[int, list[Fit]] = {}
    for fit in hunt.fits:
        by_value.setdefault(fit.value, []).append(fit)
    explanations = []
    for value, fits in by_value.items():
        what, formula = describe(fits[0], tiles)
        if flops and rows:
            text = f"{in_powers(value // (2 * rows))} elements {word}: {what}"
            formula = f"({formula}) × 2 × {rows}"
        else:
            text = f"{'not ' if less else 'extra '}{word}: {what}"
        ways = [describe(fit, tiles)[0] for fit in fits[1:6]]
        also = tuple(dict.fromkeys([*_alike(fits[0], terms), *ways]))
        explanations.append(Explanation(text, formula, float(-value if less else value), also))
    return explanations[:_SHOWN], len(hunt.fits), hunt.complete


def _alike(fit: Fit, terms: list[Term]) -> list[str]:
    """For each tensor of a fit that others of the same size could stand in for: which."""
    named = {term.name for term, _ in fit.counts}
    said = []
    for term, _ in fit.counts:
        others = [other.name for other in terms if other.size == term.size and other.name not in named]
        if others:
            said.append(f"{term.name} could be {' or '.join(others)}")
    return said


def _flop_terms(variant: VariantAnalysis) -> list[Term]:
    array = variant.over.machine.array
    if array is None:
        return []
    return _terms(variant, lambda elements, _: elements * 2 * array.rows, with_bytes=False)


def _byte_terms(variant: VariantAnalysis, transposes: bool) -> list[Term]:
    found = _terms(variant, lambda elements, each: elements * each, with_bytes=True)
    array = variant.over.machine.array
    if array is not None and transposes:
        each = bytes_of(variant.count.operation.dtype)
        size = array.rows * array.rows * each
        found.append(Term("the identity", f"{float(each):g}·{array.rows}·{array.rows}", int(size)))
    return found


def _terms(variant: VariantAnalysis, size: Callable[[Fraction, Fraction], Fraction], with_bytes: bool) -> list[Term]:
    sizes = variant.derivation.sizes
    found = []
    for item in sorted(variant.count.tensors, key=lambda item: (item.on_chip, not item.tensor.count)):
        elements = Fraction(1)
        for dim in item.tensor.dims:
            elements *= sizes[dim]
        amount = size(elements, item.element_bytes)
        if amount.denominator == 1:
            each = [f"{float(item.element_bytes):g}"] if with_bytes and item.element_bytes != 1 else []
            found.append(Term(item.tensor.name, "·".join([*each, *item.tensor.dims]) or "1", int(amount)))
    return found


def _tiles(variant: VariantAnalysis) -> dict[int, str]:
    """Larger counts with a meaning: tiles of 128 along a dimension (all, or one core's), and the partitions."""
    found: dict[int, str] = {}
    names = variant.count.environment(variant.derivation.sizes)
    sizes: dict[str, Number] = {
        variant.count.local[dim]: names[variant.count.local[dim]] for dim in variant.count.split
    }
    for dim, size in {**sizes, **variant.derivation.sizes}.items():
        if size % _TILE == 0 and size // _TILE > 1:
            found.setdefault(int(size // _TILE), f"{dim} ÷ {_TILE} tiles")
    if variant.over.machine.array is not None:
        found.setdefault(_TILE, "into all 128 partitions")
    return found


def _whole_factor(variant: VariantAnalysis, reading: Reading, counted: Fraction) -> Explanation | None:
    """A profile of one core of several, or a product of several passes: the whole count times or divided by a number."""
    cores = variant.numbers.cores
    if cores > 1 and counted and abs(reading.value * cores - counted) <= reading.unit * cores:
        text = f"the figure is of one core of {cores}"
        return Explanation(text, f"counted ÷ {cores}", float(counted / cores - counted))
    for passes in (2, 3, 4):
        if counted and abs(reading.value - counted * passes) <= reading.unit:
            text = f"every product counted {passes} times (passes of a float32 product)"
            return Explanation(text, f"counted × {passes}", float(counted * (passes - 1)))
    return None


def _note(count: int, complete: bool, excess: Range, unit: str) -> str:
    low, high = (float(end) for end in excess)
    largest = max(abs(low), abs(high))
    scale, prefix = next((pair for pair in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if largest >= pair[0]), (1.0, ""))
    name = f"{prefix}{'B' if unit == 'bytes' and prefix else unit}"
    ends = [f"{low / scale:.5g}", f"{high / scale:.5g}"]
    said = f"excess {' to '.join(dict.fromkeys(ends))} {name}"
    if count == 0:
        more = "" if complete else " (the search stopped before the less natural ones)"
        return f"{said}: no small combination of the operation's tensors fits{more}"
    if count == 1 and complete:
        return f"{said}: one combination fits"
    least = "" if complete else "at least "
    return f"{said}: {least}{count} combinations fit, and the numbers cannot tell them apart"
