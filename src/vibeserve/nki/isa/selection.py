"""Index patterns, selection, gathering, searching and shuffling."""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.nki import access
from vibeserve.nki.context import Core
from vibeserve.nki.dtypes import FP32_MIN, convert, float32
from vibeserve.nki.errors import KernelError
from vibeserve.nki.instruction import SKIPPED, check_rows, instruction
from vibeserve.nki.isa.elementwise import f32_rows, rows
from vibeserve.nki.isa.enums import reduce_cmd as _cmd
from vibeserve.nki.isa.reductions import Accumulator
from vibeserve.nki.ops import OPS, Op, apply
from vibeserve.nki.registers import VirtualRegister
from vibeserve.nki.tensor import NkiTensor

_MAX = OPS["maximum"]
_EQUAL = OPS["equal"]


def affine(parts: int, pattern: Any, offset: Any, channel_multiplier: int) -> np.ndarray:
    """[P, N] int32 values offset + p * channel_multiplier + sum(step * index), the last pair innermost."""
    start = offset.value() if isinstance(offset, VirtualRegister) else int(offset)
    line = np.zeros(1, np.int64)
    for step, count in pattern:
        line = (line[:, None] + np.arange(int(count), dtype=np.int64) * int(step)).reshape(-1)
    values = start + np.arange(parts, dtype=np.int64)[:, None] * int(channel_multiplier) + line
    return values.astype(np.int32)


@instruction
def iota(
    core: Core, dst: NkiTensor, pattern: Any, offset: Any = 0, channel_multiplier: int = 0, name: Any = None
) -> None:
    """dst[p, ...] = offset + p * channel_multiplier + sum(step * index) in int32, cast."""
    values = affine(dst.shape[0], pattern, offset, channel_multiplier)
    access.write(dst, values if dst.held().name == "int32" else _integers(values, dst))


def _integers(values: np.ndarray, dst: NkiTensor) -> np.ndarray:
    if dst.dtype.is_int and dst.dtype.itemsize == 4:
        return values.astype(np.int64).clip(0, None).astype(np.uint32)
    return values.astype(np.float32)


@instruction
def affine_select(
    core: Core,
    dst: NkiTensor,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: Any,
    cmp_op: Op = _EQUAL,
    offset: Any = 0,
    name: Any = None,
) -> None:
    """dst = on_true_tile where cmp_op(affine value, 0), else on_false_value."""
    chosen = apply(cmp_op, affine(dst.shape[0], pattern, offset, channel_multiplier), np.int32(0)) != 0
    values = rows(convert(access.read(on_true_tile), on_true_tile.held(), dst.held()))
    other = convert(np.full((1, 1), on_false_value, np.float32), float32, dst.held())
    access.write(dst, np.where(chosen, values, other).astype(values.dtype))


@instruction
def range_select(
    core: Core,
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Op,
    comp_op1: Op,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: Any = _cmd.reset_reduce,
    reduce_res: Any = None,
    reduce_op: Any = _MAX,
    range_start: int = 0,
    on_false_value: Any = FP32_MIN,
    name: Any = None,
) -> None:
    """dst = on_true_tile where comp_op0(i, bound0) and comp_op1(i, bound1) for i = range_start + position, else FP32_MIN."""
    values = f32_rows(on_true_tile)
    parts = values.shape[0]
    position = np.float32(range_start) + np.arange(values.shape[1], dtype=np.float32)
    low, high = access.scalar(bound0, parts), access.scalar(bound1, parts)
    chosen = (apply(comp_op0, position, low) != 0) & (apply(comp_op1, position, high) != 0)
    result = np.where(chosen, values, np.float32(FP32_MIN))
    accumulator = Accumulator(core, "vector", parts, on_true_tile.start_partition())
    accumulator.run(reduce_cmd, _MAX, result)
    access.write(dst, result)
    if reduce_res is not None:
        access.write(reduce_res, accumulator.result())


