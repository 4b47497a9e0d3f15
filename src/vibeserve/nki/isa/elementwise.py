"""Element-by-element instructions of the vector engine (and what scalar and gpsimd share of them)."""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.nki import access
from vibeserve.nki.context import Core
from vibeserve.nki.dtypes import convert, float32
from vibeserve.nki.instruction import SKIPPED, instruction
from vibeserve.nki.isa.enums import engine as _engine
from vibeserve.nki.ops import Op, apply, apply_unary, is_bit, is_unary, unsigned
from vibeserve.nki.tensor import NkiTensor


def rows(values: np.ndarray) -> np.ndarray:
    """[P, elements] of an array whose free dimensions are flattened in order."""
    return values if values.ndim == 2 else values.reshape(values.shape[0], -1)


def f32_rows(tensor: NkiTensor) -> np.ndarray:
    """[P, elements] of a tensor as float32."""
    return rows(access.read_f32(tensor))


def exact_integers(*tensors: Any) -> bool:
    """Whether every tensor has 32-bit integers."""
    return all(t.dtype.is_int and t.dtype.itemsize == 4 for t in tensors if isinstance(t, NkiTensor))


def wrap(values: np.ndarray, tensor: NkiTensor) -> np.ndarray:
    """64-bit integers as the tensor's 32-bit ones, modulo 2^32."""
    return (values & 0xFFFFFFFF).astype(np.uint32).view(tensor.dtype.stored)


def write_bits(dst: NkiTensor, bits: np.ndarray) -> None:
    """Write unsigned integers as the raw bits of dst's integer dtype."""
    kind = np.dtype(f"u{dst.dtype.itemsize}")
    access.write(dst, bits.astype(kind).view(dst.dtype.stored))


