"""Reductions, running reductions and scans."""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.nki import access
from vibeserve.nki.context import Core
from vibeserve.nki.instruction import instruction
from vibeserve.nki.isa.elementwise import _stage, f32_rows, rows, write_bits
from vibeserve.nki.isa.enums import reduce_cmd as _cmd
from vibeserve.nki.ops import OPS, Op, apply, is_bit, unsigned
from vibeserve.nki.tensor import NkiTensor

LANES = 128


def reduce_rows(op: Op, values: np.ndarray) -> np.ndarray:
    """[P] reduction of [P, N] by an operator."""
    if op.name == "subtract":
        return values[:, 0] - values[:, 1:].sum(axis=1, dtype=values.dtype)
    if op.name in ("abs_max", "abs_min"):
        pick = np.argmax if op.name == "abs_max" else np.argmin
        at = pick(np.abs(values), axis=1)
        return np.take_along_axis(values, at[:, None], axis=1)[:, 0]
    result = op.ufunc.reduce(values, axis=1)
    return result.astype(np.float32) if result.dtype == np.bool_ else result  # type: ignore[no-any-return]


@instruction
def tensor_reduce(
    core: Core,
    dst: NkiTensor,
    op: Op,
    data: NkiTensor,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: Any = None,
) -> None:
    """dst = op over the trailing free axes of data, in float32 (bit operators on raw bits)."""
    axes = {(a + data.ndim) % data.ndim for a in ([axis] if isinstance(axis, int) else axis)}
    kept = 1
    for size in data.shape[: min(axes)]:
        kept *= size
    if is_bit(op):
        bits = unsigned(np.ascontiguousarray(access.read(data))).reshape(kept, -1)
        write_bits(dst, reduce_rows(op, bits))
        return
    result = reduce_rows(op, access.read_f32(data).reshape(kept, -1))
    access.write(dst, -result if negate else result)


@instruction
def tensor_partition_reduce(core: Core, dst: NkiTensor, op: Op, data: NkiTensor, name: Any = None) -> None:
    """dst[0, ...] = op over the partitions of data: add, average, maximum, bitwise_or, bitwise_and."""
    if is_bit(op):
        write_bits(dst, op.ufunc.reduce(unsigned(np.ascontiguousarray(rows(access.read(data)))), axis=0))
        return
    values = f32_rows(data)
    match op.name:
        case "add":
            result = values.sum(axis=0, dtype=np.float32)
        case "average":
            result = values.sum(axis=0, dtype=np.float32) / np.float32(values.shape[0])
        case _:
            result = values.max(axis=0)
    access.write(dst, result)


class Accumulator:
    """An engine's accumulator: one float32 for each of 128 lanes."""

    def __init__(self, core: Core, engine: str, parts: int, start: int):
        registers = core.accumulators.get(engine)
        if registers is None:
            registers = core.accumulators[engine] = (np.zeros(LANES, np.float32), np.zeros(LANES, np.bool_))
        self.lanes, self.known = (each[start : start + parts] for each in registers)
        self.core, self.engine = core, engine

    def run(self, command: Any, op: Op, values: np.ndarray, initial: Any = None) -> None:
        """Apply a reduce_cmd: [P, N] values are reduced by `op` into the lanes."""
        if command is _cmd.idle:
            return
        if command is _cmd.reduce:
            self._expect_known()
        self.known[...] = True
        if command is _cmd.reset:
            self.lanes[...] = op.identity
            return
        partial = reduce_rows(op, values)
        if command is _cmd.reset_reduce:
            self.lanes[...] = partial
        elif command is _cmd.load_reduce:
            start = np.asarray(initial, np.float32).reshape(-1)
            self.lanes[...] = apply(op, np.broadcast_to(start, partial.shape), partial)
        else:
            self.lanes[...] = apply(op, self.lanes, partial)

    def set(self, values: Any) -> None:
        """Load the lanes."""
        self.known[...] = True
        self.lanes[...] = values

    def result(self) -> np.ndarray:
        """What reduce_res receives: a copy of the lanes."""
        self._expect_known()
        return self.lanes.copy()

    def _expect_known(self) -> None:
        """Report lanes that nothing in this kernel has set: the device keeps what an earlier kernel left in them."""
        if not self.known.all():
            self.core.session.report(
                "stale-accumulator",
                f"the accumulator of the {self.engine} engine is taken before anything in this kernel set it (0 here)",
                code="NKI-ACCUMULATOR",
                fix="reduce_cmd=nisa.reduce_cmd.reset_reduce for the first of a group, .reduce for the others",
            )


def reduction_named(op: Any) -> Op:
    """A reduction operator, nl.max and nl.min taken for maximum and minimum."""
    return OPS[{"max": "maximum", "min": "minimum"}.get(op.name, op.name)]