@instruction
def select_reduce(
    core: Core,
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: Any = None,
    reduce_cmd: Any = _cmd.idle,
    reduce_op: Any = _MAX,
    reverse_pred: bool = False,
    name: Any = None,
) -> None:
    """dst = on_true where predicate, else on_false; reduce_res = its maximum over the free dimensions."""
    chosen = rows(access.read(predicate)) != 0
    if reverse_pred:
        chosen = ~chosen
    result = np.where(chosen, f32_rows(on_true), access.scalar(on_false, predicate.shape[0]))
    accumulator = Accumulator(core, "vector", predicate.shape[0], predicate.start_partition())
    accumulator.run(reduce_cmd, _MAX, result)
    access.write(dst, result)
    if reduce_res is not None:
        access.write(reduce_res, accumulator.result())


@instruction
def sequence_bounds(core: Core, dst: NkiTensor, segment_ids: NkiTensor, name: Any = None) -> None:
    """For each position the [start, end) of its run of equal ids; padding (id 0) gives start n and end -1."""
    ids = access.read(segment_ids).reshape(-1)
    count = ids.size
    edges = np.flatnonzero(np.diff(ids)) + 1
    starts = np.concatenate([[0], edges])
    ends = np.concatenate([edges, [count]])
    lengths = ends - starts
    padding = ids == 0
    low = np.where(padding, count, np.repeat(starts, lengths))
    high = np.where(padding, -1, np.repeat(ends, lengths))
    access.write(dst, np.stack([low, high]).astype(dst.held().dtype))


@instruction
def local_gather(
    core: Core,
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: Any = None,
    name: Any = None,
) -> Any:
    """Each group of 16 partitions gathers runs of `num_elem_per_idx` elements at the offsets its index rows hold."""
    source, indexes = rows(access.read(src_buffer)), rows(access.read(index)).astype(np.int64)
    parts = source.shape[0]
    count = indexes.size // (parts // 16) if num_valid_indices is None else int(num_valid_indices)
    access.keep_unwritten(dst)
    target = rows(access.read(dst)).copy()
    if num_valid_indices is None or target.shape[1] != count * num_elem_per_idx:
        core.session.report(
            "gather-arguments",
            f"nisa.local_gather: {count} indices of {num_elem_per_idx} elements into {target.shape[1]} in a partition",
            code="V6-GATHER-ARGS", detail="the device honours num_elem_per_idx only where dst holds just their product",
            fix="say num_valid_indices and num_elem_per_idx, and size dst to their product", soft=True,
        )  # fmt: skip
    run = np.arange(num_elem_per_idx)
    for first in range(0, parts, 16):
        offsets = indexes[first : first + 16].flatten(order="F")[:count]
        places = (offsets[:, None] + run).reshape(-1)
        if places.size and (places.min() < 0 or places.max() >= source.shape[1]):
            raise KernelError(
                f"nisa.local_gather: index {places.max()} outside of {source.shape[1]} elements", code="NCC_EVRF056",
                rule="0 <= index < elements in a partition",
            )  # fmt: skip
        taken = source[first : first + 16][:, places]
        target[first : first + 16, : min(taken.shape[1], target.shape[1])] = taken[:, : target.shape[1]]
    access.write(dst, target)


@instruction
def nc_n_gather(core: Core, dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: Any = None) -> None:
    """dst[p, j] = data[p, indices[p, j]] over flattened free dimensions."""
    source, places = rows(access.read(data)), rows(access.read(indices)).astype(np.int64)
    if places.size and places.max() >= source.shape[1]:
        raise KernelError(
            f"nisa.nc_n_gather: index {places.max()} outside of {source.shape[1]} elements", code="NCC_EVRF056",
            rule="0 <= index < elements in a partition",
        )  # fmt: skip
    access.write(dst, np.take_along_axis(source, places, axis=1))


@instruction
def max8(core: Core, dst: NkiTensor, src: NkiTensor, name: Any = None) -> None:
    """The 8 largest values of each partition, descending."""
    values = f32_rows(src)
    access.write(dst, -np.sort(-values, axis=1)[:, :8])


def first_matches(values: np.ndarray, wanted: np.ndarray, order: range) -> np.ndarray:
    """[P, 8] positions: each wanted value, in `order`, takes its first position not yet taken; -1 where there is none."""
    parts = values.shape[0]
    found = np.full((parts, 8), -1, np.int64)
    taken = np.zeros(values.shape, np.bool_)
    lanes = np.arange(parts)
    for k in order:
        hits = (values == wanted[:, k : k + 1]) & ~taken
        any_hit = hits.any(axis=1)
        at = hits.argmax(axis=1)
        found[any_hit, k] = at[any_hit]
        taken[lanes[any_hit], at[any_hit]] = True
    return found


