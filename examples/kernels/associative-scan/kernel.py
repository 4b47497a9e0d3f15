"""The linear recurrence h[t] = a[t] * h[t-1] + b[t], along the last axis."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape

P = 128
F = 2048


@nki.jit
def associative_scan(a, b):
    """h[t] = a[t] * h[t-1] + b[t] from h = 0, one scan instruction a tile; the last state starts the next tile.

    Args:
        a: [R, T] in HBM, float: the decay.
        b: [R, T] in HBM, float: the input.

    Returns:
        h, [R, T] in HBM, dtype of a.
    """
    rows, steps = a.shape
    assert_shape(b, (rows, steps), "b")
    out = nl.ndarray((rows, steps), dtype=a.dtype, buffer=nl.shared_hbm)
    for tile in TiledRange(rows, P):
        span = slice(tile.start_offset, tile.end_offset)
        state = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=state, value=0.0)
        for part in TiledRange(steps, F):
            place = slice(part.start_offset, part.end_offset)
            decay = nl.ndarray((tile.size, part.size), dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=decay, src=a[span, place])
            drive = nl.ndarray((tile.size, part.size), dtype=b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=drive, src=b[span, place])
            states = nl.ndarray((tile.size, part.size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor_scan(dst=states, data0=decay, data1=drive, initial=state, op0=nl.multiply, op1=nl.add)
            nisa.tensor_copy(dst=state, src=states[0 : tile.size, part.size - 1 : part.size])
            nisa.tensor_copy(dst=decay, src=states)
            nisa.dma_copy(dst=out[span, place], src=decay)
    return out


@nki.jit
def scan_sum(x, dtype=nl.float32):
    """The running sum as a recurrence with a decay of one.

    Args:
        x: [R, T] in HBM, float.
        dtype: of the decay's ones and of the states as they are kept.

    Returns:
        [R, T] in HBM, dtype of x.
    """
    rows, steps = x.shape
    out = nl.ndarray((rows, steps), dtype=x.dtype, buffer=nl.shared_hbm)
    for tile in TiledRange(rows, P):
        values = nl.ndarray((tile.size, steps), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=values, src=x[tile.start_offset : tile.end_offset, 0:steps])
        ones = nl.ndarray((tile.size, steps), dtype=dtype, buffer=nl.sbuf)
        nisa.memset(dst=ones, value=1.0)
        sums = nl.ndarray((tile.size, steps), dtype=dtype, buffer=nl.sbuf)
        nisa.tensor_tensor_scan(dst=sums, data0=ones, data1=values, initial=0.0, op0=nl.multiply, op1=nl.add)
        nisa.dma_copy(dst=out[tile.start_offset : tile.end_offset, 0:steps], src=sums)
    return out
