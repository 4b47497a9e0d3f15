"""y = exp(x) over any number of rows."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange

P = 128


@nki.jit
def exp_rows(x):
    """exp of each element; the last tile may be short.

    Args:
        x: [R, C] in HBM, float; a row fits into a partition of SBUF.

    Returns:
        [R, C] in HBM, dtype of x.
    """
    rows, columns = x.shape
    out = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    for tile in TiledRange(rows, P):
        values = nl.ndarray((tile.size, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=values, src=x[tile.start_offset : tile.end_offset, 0:columns])
        nisa.activation(dst=values, op=nl.exp, data=values)
        nisa.dma_copy(dst=out[tile.start_offset : tile.end_offset, 0:columns], src=values)
    return out