@instruction
def nc_find_index8(core: Core, dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: Any = None) -> None:
    """The position of each of 8 values in its partition; repeated values walk through occurrences; else all ones."""
    found = first_matches(f32_rows(data), f32_rows(vals), range(8))
    access.write(dst, found.astype(dst.held().dtype))


@instruction
def nc_match_replace8(
    core: Core, dst: NkiTensor, data: NkiTensor, vals: NkiTensor, imm: Any, dst_idx: Any = None, name: Any = None
) -> None:
    """dst = data with the first match of each of 8 values replaced by imm (from the last value to the first)."""
    values = rows(access.read(data)).copy()
    found = first_matches(values.astype(np.float32), f32_rows(vals), range(7, -1, -1))
    lanes, which = np.nonzero(found >= 0)
    values[lanes, found[lanes, which]] = convert(np.array([imm], np.float32), float32, data.held())[0]
    access.write(dst, convert(values, data.held(), dst.held()))
    if dst_idx is not None:
        access.write(dst_idx, found.astype(dst_idx.held().dtype))


@instruction
def nc_stream_shuffle(core: Core, dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: Any = None) -> Any:
    """In each block of 32 partitions dst[i] = src[mask[i]]; 255 leaves dst[i] as it is."""
    blocks = -(-dst.shape[0] // 32)
    lanes = [32 * block + int(lane) for block in range(blocks) for lane in set(shuffle_mask) if lane != 255]
    check_rows(core, "nc_stream_shuffle", src, [lane for lane in lanes if lane < src.shape[0]])
    source = rows(access.read(src))
    access.keep_unwritten(dst)
    target = access.array(dst)
    flat = target.reshape(target.shape[0], -1) if target.ndim != 2 else target
    parts = flat.shape[0]
    out = flat.copy()
    touched = np.zeros(parts, np.bool_)
    for block in range(blocks):
        for lane, origin in enumerate(shuffle_mask):
            to = block * 32 + lane
            if origin == 255 or to >= parts:
                continue
            take = block * 32 + int(origin)
            if take < source.shape[0]:
                out[to] = source[take]
                touched[to] = True
            elif source.shape[0] == 1 and origin == 0:
                out[to] = source[0]
                touched[to] = True
    access.write(dst, out)
    access.mark_where(dst, touched)
    return SKIPPED


@instruction
def nonzero_with_count(
    core: Core, dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1, name: Any = None
) -> Any:
    """On partitions 0, 16, ..., 112: the positions of non-zeros, padding, and at the end their count."""
    check_rows(core, "nonzero_with_count", src, range(0, src.shape[0], 16))
    values = rows(access.read(src))
    access.keep_unwritten(dst)
    target = rows(access.read(dst)).copy()
    for lane in range(0, values.shape[0], 16):
        found = np.flatnonzero(values[lane] != 0)
        row = np.full(values.shape[1] + 1, padding_val, np.int32)
        row[: found.size] = found + index_offset
        row[-1] = found.size
        target[lane] = row
    access.write(dst, target)
    touched = np.zeros(values.shape[0], np.bool_)
    touched[::16] = True
    access.mark_where(dst, touched)
    return SKIPPED


@instruction
def topk(core: Core, val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: Any = None) -> None:
    """Per group of 16 partitions (element e at partition e % 16, column e // 16): the K largest of n, ascending."""
    values = f32_rows(src)
    parts = values.shape[0]
    count = val_dst.size // val_dst.shape[0]
    best = np.empty((parts, count), np.float32)
    where = np.empty((parts, count), np.int64)
    for first in range(0, parts, 16):
        snake = values[first : first + 16].T.reshape(-1)[:n]
        order = np.argsort(-snake, kind="stable")[:count][::-1]
        best[first : first + 16] = snake[order]
        where[first : first + 16] = order
    access.write(val_dst, best)
    access.write(idx_dst, where.astype(idx_dst.held().dtype))
