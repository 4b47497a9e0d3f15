"""Where the non-zeros of each column are: indices packed to the left, and counts."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, kernel_assert, shard_bounds, transpose_tile

P = 128
STEP = 16  # the instruction works on every 16th partition


@nki.jit
def nonzero_columns(x, first=None, count=0):
    """For each column, the rows of its non-zeros in rising order, then -1; and how many they are.

    Args:
        x: [T, W] float32 or int32 in HBM; columns are split over the cores.
        first: (1, 1) int32 in HBM, the first column to look at, at most W - C; None for 0.
        count: C, the columns to look at, at most 128; 0 for W.

    Returns:
        indices [C, T] int32 and counts [C, 1] int32, in HBM.
    """
    rows, width = x.shape
    columns = count or width
    kernel_assert(columns <= min(P, width), f"{columns} columns, at most {min(P, width)}")
    origin = None
    if first != None:
        origin = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=origin, src=first)
    indices = nl.ndarray((columns, rows), dtype=nl.int32, buffer=nl.shared_hbm)
    counts = nl.ndarray((columns, 1), dtype=nl.int32, buffer=nl.shared_hbm)
    start, last = shard_bounds(columns)
    turned = nl.ndarray((last - start, rows), dtype=nl.float32, buffer=nl.sbuf)
    for tile in TiledRange(rows, P):
        straight = nl.ndarray((tile.size, last - start), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=straight, src=part_of(x, tile, start, last, origin))
        transpose_tile(turned[0 : last - start, tile.start_offset : tile.end_offset], straight, index=tile.index)
    for group in TiledRange(last - start, P // STEP):
        spread = nl.ndarray((P, rows), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=spread, value=0.0)
        for lane in range(group.size):
            source = turned[group.start_offset + lane : group.start_offset + lane + 1, 0:rows]
            nisa.dma_copy(dst=spread[lane * STEP : lane * STEP + 1, 0:rows], src=source)
        packed = nl.ndarray((P, rows + 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.nonzero_with_count(dst=packed, src=spread, index_offset=0, padding_val=-1)
        for lane in range(group.size):
            column = start + group.start_offset + lane
            found = packed[lane * STEP : lane * STEP + 1, 0 : rows + 1]
            nisa.dma_copy(dst=indices[column : column + 1, 0:rows], src=found[0:1, 0:rows])
            nisa.dma_copy(dst=counts[column : column + 1, 0:1], src=found[0:1, rows : rows + 1])
    return indices, counts


def part_of(x, tile, start, last, origin):
    """A tile's rows of the columns from `start` to `last`, moved by the column that `origin` holds."""
    width = x.shape[1]
    if origin == None:
        return x[tile.start_offset : tile.end_offset, start:last]
    pattern = [[width, tile.size], [1, last - start]]
    return x.ap(pattern=pattern, offset=tile.start_offset * width + start, scalar_offset=origin, indirect_dim=1)