@instruction
def tensor_scalar_reduce(
    core: Core,
    dst: NkiTensor,
    data: NkiTensor,
    op0: Op,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Any = None,
    reverse0: bool = False,
    reduce_cmd: Any = _cmd.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: Any = None,
) -> None:
    """dst = op0(data, operand0), and reduce_res = reduce_op over its free dimensions (from the accumulator)."""
    values = _stage(op0, f32_rows(data), access.scalar(0 if operand0 is None else operand0, data.shape[0]), reverse0)
    accumulator = Accumulator(core, "vector", data.shape[0], data.start_partition())
    accumulator.run(reduce_cmd, reduction_named(reduce_op), values, reduce_init)
    access.write(dst, values)
    if reduce_res is not None:
        access.write(reduce_res, -accumulator.result() if reduce_res_negate else accumulator.result())


@instruction
def tensor_scalar_cumulative(
    core: Core,
    dst: NkiTensor,
    src: NkiTensor,
    op0: Op,
    op1: Op,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = _cmd.reset_reduce,
    name: Any = None,
) -> None:
    """acc = op1(op0(src[i], imm0), acc) along the free dimensions; dst[i] = acc."""
    parts = src.shape[0]
    values = _stage(op0, f32_rows(src), access.scalar(imm0, parts), False)
    accumulator = Accumulator(core, "vector", parts, src.start_partition())
    if reduce_cmd is _cmd.load_reduce:
        accumulator.set(np.broadcast_to(np.asarray(access.scalar(imm1, parts)).reshape(-1), (parts,)))
    elif reduce_cmd is not _cmd.reduce:
        accumulator.set(op1.identity)
    state = accumulator.result()
    out = np.empty_like(values)
    if op1.name == "add":
        np.cumsum(
            np.concatenate([state[:, None], values], axis=1),
            axis=1,
            dtype=np.float32,
            out=(both := np.empty((parts, values.shape[1] + 1), np.float32)),
        )
        out = both[:, 1:]
        state = out[:, -1]
    else:
        for i in range(values.shape[1]):
            state = apply(op1, values[:, i], state)
            out[:, i] = state
    accumulator.lanes[...] = state
    access.write(dst, out)


@instruction
def tensor_tensor_scan(
    core: Core,
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Op,
    op1: Op,
    reverse0: bool = False,
    reverse1: bool = False,
    name: Any = None,
) -> None:
    """r[i] = op1(op0(data0[i], r[i-1]), data1[i]) along the free dimensions, from `initial`; the state is float32."""
    parts = data0.shape[0]
    first: Any = f32_rows(data0).T
    second: Any = f32_rows(data1).T
    state = np.broadcast_to(np.asarray(access.scalar(initial, parts), np.float32).reshape(-1), (parts,)).astype(
        np.float32
    )
    out = np.empty(first.shape, np.float32)
    if op0.name == "multiply" and op1.name == "add":
        first, second = np.ascontiguousarray(first), np.ascontiguousarray(second)
        for i in range(out.shape[0]):
            row = out[i]
            np.multiply(first[i], state, out=row)
            np.add(row, second[i], out=row)
            state = row
    else:
        for i in range(out.shape[0]):
            step = apply(op0, state, first[i]) if reverse0 else apply(op0, first[i], state)
            state = apply(op1, second[i], step) if reverse1 else apply(op1, step, second[i])
            out[i] = state
    access.write(dst, np.ascontiguousarray(out.T))


@instruction
def bn_stats(core: Core, dst: NkiTensor, data: NkiTensor, name: Any = None) -> None:
    """[count, mean, variance * count] of the even positions, then of the odd ones; at most 512 elements."""
    values = f32_rows(data)
    out = np.zeros((values.shape[0], 6), np.float32)
    for half in range(2):
        part = values[:, half::2]
        if part.shape[1]:
            mean = part.mean(axis=1, dtype=np.float32)
            out[:, 3 * half] = part.shape[1]
            out[:, 3 * half + 1] = mean
            out[:, 3 * half + 2] = np.square(part - mean[:, None]).sum(axis=1, dtype=np.float32)
    access.write(dst, out)


@instruction
def bn_aggr(core: Core, dst: NkiTensor, data: NkiTensor, name: Any = None) -> None:
    """[mean, population variance] out of (count, mean, variance * count) triples."""
    triples = f32_rows(data).reshape(data.shape[0], -1, 3)
    count, mean, spread = triples[..., 0], triples[..., 1], triples[..., 2]
    total = count.sum(axis=1)
    all_mean = (count * mean).sum(axis=1) / total
    variance = (spread + count * np.square(mean - all_mean[:, None])).sum(axis=1) / total
    access.write(dst, np.stack([all_mean, variance], axis=1))
