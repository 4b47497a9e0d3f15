"""Gathers along the free dimension."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import assert_shape, kernel_assert

P = 128


@nki.jit
def gather_by_group(x, index, block=1):
    """Gather blocks of elements; the 16 partitions of a group share their indices.

    Index j of a group lies in its partition j % 16, column j // 16, and is the block's first element.

    Args:
        x: [P, F] in HBM, P a multiple of 16 and at most 128.
        index: [P, k] uint16 in HBM, below F - block + 1.
        block: elements to an index: 1, 2, 4, 8, 16 or 32.

    Returns:
        [P, 16 * k * block] in HBM, dtype of x.
    """
    partitions, length = x.shape
    kernel_assert(partitions % 16 == 0 and partitions <= P, f"{partitions} partitions, a multiple of 16 up to {P}")
    assert_shape(index, (partitions, None), "index")
    count = index.shape[1] * 16
    table = nl.ndarray((partitions, length), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=table, src=x)
    places = nl.ndarray((partitions, index.shape[1]), dtype=nl.uint16, buffer=nl.sbuf)
    nisa.dma_copy(dst=places, src=index)
    found = nl.ndarray((partitions, count * block), dtype=x.dtype, buffer=nl.sbuf)
    nisa.local_gather(dst=found, src_buffer=table, index=places, num_elem_per_idx=block, num_valid_indices=count)
    out = nl.ndarray((partitions, count * block), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=found)
    return out


@nki.jit
def gather_by_partition(x, index):
    """out[p, j] = x[p, index[p, j]].

    Args:
        x: [P, F] in HBM, P at most 128.
        index: [P, k] uint32 in HBM, below F.

    Returns:
        [P, k] in HBM, dtype of x.
    """
    partitions, length = x.shape
    kernel_assert(partitions <= P, f"{partitions} partitions, at most {P}")
    table = nl.ndarray((partitions, length), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=table, src=x)
    places = nl.ndarray(index.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.dma_copy(dst=places, src=index)
    found = nl.ndarray(index.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.nc_n_gather(dst=found, data=table, indices=places)
    out = nl.ndarray(index.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=found)
    return out
