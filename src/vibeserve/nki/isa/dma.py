"""Data movement between HBM and SBUF: copy, transpose, and copy with addition."""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.nki import access
from vibeserve.nki.context import Core
from vibeserve.nki.dtypes import convert, float32
from vibeserve.nki.errors import KernelError
from vibeserve.nki.instruction import SKIPPED, instruction
from vibeserve.nki.isa.enums import dge_mode as _dge
from vibeserve.nki.isa.enums import engine as _engine
from vibeserve.nki.isa.enums import oob_mode as _oob
from vibeserve.nki.tensor import NkiTensor

AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


@instruction
def dma_copy(
    core: Core,
    dst: NkiTensor,
    src: NkiTensor,
    priority: Any = None,
    oob_mode: Any = _oob.error,
    dge_mode: Any = _dge.unknown,
    engine: Any = _engine.unknown,
    name: Any = None,
) -> Any:
    """dst takes src element by element in the order of the views; equal element counts, any shapes; dtypes are cast.

    With `.ap(vector_offset=index)` on src or dst rows are gathered or scattered; `oob_mode.skip` leaves out what an
    index puts out of range.
    """
    skip = oob_mode is _oob.skip
    try:
        values, valid = access.gather(src, skip=skip)
        values = convert(values, src.held(), dst.held())
        if valid is not None:
            return _copy_rows(dst, values, valid)
        access.write(dst, values, skip=skip)
    except access.OutOfRangeError:
        if not skip:
            raise
        return SKIPPED
    return None


def _copy_rows(dst: NkiTensor, values: np.ndarray, valid: np.ndarray) -> Any:
    """Write the lanes whose index was in range; the others stay as they were."""
    rows = access.array(dst)
    if rows.shape != values.shape:
        if rows.shape[0] != values.shape[0]:
            raise KernelError("oob_mode.skip with a dst whose rows are not the index's lanes", operands=repr(dst))
        values = values.reshape(rows.shape)
    rows[valid] = values[valid]
    access.mark_where(dst, valid)
    return SKIPPED


@instruction
def dma_transpose(
    core: Core,
    dst: NkiTensor,
    src: NkiTensor,
    axes: Any = None,
    priority: Any = None,
    dge_mode: Any = _dge.unknown,
    oob_mode: Any = _oob.error,
    name: Any = None,
) -> Any:
    """dst = transpose(src, axes); axes (1,0), (2,1,0) or (3,1,2,0), by rank where None; bits are kept."""
    order = AXES[len(src.shape)] if axes is None else tuple(axes)
    values, _ = access.gather(src, skip=oob_mode is _oob.skip)
    access.write(dst, np.transpose(values, order))


@instruction
def dma_compute(
    core: Core,
    dst: NkiTensor,
    srcs: Any,
    reduce_op: Any,
    scales: Any = None,
    unique_indices: bool = True,
    oob_mode: Any = _oob.error,
    name: Any = None,
) -> Any:
    """dst = the float32 sum of all srcs (up to 16), cast; with a view through an index a read-modify-write of rows."""
    skip = oob_mode is _oob.skip
    if any(tensor.rows is not None for tensor in (dst, *srcs)):
        _expect_rows_modified(dst, srcs)
    total: np.ndarray | None = None
    keep: np.ndarray | None = None
    for source in srcs:
        values, valid = access.gather(source, skip=skip)
        if valid is not None:
            keep = valid
        part = values.astype(np.float32).reshape(dst.shape)
        total = part if total is None else total + part
    assert total is not None
    if keep is not None and dst.rows is None:
        return _copy_rows(dst, convert(total, float32, dst.held()), keep)
    access.write(dst, total, skip=skip)
    return None


def _expect_rows_modified(dst: NkiTensor, srcs: Any) -> None:
    """Rows that an index tile names are added to where they are: two sources, one of them the view that dst is."""
    if len(srcs) == 2 and any(_same_view(dst, source) for source in srcs):
        return
    raise KernelError(
        f"nisa.dma_compute: {len(srcs)} sources with vector_offset", code="S-DMA-RMW",
        rule="two sources, one of them the view that dst is", fix="nisa.dma_compute(dst, [dst, src], nl.add)",
        operands=f"dst={dst!r}, srcs={srcs!r}",
    )  # fmt: skip


def _same_view(one: NkiTensor, other: NkiTensor) -> bool:
    facts = [(t.storage, t.offset, t.shape, t.strides, t.dtype, t.moves) for t in (one, other)]
    if facts[0] != facts[1] or (one.rows is None) != (other.rows is None):
        return False
    return one.rows is None or other.rows is None or _same_view(one.rows.index, other.rows.index)
