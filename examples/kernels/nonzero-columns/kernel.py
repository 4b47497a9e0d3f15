"""Where the non-zeros of each column are: indices packed to the left, and counts."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, kernel_assert, shard_bounds, transpose_tile

P = 128
STEP = 16  # the instruction works on every 16th partition


@nki.jit
def nonzero_columns(x):
    """For each column, the rows of its non-zeros in rising order, then -1; and how many they are.

    Args:
        x: [T, C] float32 in HBM, C at most 128; columns are split over the cores.

    Returns:
        indices [C, T] int32 and counts [C, 1] int32, in HBM.
    """
    rows, columns = x.shape
    kernel_assert(columns <= P, f"{columns} columns, at most {P}")
    indices = nl.ndarray((columns, rows), dtype=nl.int32, buffer=nl.shared_hbm)
    counts = nl.ndarray((columns, 1), dtype=nl.int32, buffer=nl.shared_hbm)
    first, last = shard_bounds(columns)
    turned = nl.ndarray((last - first, rows), dtype=x.dtype, buffer=nl.sbuf)
    for tile in TiledRange(rows, P):
        straight = nl.ndarray((tile.size, last - first), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=straight, src=x[tile.start_offset : tile.end_offset, first:last])
        transpose_tile(turned[0 : last - first, tile.start_offset : tile.end_offset], straight, index=tile.index)
    for group in TiledRange(last - first, P // STEP):
        spread = nl.ndarray((P, rows), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=spread, value=0.0)
        for lane in range(group.size):
            source = turned[group.start_offset + lane : group.start_offset + lane + 1, 0:rows]
            nisa.dma_copy(dst=spread[lane * STEP : lane * STEP + 1, 0:rows], src=source)
        packed = nl.ndarray((P, rows + 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.nonzero_with_count(dst=packed, src=spread, index_offset=0, padding_val=-1)
        for lane in range(group.size):
            column = first + group.start_offset + lane
            found = packed[lane * STEP : lane * STEP + 1, 0 : rows + 1]
            nisa.dma_copy(dst=indices[column : column + 1, 0:rows], src=found[0:1, 0:rows])
            nisa.dma_copy(dst=counts[column : column + 1, 0:1], src=found[0:1, rows : rows + 1])
    return indices, counts
