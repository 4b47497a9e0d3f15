"""The tensor engine: matrix products into PSUM, and transposes.

PSUM accumulates in float32, element by element: the first product written to an element of an allocation replaces what
is there, later ones add, unless `accumulate` says otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.nki import access, overlaps
from vibeserve.nki.context import Core
from vibeserve.nki.dtypes import round_tf32, tfloat32, unpack_x4
from vibeserve.nki.instruction import check_rows, instruction
from vibeserve.nki.isa.elementwise import rows
from vibeserve.nki.isa.enums import engine as _engine
from vibeserve.nki.isa.enums import matmul_perf_mode as _perf
from vibeserve.nki.memory import EMPTY
from vibeserve.nki.tensor import NkiTensor

GROUP = 32


def _raw(tensor: NkiTensor) -> np.ndarray:
    """[K, free] elements of an operand; an index is taken by groups of 32 partitions on this engine."""
    if tensor.lanes is not None:
        return np.take_along_axis(access.lane_base(tensor), access.lane_columns(tensor, GROUP), axis=1)
    return rows(access.read(tensor))


def _operand(tensor: NkiTensor) -> np.ndarray:
    """[K, free] float32 of a matmul operand."""
    values = _raw(tensor)
    if tensor.dtype is tfloat32:
        return round_tf32(values)
    return values if values.dtype == np.float32 else values.astype(np.float32)


@instruction
def nc_matmul(
    core: Core,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: Any = None,
    tile_position: Any = (),
    tile_size: Any = (),
    perf_mode: Any = _perf.none,
    name: Any = None,
) -> None:
    """dst[M, N] (= or +=) stationary[K, M]^T @ moving[K, N], in float32 in PSUM."""
    if is_transpose and core.session.target.number >= 3:
        _transpose_through(core, dst, stationary, moving)
        return
    left, right = _operand(stationary), _operand(moving)
    if perf_mode is _perf.double_row:
        left = left.reshape(left.shape[0] * 2, -1)
        right = right.reshape(right.shape[0] * 2, -1)
    accumulate_into(core, dst, left.T @ right, accumulate)


def _transpose_through(core: Core, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor) -> None:
    """Transpose mode: the operand that is no identity is moved bit by bit."""
    left, right = rows(access.read(stationary)), rows(access.read(moving))
    if _is_identity(right):
        result = left.T
    elif _is_identity(left):
        result = right
    else:
        result = left.astype(np.float32).T @ right.astype(np.float32)
    source = stationary.dtype if _is_identity(right) else moving.dtype
    access.write(dst, result if dst.held() is source else result.astype(np.float32))
    _clear_upper_bytes(dst)
    _note_sum(dst)


def _clear_upper_bytes(dst: NkiTensor) -> None:
    """Transposed bytes land in 2-byte slots, whose upper bytes become 0."""
    if dst.dtype.itemsize != 1 or dst.strides[-1] != 2 or dst.is_indirect():
        return
    upper = dst._view(dst.shape, dst.strides, dst.offset + 1)
    if upper.extent()[1] <= dst.storage.count * dst.storage.dtype.itemsize:
        access.array(upper).view(np.uint8)[...] = 0
        access.mark(upper)


def _is_identity(values: np.ndarray) -> bool:
    count = values.shape[0]
    return values.shape[0] == values.shape[1] and bool(
        np.count_nonzero(values) == count and (np.diagonal(values).astype(np.float32) == 1).all()
    )


def accumulate_into(core: Core, dst: NkiTensor, product: np.ndarray, accumulate: Any) -> None:
    """Write or add a float32 product [M, N] into a PSUM view, by the accumulation rules."""
    storage = dst.storage
    accumulate = None if accumulate is None else bool(accumulate)
    if dst.lanes is not None:
        _scatter_product(dst, product, accumulate)
        return
    if accumulate is False:
        access.write(dst, product)
        _note_sum(dst)
        return
    if storage.overlap is not None and (accumulate is True or storage.sums is not None):
        overlaps.read(core, dst)
    if accumulate is True:
        if storage.state == EMPTY or not access.written(dst):
            storage.poison()
            core.session.report(
                "undefined-accumulate",
                f"accumulate=True onto {storage.label()} where nothing was written",
                detail=f"{dst!r} allocated at {storage.place}",
                code="S-ACCUM-FIRST",
                fix="accumulate=None: the first product overwrites; or accumulate=(k > 0)",
            )
        elif core.session.target.number < 4 and not _has_sums(dst):
            core.session.report(
                "undefined-accumulate",
                f"accumulate=True onto {storage.label()}, which a memset or copy filled",
                detail=f"{dst!r} allocated at {storage.place}",
                code="S-ACCUM-FIRST",
                fix="accumulate=None: the first product overwrites; or accumulate=(k > 0)",
                soft=True,
            )
        access.write(dst, access.read_f32(dst).reshape(product.shape) + product)
        _note_sum(dst)
        return
    sums = storage.sums
    if sums is None:
        access.write(dst, product)
        _note_sum(dst)
        return
    summed = np.ndarray(dst.shape, np.bool_, sums, dst.start(), dst.strides)
    if storage.taken and (dst.offset, dst.shape, dst.strides) in storage.taken and summed.all():
        core.session.report(
            "stale-accumulate",
            f"a product is added to {storage.label()} after it was read: it adds to the old sum",
            detail=f"{dst!r} allocated at {storage.place}",
            fix="a new nl.ndarray for each sum, or accumulate=False for the first product",
            soft=True,
        )
    if summed.all():
        if dst.dtype.itemsize == 4 and dst.shape == product.shape and dst.rows is None and dst.lanes is None:
            target = access.array(dst)
            np.add(target, product, out=target)
        else:
            access.write(dst, access.read_f32(dst).reshape(product.shape) + product)
        return
    if summed.any():
        product = product.reshape(dst.shape)
        product = np.where(summed, access.read_f32(dst) + product, product)
    access.write(dst, product)
    summed[...] = True


def _scatter_product(dst: NkiTensor, product: np.ndarray, accumulate: Any) -> None:
    """The same through an index: column `columns[p, j]` of the indexed tile takes product[p, j]; the last of equals wins."""
    assert dst.lanes is not None
    base, storage = dst.lanes.index[1], dst.storage
    columns = access.lane_columns(dst, GROUP)
    access.keep_unwritten(base)
    values = access.read_f32(base).reshape(base.shape[0], -1).copy()
    if storage.sums is None:
        storage.sums = np.zeros(storage.count, np.bool_)
    seen = np.ndarray(base.shape, np.bool_, storage.sums, base.start(), base.strides)
    summed = seen.reshape(base.shape[0], -1).copy()
    adds = np.take_along_axis(summed, columns, axis=1) if accumulate is None else np.bool_(bool(accumulate))
    product = product.reshape(columns.shape)
    np.put_along_axis(
        values, columns, np.where(adds, np.take_along_axis(values, columns, axis=1) + product, product), axis=1
    )
    np.put_along_axis(summed, columns, True, axis=1)
    access.write(base, values)
    seen[...] = summed.reshape(seen.shape)


def _has_sums(dst: NkiTensor) -> bool:
    """Whether a matmul has written every element of the view."""
    sums = dst.storage.sums
    if sums is None or dst.dtype.itemsize != dst.storage.dtype.itemsize:
        return False
    return bool(np.ndarray(dst.shape, np.bool_, sums, dst.start(), dst.strides).all())


def _note_sum(dst: NkiTensor) -> None:
    storage = dst.storage
    if storage.sums is None:
        storage.sums = np.zeros(storage.count, np.bool_)
    if dst.dtype.itemsize == storage.dtype.itemsize and dst.lanes is None:
        np.ndarray(dst.shape, np.bool_, storage.sums, dst.start(), dst.strides)[...] = True


@instruction
def nc_matmul_mx(
    core: Core,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: Any = None,
    tile_size: Any = None,
    accumulate: Any = None,
    name: Any = None,
) -> None:
    """dst[M, N] (= or +=) the product of microscaled x4 tiles: groups of 8 partitions x 4 elements share a scale; trn3."""
    left = _scaled(core, stationary, stationary_scale)
    right = _scaled(core, moving, moving_scale)
    accumulate_into(core, dst, left.T @ right, accumulate)


def scale_rows(parts: int) -> np.ndarray:
    """The scale tile's partition, from its first, for each group of 8 data partitions: 32 * (i // 4) + i % 4."""
    groups = np.arange(max(1, parts // 8))
    return 32 * (groups // 4) + groups % 4


def _scaled(core: Core, data: NkiTensor, scale: NkiTensor) -> np.ndarray:
    """[4 * K, F] float32: each packed element unpacked and multiplied by its group's power of two."""
    parts = data.shape[0]
    check_rows(core, "nc_matmul_mx", scale, np.minimum(scale_rows(parts), scale.shape[0] - 1))
    values = unpack_x4(_raw(data), data.dtype)
    exponents = np.ascontiguousarray(_raw(scale)).view(np.uint8)
    groups = exponents[np.minimum(scale_rows(parts), exponents.shape[0] - 1)]
    factors = np.exp2(groups.astype(np.float32) - np.float32(127))
    factors = np.where(groups == 255, np.float32(np.nan), factors)
    scaled = values * np.repeat(factors, 8, axis=0)[:parts, :, None]
    return np.ascontiguousarray(scaled.transpose(0, 2, 1)).reshape(parts * 4, -1)


@instruction
def nc_transpose(core: Core, dst: NkiTensor, data: NkiTensor, engine: Any = _engine.unknown, name: Any = None) -> None:
    """dst[F, P] = data[P, F]^T: on the tensor engine into PSUM (128 x 128), on the vector engine up to 32 x 32."""
    values = rows(access.read(data))
    on_tensor = engine is _engine.tensor or (engine is _engine.unknown and dst.buffer.value == "psum")
    if on_tensor and core.session.target.number < 3 and data.dtype.is_float:
        broken = ~np.isfinite(values.astype(np.float32))
        if broken.any():
            values = np.full_like(values, np.nan)
    access.write(dst, values.T)
    if on_tensor and core.session.target.number >= 3:
        _clear_upper_bytes(dst)
    if dst.buffer.value == "psum":
        _note_sum(dst)
