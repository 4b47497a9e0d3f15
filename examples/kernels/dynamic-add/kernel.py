"""A sum over as many tiles of rows as a tensor says when the kernel runs."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import assert_shape, kernel_assert, shard_bounds

P = 128


@nki.jit
def dynamic_add(a, b, tiles, out):
    """out[r] = a[r] + b[r] for the first tiles * 128 rows; the others of `out` stay as they are.

    The trip count is loaded into a register; the row where an iteration works is kept in SBUF, where the loop's body
    counts it on. Columns are split over the cores.

    Args:
        a, b: [M, H] in HBM, float.
        tiles: (1, 1) int32 in HBM: tiles of 128 rows, at most M / 128.
        out: [M, H] in HBM, dtype of a.

    Returns:
        out.
    """
    rows, width = a.shape
    kernel_assert(rows % P == 0, f"{rows} rows, a multiple of {P}")
    assert_shape(b, (rows, width), "b")
    assert_shape(tiles, (1, 1), "tiles")
    assert_shape(out, (rows, width), "out")
    first, last = shard_bounds(width)
    count = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=count, src=tiles)
    trips = nisa.register_alloc()
    nisa.register_load(trips, count)
    row = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=row, value=0)

    def rows_from(tensor):
        return tensor.ap(pattern=[[width, P], [1, last - first]], offset=first, scalar_offset=row, indirect_dim=0)

    def body(_):
        left = nl.ndarray((P, last - first), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=rows_from(a))
        right = nl.ndarray((P, last - first), dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=right, src=rows_from(b))
        total = nl.ndarray((P, last - first), dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=total, data1=left, data2=right, op=nl.add)
        nisa.dma_copy(dst=rows_from(out), src=total)
        nisa.tensor_scalar(dst=row, data=row, op0=nl.add, operand0=P)

    nl.fori_loop(0, trips, body)
    return out
