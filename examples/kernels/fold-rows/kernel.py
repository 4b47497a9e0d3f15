"""Long rows spread over several partitions, and put together again."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import div_ceil, fold_rows, kernel_assert, shard_bounds, unfold_rows


@nki.jit
def fold(x, parts=4, fill=-1.0):
    """Each row in `parts` rows of ceil(N / parts), the tail of the last one filled.

    Args:
        x: [B, N] in HBM; B * parts is at most 128 on each core. The batch is split over the cores.
        parts: rows that one becomes.
        fill: what stands behind a row's end.

    Returns:
        [B * parts, ceil(N / parts)] in HBM, dtype of x.
    """
    batch, length = x.shape
    width = div_ceil(length, parts)
    out = nl.ndarray((batch * parts, width), dtype=x.dtype, buffer=nl.shared_hbm)
    first, last = shard_bounds(batch)
    kernel_assert((last - first) * parts <= 128, f"{last - first} rows in {parts} parts, at most 128 partitions")
    if last > first:
        tile = nl.ndarray(((last - first) * parts, width), dtype=x.dtype, buffer=nl.sbuf)
        fold_rows(tile, x[first:last, 0:length], parts, fill=fill)
        nisa.dma_copy(dst=out[first * parts : last * parts, 0:width], src=tile)
    return out


@nki.jit
def unfold(x, length, parts=4):
    """The reverse of `fold`.

    Args:
        x: [B * parts, C] in HBM with C >= ceil(length / parts); B * parts is at most 128.
        length: N, the length of a whole row.
        parts: rows that make one.

    Returns:
        [B, length] in HBM, dtype of x.
    """
    rows, width = x.shape
    kernel_assert(rows % parts == 0 and rows <= 128, f"{rows} rows in parts of {parts}")
    kernel_assert(width >= div_ceil(length, parts), f"{width} columns hold no row of {length} in {parts} parts")
    out = nl.ndarray((rows // parts, length), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    unfold_rows(out, tile, parts)
    return out
