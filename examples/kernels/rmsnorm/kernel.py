"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * g."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, broadcast_row_by_matmul, kernel_assert, rms_norm_rows

P = 128


@nki.jit
def rmsnorm(x, gamma, eps=1e-6):
    """RMSNorm of each row; gamma is put on all partitions by a product with a column of ones.

    Args:
        x: [R, H] in HBM, float.
        gamma: (H,) in HBM, float.
        eps: added to the mean of squares.

    Returns:
        [R, H] in HBM, dtype of x.
    """
    kernel_assert(len(x.shape) == 2, f"x has {len(x.shape)} dimensions, expected 2")
    rows, width = x.shape
    assert_shape(gamma, (width,), "gamma")
    out = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    gamma_row = nl.ndarray((1, width), dtype=gamma.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=gamma_row, src=gamma.reshape((1, width)))
    gamma_rows = nl.ndarray((P, width), dtype=gamma.dtype, buffer=nl.sbuf)
    broadcast_row_by_matmul(gamma_rows, gamma_row)
    for tile in TiledRange(rows, P):
        values = nl.ndarray((tile.size, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=values, src=x[tile.start_offset : tile.end_offset, 0:width])
        normed = nl.ndarray((tile.size, width), dtype=x.dtype, buffer=nl.sbuf)
        rms_norm_rows(normed, values, gamma_rows, eps=eps)
        nisa.dma_copy(dst=out[tile.start_offset : tile.end_offset, 0:width], src=normed)
    return out
