"""Softmax along the last axis."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, kernel_assert

P = 128


@nki.jit
def softmax(x):
    """Softmax of each row: one pass over HBM, the sum fused into the exponential.

    Args:
        x: [R, C] in HBM, float; a row fits into a partition of SBUF.

    Returns:
        [R, C] in HBM, dtype of x.
    """
    kernel_assert(len(x.shape) == 2, f"x has {len(x.shape)} dimensions, expected 2")
    rows, columns = x.shape
    out = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    for tile in TiledRange(rows, P):
        values = nl.ndarray((tile.size, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=values, src=x[tile.start_offset : tile.end_offset, 0:columns])
        lowest = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=lowest, op=nl.maximum, data=values, axis=1, negate=True)
        powers = nl.ndarray((tile.size, columns), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(
            dst=powers,
            op=nl.exp,
            data=values,
            bias=lowest,
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        inverse = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=inverse, data=total)
        nisa.tensor_scalar(dst=values, data=powers, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=out[tile.start_offset : tile.end_offset, 0:columns], src=values)
    return out
