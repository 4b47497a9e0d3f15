"""c = a + b, tiled."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape

P = 128
F = 512


def add_tiles(a, b, out):
    """out = a + b, all three [R, C] in HBM, in tiles of 128 x 512."""
    rows, columns = a.shape
    for tile in TiledRange(rows, P):
        span = slice(tile.start_offset, tile.end_offset)
        for part in TiledRange(columns, F):
            place = slice(part.start_offset, part.end_offset)
            left = nl.ndarray((tile.size, part.size), dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=left, src=a[span, place])
            right = nl.ndarray((tile.size, part.size), dtype=b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=right, src=b[span, place])
            total = nl.ndarray((tile.size, part.size), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=total, data1=left, data2=right, op=nl.add)
            nisa.dma_copy(dst=out[span, place], src=total)


@nki.jit
def add(a, b):
    """The sum in a new tensor.

    Args:
        a, b: [R, C] in HBM, float, same dtype.

    Returns:
        a + b, [R, C] in HBM.
    """
    assert_shape(b, a.shape, "b")
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    add_tiles(a, b, out)
    return out


@nki.jit
def add_in_place(a, b):
    """The sum written over the first operand.

    Args:
        a: [R, C] in HBM, float; holds the sum afterwards.
        b: [R, C] in HBM, same dtype.

    Returns:
        a.
    """
    assert_shape(b, a.shape, "b")
    add_tiles(a, b, a)
    return a
