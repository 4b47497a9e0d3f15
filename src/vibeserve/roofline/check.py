"""What must hold between the parts of an operation: names that exist, shapes that agree, stages in order."""

from __future__ import annotations

from collections.abc import Callable

from vibeserve.base.errors import InputError
from vibeserve.roofline.operation import Operation, Stage
from vibeserve.roofline.subscripts import Operand

At = Callable[[str, str], str]


def check_operation(op: Operation, at: At) -> None:
    """Raises InputError, saying where, for the first thing that does not hold."""
    names = [*op.given]
    for name, dim in op.dims.items():
        where = at(f"dimension {name}", f"{name} =")
        if name in op.given:
            raise InputError(f"{where}: both a given number and a dimension", hint="rename one")
        if unknown := [used for used in dim.size.names if used not in names]:
            raise InputError(f"{where}: unknown name {unknown[0]!r}", hint="name it above, under given or dims")
        names.append(name)
    op.sizes()
    for name, tensor in op.tensors.items():
        where = at(f"tensor {name}", f"{name} =")
        _known_dims(op, tensor.dims, where)
        if name in op.dims:
            raise InputError(f"{where}: a dimension has this name", hint="rename one")
    for stage in op.stages:
        _check_stage(op, stage, at(f"stage {stage.name}", stage.written))
    for variant in op.variants.values():
        _check_variant(op, variant.name, at(f"variant {variant.name}", f"variants.{variant.name}"))
    for change in op.what_if:
        op.sizes(change)


def _known_dims(op: Operation, dims: tuple[str, ...], where: str) -> None:
    for dim in dims:
        if dim not in op.dims:
            raise InputError(f"{where}: unknown dimension {dim!r}", hint=f"dims has {', '.join(op.dims)}")


def _check_stage(op: Operation, stage: Stage, where: str) -> None:
    for operand in stage.subscripts.operands:
        if operand.tensor not in op.tensors:
            raise InputError(f"{where}: unknown tensor {operand.tensor!r}", hint=f"tensors: {', '.join(op.tensors)}")
        _known_dims(op, operand.dims, where)
        _check_shape(op, operand, where)
    for key, expr in (("flops", stage.flops), ("share", stage.share)):
        if expr is not None and (unknown := [name for name in expr.names if name not in op.dims]):
            raise InputError(f"{where}: unknown name {unknown[0]!r} in {key}", hint=f"dims has {', '.join(op.dims)}")
    for name in stage.only:
        if name not in op.variants:
            raise InputError(f"{where}: only = {name!r}: no such variant", hint=f"variants: {', '.join(op.variants)}")
    missing = set(stage.subscripts.output.dims) - {dim for item in stage.subscripts.inputs for dim in item.dims}
    if missing and stage.kind != "broadcast":
        raise InputError(
            f"{where}: {sorted(missing)[0]} is in the output and in no input", hint="a broadcast stage makes one larger"
        )


def _check_shape(op: Operation, operand: Operand, where: str) -> None:
    declared = op.tensors[operand.tensor].dims
    windows = {place for place, index in enumerate(operand.indices) if index.inner}
    used = tuple(index.outer for index in operand.indices)
    same = len(used) == len(declared) and all(
        place in windows or used[place] == declared[place] for place in range(len(used))
    )
    if not same:
        raise InputError(
            f"{where}: {operand.tensor} used as [{' '.join(used)}], declared as [{' '.join(declared)}]",
            hint="a tensor has one shape: make the two agree",
        )
    sizes = op.sizes()
    for place in windows:
        index, size = operand.indices[place], sizes[declared[place]]
        reach = (sizes[index.outer] - 1) * index.stride + sizes[index.inner]
        if not size <= reach < size + 2 * sizes[index.inner]:
            raise InputError(
                f"{where}: the window {index.outer} by {index.inner} reaches {reach} rows of {operand.tensor}, "
                f"which has {declared[place]} = {size}",
                hint="check stride and output size: input ≤ (output − 1) × stride + window",
            )


def _check_variant(op: Operation, name: str, where: str) -> None:
    variant = op.variants[name]
    stages = op.stages_of(variant)
    _known_dims(op, tuple(variant.split), f"{where}: split")
    for tensor, traffic in variant.memory.items():
        if tensor not in op.tensors:
            raise InputError(f"{where}: unknown tensor {tensor!r}", hint=f"tensors: {', '.join(op.tensors)}")
        for expr in (traffic.reads, traffic.writes):
            if expr is not None and (unknown := [used for used in expr.names if used not in op.dims]):
                raise InputError(f"{where}: unknown name {unknown[0]!r}", hint=f"dims has {', '.join(op.dims)}")
    if not stages:
        raise InputError(f"{where}: it has no stage", hint="check the stages' only")
    seen: set[str] = set()
    made = op.produced(stages)
    for stage in stages:
        for operand in stage.subscripts.inputs:
            if operand.tensor in made and operand.tensor not in seen:
                raise InputError(
                    f"{where}: stage {stage.name} reads {operand.tensor} before it is made", hint="put stages in order"
                )
        if stage.subscripts.output.tensor in seen:
            raise InputError(
                f"{where}: {stage.subscripts.output.tensor} is made twice", hint="give the second its own tensor"
            )
        seen.add(stage.subscripts.output.tensor)
    if isinstance(variant.kernels, tuple):
        listed = [stage for group in variant.kernels for stage in group]
        wanted = [stage.name for stage in stages]
        if sorted(listed) != sorted(wanted):
            odd = sorted(set(listed) ^ set(wanted)) or [stage for stage in listed if listed.count(stage) > 1]
            raise InputError(f"{where}: kernels must name every stage once: {odd[0]!r}", hint=", ".join(wanted))
