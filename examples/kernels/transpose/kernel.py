"""The transpose of a matrix, through the tensor engine."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, kernel_assert, transpose_tile

P = 128
COLUMNS = 2048


@nki.jit
def transpose(x):
    """x^T: rows are loaded wide, turned in tiles of 128 x 128, and stored as wide rows again.

    Args:
        x: [R, C] in HBM, float.

    Returns:
        [C, R] in HBM, dtype of x, bit for bit.
    """
    kernel_assert(len(x.shape) == 2, f"x has {len(x.shape)} dimensions, expected 2")
    rows, columns = x.shape
    out = nl.ndarray((columns, rows), dtype=x.dtype, buffer=nl.shared_hbm)
    for block in TiledRange(rows, COLUMNS):
        for part in TiledRange(columns, P):
            turned = nl.ndarray((part.size, block.size), dtype=x.dtype, buffer=nl.sbuf)
            for tile in TiledRange(block, P):
                straight = nl.ndarray((tile.size, part.size), dtype=x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(
                    dst=straight, src=x[tile.start_offset : tile.end_offset, part.start_offset : part.end_offset]
                )
                local = tile.start_offset - block.start_offset
                transpose_tile(turned[0 : part.size, local : local + tile.size], straight, index=tile.index)
            nisa.dma_copy(
                dst=out[part.start_offset : part.end_offset, block.start_offset : block.end_offset], src=turned
            )
    return out
