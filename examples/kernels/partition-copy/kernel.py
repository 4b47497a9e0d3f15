"""Partitions copied from any start to any other."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import assert_shape, cross_partition_copy, kernel_assert


@nki.jit
def partition_copy(src, dst, source, goal, count):
    """dst[goal : goal + count] = src[source : source + count] on chip, through shuffles of 32 lanes.

    Args:
        src, dst: [P, F] in HBM, same dtype, P at most 128.
        source, goal, count: first partitions and their number.

    Returns:
        dst with the copied rows, [P, F] in HBM.
    """
    partitions, columns = src.shape
    kernel_assert(partitions <= 128, f"{partitions} partitions, at most 128")
    assert_shape(dst, (partitions, columns), "dst")
    given = nl.ndarray((partitions, columns), dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=given, src=src)
    result = nl.ndarray((partitions, columns), dtype=dst.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=result, src=dst)
    cross_partition_copy(given, result, source, goal, count)
    out = nl.ndarray((partitions, columns), dtype=dst.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result)
    return out
