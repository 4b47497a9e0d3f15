"""From an operation and a variant to counts: FLOPs, bytes and what each core does, as polynomials in the sizes.

Everything is derived: FLOPs from the stages' iteration spaces, crossings from which stages share a kernel, and what a
core loads from the dimensions that a tensor has. Symbols are those of one core (`r` for its part of `R`); a total is a
core's count times the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from vibeserve.base.errors import InputError
from vibeserve.hardware import bytes_of
from vibeserve.roofline.expr import Expr, NotPolynomialError
from vibeserve.roofline.operation import Operation, Stage, Tensor, Traffic, Variant
from vibeserve.roofline.poly import Number, Poly, whole

ToPoly = Callable[[Expr], Poly]


@dataclass(frozen=True, slots=True)
class StageCount:
    """FLOPs of one stage on one core; `kind` says where they count, `repeated` that every core does all of it."""

    stage: Stage
    flops: Poly
    kind: str  # "flops" | "moves" | "vector"
    dtype: str
    repeated: bool


@dataclass(frozen=True, slots=True)
class TensorCount:
    """One tensor's crossings of the memory, for one core: `elements` each time, `reads` and `writes` times."""

    tensor: Tensor
    dtype: str
    elements: Poly
    reads: Poly
    writes: Poly
    each_core: str  # "part" | "whole" | "shared"

    @property
    def element_bytes(self) -> Fraction:
        """Bytes of one element on its way."""
        return bytes_of(self.dtype)

    @property
    def read_bytes(self) -> Poly:
        """Bytes that one core reads of it."""
        return self.elements * self.reads * self.element_bytes

    @property
    def write_bytes(self) -> Poly:
        """Bytes that one core writes of it."""
        return self.elements * self.writes * self.element_bytes

    @property
    def bytes(self) -> Poly:
        """Bytes that cross for one core."""
        return self.read_bytes + self.write_bytes

    @property
    def on_chip(self) -> bool:
        """Whether it never crosses."""
        return not (self.reads or self.writes)


@dataclass(frozen=True)
class Count:
    """A variant's counts on `cores` cores, for one core, in symbols.

    `local` maps each dimension to its symbol on one core, `split` a dimension to the cores that share it, and `opaque`
    the symbols that stand for something with a ceil, floor, min or max to that expression.
    """

    operation: Operation
    variant: Variant
    cores: int
    split: Mapping[str, int]
    local: Mapping[str, str]
    stages: tuple[StageCount, ...]
    tensors: tuple[TensorCount, ...]
    opaque: Mapping[str, Expr]

    @cached_property
    def _totals(self) -> dict[str, dict[str, Poly]]:
        """Every sum that a count is made of, formed once: a sweep evaluates them a thousand times."""
        read = Poly.total(item.read_bytes for item in self.counted)
        write = Poly.total(item.write_bytes for item in self.counted)
        found = {kind: self._by_dtype(kind) for kind in ("flops", "vector", "moves")}
        return found | {"bytes": {"read": read, "write": write}}

    @cached_property
    def _repeats(self) -> list[tuple[str, str, Poly]]:
        """Crossings whose number depends on the sizes."""
        pairs = [(item, word) for item in self.tensors for word in ("read", "write")]
        found = [(item.tensor.name, word, item.reads if word == "read" else item.writes) for item, word in pairs]
        return [entry for entry in found if entry[2].symbols]

    def flops_by_dtype(self, kind: str = "flops") -> dict[str, Poly]:
        """FLOPs of one core by the data type that they are computed in."""
        return dict(self._totals[kind])

    def _by_dtype(self, kind: str) -> dict[str, Poly]:
        found: dict[str, Poly] = {}
        for stage in self.stages:
            if stage.kind == kind:
                found[stage.dtype] = found.get(stage.dtype, Poly.of(0)) + stage.flops
        return found

    def flops(self, kind: str = "flops") -> Poly:
        """FLOPs of one core: matmul ('flops'), those that only move data ('moves'), outside the matmul units ('vector')."""
        return Poly.total(self.flops_by_dtype(kind).values())

    @property
    def counted(self) -> tuple[TensorCount, ...]:
        """The tensors of the hand count."""
        return tuple(item for item in self.tensors if item.tensor.count)

    @property
    def bytes(self) -> Poly:
        """Bytes that one core moves."""
        return Poly.total(self._totals["bytes"].values())

    @property
    def kind(self) -> str:
        """What bounds it on the compute side: 'flops' where it has matmuls, else 'vector'."""
        return "flops" if any(self._totals["flops"].values()) else "vector"

    def environment(self, sizes: Mapping[str, int]) -> dict[str, Number]:
        """Values of all local symbols. Raises InputError for a split that leaves a remainder."""
        own: dict[str, Number] = {}
        for name, size in sizes.items():
            parts = self.split.get(name, 1)
            if size % parts:
                raise InputError(
                    f"{name} = {size} does not split over {parts} cores: remainder {size % parts}",
                    hint=f"the nearest sizes that do: {max(parts, size - size % parts)} and {size + parts - size % parts}",
                )
            own[name] = size // parts
        found = {self.local[name]: value for name, value in own.items()}
        for symbol, expr in self.opaque.items():
            found[symbol] = expr.value(own)
        return found

    def numbers(self, sizes: Mapping[str, int]) -> Numbers:
        """The counts for given sizes, exact. Raises InputError for a split, or a number of crossings, that is not whole."""
        names = self.environment(sizes)
        for tensor, word, poly in self._repeats:
            times = poly.evaluate(names)
            if not isinstance(times, int):
                raise InputError(
                    f"{tensor} would cross {float(times):g} times as a {word}, which is not whole",
                    hint="choose sizes that divide, or round in the file: ceil(S / L)",
                )
        totals = self._totals
        moves = [poly.evaluate(names) for poly in totals["moves"].values()]
        return Numbers(
            cores=self.cores,
            flops={dtype: poly.evaluate(names) for dtype, poly in totals["flops"].items()},
            vector_flops={dtype: poly.evaluate(names) for dtype, poly in totals["vector"].items()},
            transpose_flops=_sum(moves),
            read_bytes=totals["bytes"]["read"].evaluate(names),
            write_bytes=totals["bytes"]["write"].evaluate(names),
        )