def widest(*arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays' bits as unsigned integers of the widest of their sizes."""
    plain = [unsigned(np.ascontiguousarray(array)) for array in arrays]
    kind = max((array.dtype for array in plain), key=lambda dtype: dtype.itemsize)
    return [array.astype(kind, copy=False) for array in plain]


@instruction
def tensor_copy(core: Core, dst: NkiTensor, src: NkiTensor, engine: Any = _engine.unknown, name: Any = None) -> None:
    """dst = src: bits kept where the dtypes are equal, else cast through float32."""
    access.write(dst, convert(access.read(src), src.held(), dst.held()))


@instruction
def tensor_copy_predicated(
    core: Core, dst: NkiTensor, src: Any, predicate: NkiTensor, reverse_pred: bool = False, name: Any = None
) -> Any:
    """dst takes src where predicate is not 0 (is 0 if reversed); elsewhere dst stays."""
    chosen = rows(access.read(predicate)) != 0
    if reverse_pred:
        chosen = ~chosen
    access.keep_unwritten(dst)
    old = rows(access.read(dst))
    if isinstance(src, NkiTensor):
        new = rows(access.read(src))
    else:
        new = convert(np.full((1, 1), src, np.float32), float32, dst.held())
    access.write(dst, np.where(chosen, new, old).astype(old.dtype))
    access.mark_where(dst, np.broadcast_to(chosen, old.shape))
    return SKIPPED


@instruction
def memset(core: Core, dst: NkiTensor, value: Any, engine: Any = _engine.unknown, name: Any = None) -> None:
    """dst[...] = value, a number of dst's kind."""
    held = dst.held()
    if held.is_int or held.kind == "packed":
        filler = np.array(int(value) & ((1 << 8 * held.itemsize) - 1), np.dtype(f"u{held.itemsize}")).view(held.stored)
    else:
        filler = convert(np.array(value, np.float32), float32, held)
    if dst.rows is None and dst.lanes is None:
        access.array(dst)[...] = filler
    else:
        access.write(dst, np.full(dst.shape, filler, held.stored))


@instruction
def tensor_tensor(
    core: Core,
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Op,
    engine: Any = _engine.unknown,
    name: Any = None,
) -> None:
    """dst = op(data1, data2). Bit operators on raw bits; 32-bit integers exact on gpsimd; else in float32."""
    if op.kind == "bit":
        left, right = widest(rows(access.read(data1)), rows(access.read(data2)))
        write_bits(dst, op.alu(left, right))  # type: ignore[misc]
        return
    in_psum = any(t.buffer.value == "psum" for t in (dst, data1, data2))
    if exact_integers(dst, data1, data2) and engine is not _engine.vector and not in_psum:
        a, b = (rows(access.read(t)).astype(np.int64) for t in (data1, data2))
        access.write(dst, wrap(apply(op, a, b).astype(np.int64), dst))
        return
    if data1.shape == data2.shape:
        access.write(dst, apply(op, access.read_f32(data1), access.read_f32(data2)))
    else:
        access.write(dst, apply(op, f32_rows(data1), f32_rows(data2)))


def _operand(value: Any, parts: int, *, bits: np.dtype | None, integer: bool) -> Any:
    """An operand of tensor_scalar as an array: bits, 64-bit integers or float32; [P, 1] or a scalar."""
    if isinstance(value, NkiTensor):
        column = access.read(value).reshape(parts, 1)
        if bits is not None:
            return unsigned(np.ascontiguousarray(column)).astype(bits)
        return column.astype(np.int64 if integer else np.float32)
    number = 0 if value is None else value
    if bits is not None:
        return np.array(int(number) & ((1 << 8 * bits.itemsize) - 1), bits)
    return np.int64(number) if integer else np.float32(number)


def _stage(op: Op, values: Any, operand: Any, reverse: bool) -> Any:
    if is_unary(op):
        return apply_unary(op, values)
    return apply(op, operand, values) if reverse else apply(op, values, operand)


@instruction
def tensor_scalar(
    core: Core,
    dst: NkiTensor,
    data: NkiTensor,
    op0: Op,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = _engine.unknown,
    name: Any = None,
) -> None:
    """dst = op1(op0(data, operand0), operand1), operands being numbers or [P, 1] tiles."""
    parts = data.shape[0]
    values = access.read(data)
    if values.ndim != 2:
        values = rows(values)
    if is_bit(op0):
        values = unsigned(np.ascontiguousarray(values))
        for op, operand, reverse in ((op0, operand0, reverse0), (op1, operand1, reverse1)):
            if op is not None:
                values = _stage(op, values, _operand(operand, parts, bits=values.dtype, integer=False), reverse)
        write_bits(dst, values)
        return
    tiles = [operand for operand in (operand0, operand1) if isinstance(operand, NkiTensor)]
    integer = bool(tiles) and exact_integers(dst, data, *tiles)
    values = values.astype(np.int64) if integer else values.astype(np.float32, copy=False)
    result = _stage(op0, values, _operand(operand0, parts, bits=None, integer=integer), reverse0)
    if op1 is not None:
        result = _stage(op1, result, _operand(operand1, parts, bits=None, integer=integer), reverse1)
    access.write(dst, wrap(result.astype(np.int64), dst) if integer else result)


@instruction
def scalar_tensor_tensor(
    core: Core,
    dst: NkiTensor,
    data: NkiTensor,
    op0: Op,
    operand0: Any,
    op1: Op,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: Any = None,
) -> None:
    """dst = op1(op0(data, operand0), operand1): operand0 a number or [P, 1] tile, operand1 a whole tile."""
    values = f32_rows(data)
    first = _stage(op0, values, access.scalar(operand0, data.shape[0]), reverse0)
    access.write(dst, _stage(op1, first, f32_rows(operand1), reverse1))


@instruction
def reciprocal(core: Core, dst: NkiTensor, data: NkiTensor, name: Any = None) -> None:
    """dst = 1 / data in float32."""
    access.write(dst, np.float32(1) / access.read_f32(data))
