"""The scalar engine: functions with scale and bias fused, and their accumulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.nki import access
from vibeserve.nki.activations import RANGES, activate
from vibeserve.nki.context import Core
from vibeserve.nki.instruction import instruction
from vibeserve.nki.isa.elementwise import _stage, f32_rows
from vibeserve.nki.isa.enums import reduce_cmd as _cmd
from vibeserve.nki.isa.reductions import Accumulator, reduction_named
from vibeserve.nki.ops import OPS, Op
from vibeserve.nki.tensor import NkiTensor

_ADD = OPS["add"]


def _affine(data: NkiTensor, scale: Any, bias: Any) -> np.ndarray:
    """float32(data) * scale + bias as [P, N]."""
    values = access.read_f32(data)
    if values.ndim != 2:
        values = values.reshape(values.shape[0], -1)
    if isinstance(scale, NkiTensor) or scale != 1.0:
        values = values * access.scalar(scale, values.shape[0])
    if bias is not None and (isinstance(bias, NkiTensor) or bias != 0):
        values = values + access.scalar(bias, values.shape[0])
    return values


def _activate(core: Core, called: str, op: Op, values: np.ndarray, slope: Any = None) -> np.ndarray:
    """The function on float32; values outside of the range that the device's fit holds for are reported."""
    if op.name in RANGES:
        _check_range(core, called, op, values)
    return activate(op.name, values, slope)


def _check_range(core: Core, called: str, op: Op, values: np.ndarray) -> None:
    low, high = RANGES[op.name]
    if op.name == "reciprocal":
        values = np.abs(values)
    if values.size and (values.min() < low or values.max() > high):
        core.session.report(
            "activation-range",
            f"nisa.{called}(op={op!r}) outside of [{low:g}, {high:g}], where the device's fit holds",
            code="S-ACT-RANGE",
            soft=True,
        )


@instruction
def activation(
    core: Core,
    dst: NkiTensor,
    op: Op,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = _cmd.idle,
    name: Any = None,
) -> None:
    """dst = op(data * scale + bias) in float32; the accumulator may sum the results over the free dimensions."""
    values = _affine(data, scale, bias)
    result = _activate(core, "activation", op, values)
    if reduce_cmd is not _cmd.idle or reduce_res is not None:
        accumulator = Accumulator(core, "scalar", data.shape[0], data.start_partition())
        accumulator.run(reduce_cmd, _ADD, result)
        access.write(dst, result)
        if reduce_res is not None:
            access.write(reduce_res, accumulator.result())
        return
    access.write(dst, result)


@instruction
def activation_reduce(
    core: Core,
    dst: NkiTensor,
    op: Op,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: Any,
    bias: Any = None,
    scale: Any = 1.0,
    name: Any = None,
) -> None:
    """dst = op(data * scale + bias), and reduce_res = its sum over the free dimensions."""
    result = _activate(core, "activation_reduce", op, _affine(data, scale, bias))
    accumulator = Accumulator(core, "scalar", data.shape[0], data.start_partition())
    accumulator.run(_cmd.reset_reduce, _ADD, result)
    access.write(dst, result)
    if reduce_res is not None:
        access.write(reduce_res, accumulator.result())


@instruction
def activate2(
    core: Core,
    dst: NkiTensor,
    op: Op,
    data: NkiTensor,
    imm0: Any,
    imm1: Any,
    op0: Op,
    op1: Op,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = _cmd.idle,
    name: Any = None,
) -> None:
    """dst = op(op1(op0(data, imm0), imm1)): two optional ALU stages before the function; trn3."""
    values, parts = f32_rows(data), data.shape[0]
    if op0.name != "bypass":
        values = _stage(op0, values, access.scalar(imm0, parts), reverse0)
    if op1.name != "bypass":
        values = _stage(op1, values, access.scalar(imm1, parts), reverse1)
    slope = access.scalar(relu_param, parts) if isinstance(relu_param, NkiTensor) else relu_param
    result = _activate(core, "activate2", op, values, slope)
    reducer = _ADD if reduce_op is None else reduction_named(reduce_op)
    accumulator = Accumulator(core, "scalar", parts, data.start_partition())
    accumulator.run(reduce_cmd, reducer, result)
    access.write(dst, result)
    if reduce_res is not None:
        access.write(reduce_res, accumulator.result())


@instruction
def exponential(
    core: Core,
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: Any = None,
    reduce_cmd: Any = _cmd.idle,
    reduce_init: Any = 0.0,
    name: Any = None,
) -> None:
    """dst = exp(src - max_value) on the vector engine, and its sum; trn3."""
    result = np.exp(f32_rows(src) - access.scalar(max_value, src.shape[0]))
    accumulator = Accumulator(core, "vector", src.shape[0], src.start_partition())
    accumulator.run(reduce_cmd, _ADD, result, reduce_init)
    access.write(dst, result)
    if reduce_res is not None:
        access.write(reduce_res, accumulator.result())