@dataclass(frozen=True, slots=True)
class Numbers:
    """Counts of one core; multiplied by `cores` they are the totals."""

    cores: int
    flops: Mapping[str, Number]
    vector_flops: Mapping[str, Number]
    transpose_flops: Number
    read_bytes: Number
    write_bytes: Number

    @property
    def kind(self) -> str:
        """'flops' where there are matmuls, else 'vector'."""
        return "flops" if any(self.flops.values()) else "vector"

    @property
    def work(self) -> Mapping[str, Number]:
        """FLOPs of one core by data type that the compute bound is made of."""
        return self.flops if self.kind == "flops" else self.vector_flops

    @property
    def work_flops(self) -> Number:
        """Their sum."""
        return _sum(self.work.values())

    @property
    def bytes(self) -> Number:
        """Bytes that one core moves."""
        return whole(self.read_bytes + self.write_bytes)


def _sum(values: Iterable[Number]) -> Number:
    total: Number = 0
    for value in values:
        total += value
    return whole(total)


def count(op: Operation, variant: Variant, cores: int = 1, array_rows: int = 0) -> Count:
    """The counts of a variant on `cores` cores.

    `array_rows` is the side of the machine's matmul array: a transpose done by it multiplies with an identity of that
    side, 2 x array_rows FLOPs an element; 0 where the machine transposes otherwise. Raises InputError for a split that
    does not fit the cores.
    """
    split = _split(op, variant, cores)
    local = _local_names(op, split)
    opaque: dict[str, Expr] = {}
    symbols = {name: Poly.symbol(symbol) for name, symbol in local.items()}

    def poly(expr: Expr) -> Poly:
        try:
            return expr.poly(symbols)
        except NotPolynomialError:
            symbol = expr.show(local)
            opaque[symbol] = expr
            return Poly.symbol(symbol)

    stages = op.stages_of(variant)
    counted = tuple(_stage(op, stage, split, symbols, array_rows, poly) for stage in stages)
    tensors = tuple(_tensors(op, variant, stages, split, cores, symbols, poly))
    return Count(op, variant, cores, split, local, counted, tensors, opaque)


