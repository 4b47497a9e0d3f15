"""Layout conversions: transposes through the tensor engine, loads that transpose, folds of long rows."""

from __future__ import annotations

from typing import Any

from vibeserve.nki.lib.binding import nisa, nl
from vibeserve.nki.lib.checks import kernel_assert
from vibeserve.nki.lib.moving import interleave_copy

PARTITIONS = 128


def transpose_tile(dst: Any, src: Any, index: int = 0) -> None:
    """dst = src^T for one tile, through PSUM.

    Args:
        dst: [F, P] in SBUF, F and P at most 128; cast where its dtype differs.
        src: [P, F] in SBUF.
        index: even: the copy out of PSUM runs on the vector engine; odd: on the scalar engine.
    """
    kernel_assert(tuple(dst.shape) == (src.shape[1], src.shape[0]), f"transpose_tile: {src.shape} to {dst.shape}")
    turned = nl.ndarray(dst.shape, dtype=src.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=src, engine=nisa.engine.tensor)
    interleave_copy(dst, turned, index=index)


def load_transposed(dst: Any, src: Any) -> None:
    """Load a matrix from HBM with its columns on the partitions.

    Args:
        dst: [128, ceil(C / 128), R] in SBUF: dst[p, t, r] = src[r, t * 128 + p]. Where C is no multiple of 128, the
            last block's partitions beyond C are left as they are.
        src: [R, C] in HBM; dtype of dst.
    """
    rows, columns = src.shape
    tiles = -(-columns // PARTITIONS)
    kernel_assert(dst.shape[1] == tiles and dst.shape[2] == rows, f"load_transposed: {src.shape} to {dst.shape}")
    for r in range(0, rows, PARTITIONS):
        count = min(PARTITIONS, rows - r)
        straight = nl.ndarray((count, columns), dtype=src.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=straight, src=src[r : r + count, 0:columns])
        for t in range(tiles):
            width = min(PARTITIONS, columns - t * PARTITIONS)
            part = straight[0:count, t * PARTITIONS : t * PARTITIONS + width]
            transpose_tile(dst[0:width, t, r : r + count], part, index=t)


def fold_rows(dst: Any, src: Any, fold: int, fill: float = 0.0) -> None:
    """Spread each row over `fold` partitions: dst[b * fold + f, c] = src[b, f * C + c], the tail filled.

    Args:
        dst: [>= B * fold, C] in SBUF with C >= ceil(N / fold); only the first B * fold partitions are written.
        src: [B, N] in HBM.
        fold: parts of a row.
        fill: the value beyond a row's end, up to ceil(N / fold) columns.
    """
    batch, length = src.shape
    width = -(-length // fold)
    kernel_assert(batch * fold <= dst.shape[0] and width <= dst.shape[1], f"fold_rows: {src.shape} to {dst.shape}")
    if width * fold != length:
        nisa.memset(dst=dst[0 : dst.shape[0], 0:width], value=fill)
    for b in range(batch):
        full = length // width
        if full:
            rows = src[b, 0 : full * width].reshape((full, width))
            nisa.dma_copy(dst=dst[b * fold : b * fold + full, 0:width], src=rows)
        if full * width < length:
            tail = length - full * width
            nisa.dma_copy(
                dst=dst[b * fold + full : b * fold + full + 1, 0:tail], src=src[b : b + 1, full * width : length]
            )


def unfold_rows(dst: Any, src: Any, fold: int) -> None:
    """The reverse of `fold_rows`: dst [B, N] in HBM from src [>= B * fold, C] in SBUF."""
    batch, length = dst.shape
    width = -(-length // fold)
    for b in range(batch):
        full = length // width
        if full:
            rows = dst[b, 0 : full * width].reshape((full, width))
            nisa.dma_copy(dst=rows, src=src[b * fold : b * fold + full, 0:width])
        if full * width < length:
            tail = length - full * width
            nisa.dma_copy(
                dst=dst[b : b + 1, full * width : length], src=src[b * fold + full : b * fold + full + 1, 0:tail]
            )
