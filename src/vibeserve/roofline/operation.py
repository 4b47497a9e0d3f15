"""An operation as data: dimensions, tensors, stages, and variants that say what crosses the memory and how it is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vibeserve.base.errors import InputError
from vibeserve.roofline.expr import Expr
from vibeserve.roofline.poly import Number
from vibeserve.roofline.subscripts import Subscripts

Kind = Literal["contract", "elementwise", "reduce", "transpose", "broadcast"]


@dataclass(frozen=True, slots=True)
class Dim:
    """A named size: an expression of numbers, of `given` numbers and of dimensions named before it."""

    name: str
    size: Expr
    about: str = ""

    @property
    def derived(self) -> bool:
        """Whether its size is computed from other names."""
        return bool(self.size.names)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor. `count` False leaves it out of the hand count: it is named, and the explanation search knows it."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    weight: bool = False
    count: bool = True
    about: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """One step. A contraction's FLOPs are 2 for each point of its iteration space; other kinds have `flops` an element.

    `moves_data`: it only moves data (a product with an identity, a row broadcast by a K=1 product): counted apart.
    `on`: the units that do it, `matmul` or `vector`. `share`: the part of the iteration space that is computed (a causal mask). `only`: the variants that have it; all where
    empty. `written`: the subscripts as they stand in the file.
    """

    name: str
    kind: Kind
    subscripts: Subscripts
    flops: Expr | None = None
    dtype: str = ""
    on: Literal["matmul", "vector"] = "matmul"
    moves_data: bool = False
    by: Literal["matmul", "dma"] = "matmul"
    share: Expr | None = None
    only: tuple[str, ...] = ()
    about: str = ""
    written: str = ""


@dataclass(frozen=True, slots=True)
class Traffic:
    """How often a tensor crosses the memory, where the stages do not say it: reads and writes, of the whole or a part.

    `each_core`: `part` (a core loads its part), `whole` (every core loads all of it), `shared` (loaded once for all
    cores); empty: it follows from the split. `dtype` stands in for the tensor's own on the way.
    """

    reads: Expr | None = None
    writes: Expr | None = None
    each_core: Literal["", "part", "whole", "shared"] = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the operation.

    `kernels` groups stages that keep what passes between them on chip: `one`, `each` (every stage is a kernel), or
    groups of names. `split` maps a dimension to the cores that share it (0: all that the kernel runs on); several
    dimensions may be split over the same cores where no tensor has two of them (heads in attention, columns in the MLP).
    """

    name: str
    kernels: Literal["one", "each"] | tuple[tuple[str, ...], ...] = "one"
    split: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, Traffic] = field(default_factory=dict)
    about: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. Made from a TOML file by `load`, or in Python by `vibeserve.roofline.operation`."""

    name: str
    title: str
    dims: Mapping[str, Dim]
    tensors: Mapping[str, Tensor]
    stages: tuple[Stage, ...]
    variants: Mapping[str, Variant]
    dtype: str = "bfloat16"
    given: Mapping[str, Number] = field(default_factory=dict)
    target: str = ""
    lnc: int | None = None
    what_if: tuple[Mapping[str, Number], ...] = ()
    about: str = ""
    source: str = ""

    def stages_of(self, variant: Variant) -> tuple[Stage, ...]:
        """The stages that a variant has."""
        return tuple(stage for stage in self.stages if not stage.only or variant.name in stage.only)

    def sizes(self, changes: Mapping[str, Number] | None = None) -> dict[str, int]:
        """The size of every dimension, after `changes` to dimensions or given numbers.

        Raises InputError for a name that the operation does not have and for a size that is no positive whole number.
        """
        changes = dict(changes or {})
        if unknown := [name for name in changes if name not in self.dims and name not in self.given]:
            given = f" (given: {', '.join(self.given)})" if self.given else ""
            raise InputError(
                f"unknown dimension {unknown[0]!r}: {self.name} has {', '.join(self.dims)}{given}",
                hint=f"use one of those: --set {next(iter(self.dims))}=…",
            )
        names: dict[str, Number] = {**self.given, **{key: value for key, value in changes.items() if key in self.given}}
        found: dict[str, int] = {}
        for name, dim in self.dims.items():
            try:
                value = changes[name] if name in changes else dim.size.value(names)
            except ZeroDivisionError as error:
                raise InputError(f"{name} = {dim.size.show()} divides by zero", hint="change a size in it") from error
            names[name] = found[name] = self._positive(name, dim, value, names)
        return found

    def _positive(self, name: str, dim: Dim, value: Number, names: Mapping[str, Number]) -> int:
        if isinstance(value, int) and value > 0:
            return value
        shown = dim.size.show({key: str(number) for key, number in names.items()})
        how = f" = {dim.size.show()} = {shown}" if dim.derived else ""
        if not isinstance(value, int):
            raise InputError(
                f"{name}{how} is {float(value):g}, not a whole number",
                hint="choose sizes that divide without remainder",
            )
        raise InputError(f"{name}{how} is {value}: a size must be positive", hint=f"give {name} 1 or more")

    def variant(self, name: str) -> Variant:
        """A variant by name. Raises InputError, naming what there is."""
        if name not in self.variants:
            raise InputError(
                f"unknown variant {name!r}: {self.name} has {', '.join(self.variants)}", hint="use one of those"
            )
        return self.variants[name]

    def produced(self, stages: tuple[Stage, ...]) -> dict[str, Stage]:
        """Tensor to the stage that makes it."""
        return {stage.subscripts.output.tensor: stage for stage in stages}