def _split(op: Operation, variant: Variant, cores: int) -> dict[str, int]:
    if cores == 1:
        return {}
    if not variant.split:
        raise InputError(
            f"variant {variant.name} of {op.name} says no split, and the kernel runs on {cores} cores",
            hint=f"add split = '{next(iter(op.dims))}' to the variant, or use --lnc 1",
        )
    split = {dim: parts or cores for dim, parts in variant.split.items()}
    spaces = [(f"stage {stage.name}", stage.subscripts.dims) for stage in op.stages_of(variant)]
    spaces += [(f"tensor {name}", tensor.dims) for name, tensor in op.tensors.items()]
    for what, dims in spaces:
        used = 1
        for dim in dims:
            used *= split.get(dim, 1)
        if cores % used:
            raise InputError(
                f"variant {variant.name} splits {what} of {op.name} over {used} cores, and the kernel runs on {cores}",
                hint="split one dimension over all cores (split = 'R'), or give the parts: split = { R = 2, H = 1 }",
            )
    return split


def _local_names(op: Operation, split: Mapping[str, int]) -> dict[str, str]:
    local: dict[str, str] = {}
    for name in op.dims:
        small = name.lower()
        free = small not in op.dims and small not in op.given and small not in local.values()
        local[name] = name if split.get(name, 1) == 1 else small if free else f"{name}′"
    return local


def _stage(
    op: Operation, stage: Stage, split: Mapping[str, int], symbols: Mapping[str, Poly], rows: int, poly: ToPoly
) -> StageCount:
    space = stage.subscripts.dims
    points = _product(symbols, space)
    if stage.share is not None:
        points = points * poly(stage.share)
    moves = stage.moves_data
    match stage.kind:
        case "contract":
            flops = points * len(stage.subscripts.inputs)
        case "transpose":
            flops = points * (2 * rows if stage.by == "matmul" else 0)
        case "broadcast":
            flops = points * (2 if stage.by == "matmul" and rows else 0)
        case _:
            flops = points * (poly(stage.flops) if stage.flops is not None else Poly.of(1))
    kind = "moves" if moves else "flops" if stage.on == "matmul" else "vector"
    repeated = bool(split) and not any(dim in split for dim in space)
    return StageCount(stage, flops, kind, stage.dtype or op.dtype, repeated)


def _product(symbols: Mapping[str, Poly], names: tuple[str, ...]) -> Poly:
    total = Poly.of(1)
    for name in names:
        total = total * symbols[name]
    return total


def _tensors(
    op: Operation,
    variant: Variant,
    stages: tuple[Stage, ...],
    split: Mapping[str, int],
    cores: int,
    symbols: Mapping[str, Poly],
    poly: ToPoly,
) -> list[TensorCount]:
    groups = _groups(variant, stages)
    made = {stage.subscripts.output.tensor: groups[stage.name] for stage in stages}
    readers: dict[str, set[int]] = {}
    for stage in stages:
        for operand in stage.subscripts.inputs:
            readers.setdefault(operand.tensor, set()).add(groups[stage.name])
    found = []
    for name, tensor in op.tensors.items():
        if name not in made and name not in readers and name not in variant.memory:
            continue
        traffic = variant.memory.get(name, Traffic())
        others = readers.get(name, set()) - {made.get(name, -1)}
        written = name in made and (bool(others) or name not in readers)
        reads = poly(traffic.reads) if traffic.reads is not None else Poly.of(len(others))
        writes = poly(traffic.writes) if traffic.writes is not None else Poly.of(int(written))
        has = 1
        for dim in tensor.dims:
            has *= split.get(dim, 1)
        each_core = traffic.each_core or ("part" if has > 1 or cores == 1 else "whole")
        elements = _product(symbols, tensor.dims)
        if each_core == "shared" or (each_core == "part" and has == 1):
            elements = elements * Fraction(has, cores)
        elif each_core == "whole" and has > 1:
            elements = elements * has
        found.append(TensorCount(tensor, traffic.dtype or tensor.dtype, elements, reads, writes, each_core))
    return found


def _groups(variant: Variant, stages: tuple[Stage, ...]) -> dict[str, int]:
    """Stage name to the number of its kernel."""
    if variant.kernels == "one":
        return {stage.name: 0 for stage in stages}
    if variant.kernels == "each":
        return {stage.name: number for number, stage in enumerate(stages)}
    return {name: number for number, group in enumerate(variant.kernels) for name in group}
