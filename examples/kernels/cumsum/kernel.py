"""Cumulative sum along the last axis."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, kernel_assert

P = 128
F = 2048


@nki.jit
def cumsum(x):
    """Running sum along the last axis: a scan a tile, the last column carried to the next; float32 state.

    Args:
        x: up to three dimensions in HBM, float. Where it runs on two cores, both write the same values.

    Returns:
        The shape and dtype of x.
    """
    kernel_assert(1 <= len(x.shape) <= 3, f"x has {len(x.shape)} dimensions, expected 1 to 3")
    columns = x.shape[-1]
    rows = 1
    for size in x.shape[:-1]:
        rows = rows * size
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    source, target = x.reshape((rows, columns)), out.reshape((rows, columns))
    ones = nl.ndarray((P, min(F, columns)), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    for tile in TiledRange(rows, P):
        carry = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=carry, value=0.0)
        for part in TiledRange(columns, F):
            place = slice(part.start_offset, part.end_offset)
            values = nl.ndarray((tile.size, part.size), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=values, src=source[tile.start_offset : tile.end_offset, place])
            sums = nl.ndarray((tile.size, part.size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor_scan(
                dst=sums,
                data0=ones[0 : tile.size, 0 : part.size],
                data1=values,
                initial=carry,
                op0=nl.multiply,
                op1=nl.add,
            )
            nisa.tensor_copy(dst=carry, src=sums[0 : tile.size, part.size - 1 : part.size])
            nisa.tensor_copy(dst=values, src=sums)
            nisa.dma_copy(dst=target[tile.start_offset : tile.end_offset, place], src=values)
    return out
