"""The whole analysis of an operation on a machine: every variant counted, bounded, derived step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from vibeserve import hardware
from vibeserve.base.errors import InputError
from vibeserve.hardware import Machine, canonical
from vibeserve.roofline.bounds import Bounds, Roof, bounds
from vibeserve.roofline.bounds import roof as roof_over
from vibeserve.roofline.changes import Change, changes
from vibeserve.roofline.counting import Count, Numbers, count
from vibeserve.roofline.crossings import Crossing, crossings
from vibeserve.roofline.loader import load
from vibeserve.roofline.operation import Operation
from vibeserve.roofline.poly import Number, whole
from vibeserve.roofline.steps import Derivation, Step, steps

DEFAULT_TARGET = "trn2"


@dataclass(frozen=True, slots=True)
class VariantAnalysis:
    """One variant: its count in symbols and in numbers, its bounds, steps, crossings, and what would change them."""

    name: str
    about: str
    count: Count
    numbers: Numbers
    bounds: Bounds
    over: Roof
    steps: tuple[Step, ...]
    crossings: tuple[Crossing, ...]
    changes: tuple[Change, ...]
    derivation: Derivation

    @property
    def flops(self) -> Number:
        """Matmul FLOPs that are no data movement, of all cores; elementwise ones where there are no matmuls."""
        return self.bounds.work

    def document(self) -> dict[str, Any]:
        """What JSON has of it."""
        found, numbers = self.bounds, self.numbers
        cores = numbers.cores
        return {
            "name": self.name,
            "about": self.about,
            "cores": cores,
            "work_kind": "matmul" if found.kind == "flops" else "elementwise",
            "flops": whole(found.work),
            "bytes": whole(found.bytes),
            "intensity": float(found.intensity),
            "peak_flops_per_s": float(found.peak),
            "bandwidth_bytes_per_s": float(found.bandwidth),
            "ridge": float(found.ridge),
            "t_compute_s": float(found.t_compute),
            "t_memory_s": float(found.t_memory),
            "t_lower_s": float(found.t_lower),
            "t_upper_s": float(found.t_upper),
            "attainable_from_memory_flops_per_s": float(found.intensity * found.bandwidth),
            "bound": found.bound,
            "per_core": {
                "flops": whole(numbers.work_flops),
                "bytes": whole(numbers.bytes),
                "intensity": float(Fraction(numbers.work_flops) / Fraction(numbers.bytes)),
                "peak_flops_per_s": float(found.peak / cores),
                "bandwidth_bytes_per_s": float(found.bandwidth / cores),
                "sizes": self._local_sizes(),
                "intensity_formula": self.derivation.symbols.ratio(self.count.flops(self.count.kind), self.count.bytes),
            },
            "read_bytes": whole(numbers.read_bytes * cores),
            "write_bytes": whole(numbers.write_bytes * cores),
            "transpose_flops": whole(numbers.transpose_flops * cores),
            "elementwise_flops": whole(sum(numbers.vector_flops.values()) * cores),
            "tensors": self._tensors(),
            "steps": [
                {
                    "title": step.title,
                    "formula": step.formula,
                    "numbers": step.numbers,
                    "value": step.value,
                    "unit": step.unit,
                    "text": step.text,
                    "note": step.note,
                    "part": step.part,
                }
                for step in self.steps
            ],
            "crossings": [self._crossing(crossing) for crossing in self.crossings],
            "changes": [
                {"what": one.what, "now": one.now, "needed": one.needed, "unit": one.unit, "text": one.text}
                for one in self.changes
            ],
        }

    def _local_sizes(self) -> dict[str, Number]:
        names = self.count.environment(self.derivation.sizes)
        return {self.count.local[dim]: names[self.count.local[dim]] for dim in self.count.operation.dims}

    def _tensors(self) -> list[dict[str, Any]]:
        names = self.count.environment(self.derivation.sizes)
        return [
            {
                "name": item.tensor.name,
                "dtype": item.dtype,
                "where": "on chip" if item.on_chip else "memory",
                "reads": item.reads.evaluate(names),
                "writes": item.writes.evaluate(names),
                "each_core": item.each_core,
                "bytes": whole(item.bytes.evaluate(names) * self.count.cores),
                "counted": item.tensor.count,
                "weight": item.tensor.weight,
            }
            for item in self.count.tensors
        ]

    def _crossing(self, crossing: Crossing) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "dim": crossing.dim,
            "value": crossing.value,
            "per_core_rows": crossing.per_core,
            "above": crossing.above,
            "exact": crossing.exact,
        }
        if crossing.per_core is None:
            plain["per_core_rows_reason"] = f"{crossing.dim} is not split over cores"
        return plain


@dataclass(frozen=True, slots=True)
class Analysis:
    """An operation on a machine."""

    operation: Operation
    sizes: Mapping[str, int]
    changes: Mapping[str, Number]
    machine: Machine
    lnc: int | None
    dtype: str
    variants: tuple[VariantAnalysis, ...]
    measured: tuple[Any, ...] = ()
    points: tuple[Any, ...] = ()
    sweep: Any = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def variant(self, name: str) -> VariantAnalysis:
        """A variant by name. Raises InputError."""
        self.operation.variant(name)
        found = next((one for one in self.variants if one.name == name), None)
        if found is None:
            raise InputError(f"variant {name} is not among those analysed", hint="leave --variant out")
        return found

    def document(self) -> dict[str, Any]:
        """The JSON of `vibeserve roofline`."""
        used = self.machine.used("bandwidth_bytes_per_s")
        plain: dict[str, Any] = {
            "op": self.operation.name,
            "title": self.operation.title,
            "dims": dict(self.sizes),
            "given": {key: float(value) for key, value in self.operation.given.items()},
            "set": {key: whole(value) for key, value in self.changes.items()},
            "target": self.machine.name,
            "lnc": self.lnc,
            "dtype": self.dtype,
            "bandwidth_source": "given" if "bandwidth" in self.overrides else f"{used.provenance}: {used.source}",
            "variants": [variant.document() for variant in self.variants],
            "measured": [item.document() for item in self.measured],
        }
        if self.lnc is None:
            plain["lnc_reason"] = f"{self.machine.name} has no logical cores"
        if self.sweep is not None:
            plain["sweep"] = self.sweep.document()
        return plain


def analyze(
    op: Operation | str | Path,
    *,
    sizes: Mapping[str, Number] | None = None,
    target: str | Machine = "",
    lnc: int | None = None,
    variants: Sequence[str] = (),
    dtype: str = "",
    peak: float | str | None = None,
    bandwidth: float | str | None = None,
) -> Analysis:
    """Count an operation on a machine.

    `op` is an operation, a TOML file or the name of a packaged one; `sizes` changes dimensions or given numbers;
    `target` and `lnc` default to the operation's own, then to trn2 and 1. `peak` (FLOP/s) and `bandwidth` (bytes/s)
    stand in for the machine's, or name another of its sources. Raises InputError for everything that does not fit.
    """
    operation = op if isinstance(op, Operation) else load(op)
    if dtype:
        operation = _recast(operation, canonical(dtype))
    changed = {name: _number(name, value) for name, value in (sizes or {}).items()}
    resolved = operation.sizes(changed)
    machine = target if isinstance(target, Machine) else hardware.get(target or operation.target or DEFAULT_TARGET)
    own = not target or (not isinstance(target, Machine) and machine.name == operation.target)
    lnc = lnc if lnc is not None else operation.lnc if own and machine.lnc else None
    over = roof_over(machine, lnc, peak=peak, bandwidth=bandwidth, dtype=operation.dtype)
    names = variants or tuple(operation.variants)
    found = tuple(analyze_variant(operation, name, resolved, changed, over) for name in names)
    overrides = {
        key: value for key, value in (("peak", peak), ("bandwidth", bandwidth)) if isinstance(value, float | int)
    }
    return Analysis(
        operation,
        resolved,
        changed,
        over.machine,
        over.cores if machine.lnc else None,
        operation.dtype,
        found,
        overrides=overrides,
    )


def analyze_variant(
    op: Operation, name: str, sizes: Mapping[str, int], changed: Mapping[str, Number], over: Roof
) -> VariantAnalysis:
    """One variant under a roof. Raises InputError."""
    variant = op.variant(name)
    array = over.machine.array
    counted = count(op, variant, over.cores, array.rows if array else 0)
    numbers = counted.numbers(sizes)
    found = bounds(numbers, over)
    crossed = tuple(crossings(counted, over, sizes, changed))
    derivation = Derivation(counted, sizes, changed, over, found, crossed)
    moved = tuple(changes(counted, over, found, sizes, crossed, changed))
    return VariantAnalysis(
        name, variant.about, counted, numbers, found, over, tuple(steps(derivation)), crossed, moved, derivation
    )


def _number(name: str, value: object) -> Number:
    """A size as it may come from JSON or a caller: 256, 256.0 or '256'. Raises InputError."""
    try:
        if isinstance(value, bool):
            raise ValueError
        return whole(Fraction(str(value)))
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"{name} = {value!r} is not a number", hint="give a whole number") from error


def _recast(op: Operation, dtype: str) -> Operation:
    """The operation computed in another data type: tensors that had the old one follow."""
    tensors = {
        name: replace(tensor, dtype=dtype) if tensor.dtype == op.dtype else tensor
        for name, tensor in op.tensors.items()
    }
    return replace(op, dtype=dtype, tensors=tensors)


def tool(
    op: str,
    set: Mapping[str, int] | None = None,  # noqa: A002 - the tool's argument is named as the option is
    target: str = "",
    lnc: int | None = None,
) -> dict[str, Any]:
    """The analysis as plain JSON data, for tools: the same as `vibeserve roofline OP --json`. Raises InputError."""
    from vibeserve.base.jsonio import plain

    return plain(analyze(op, sizes=set, target=target, lnc=lnc).document())
