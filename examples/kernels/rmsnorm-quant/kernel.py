"""RMSNorm whose result is quantised to fp8, one scale a row."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, broadcast_row, quantize_rows, rms_norm_rows, shard_bounds

P = 128


@nki.jit
def rmsnorm_quant(x, gamma, eps=1e-6):
    """codes * scale is about x / sqrt(mean(x^2) + eps) * gamma, with scale = the row's largest magnitude / 240.

    Args:
        x: [R, H] in HBM, float; rows are split over the cores.
        gamma: (H,) in HBM, float.
        eps: added to the mean of squares.

    Returns:
        codes [R, H] float8_e4m3 and scales [R, 1] float32, in HBM.
    """
    rows, width = x.shape
    assert_shape(gamma, (width,), "gamma")
    codes = nl.ndarray((rows, width), dtype=nl.float8_e4m3, buffer=nl.shared_hbm)
    scales = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    gamma_rows = nl.ndarray((P, width), dtype=gamma.dtype, buffer=nl.sbuf)
    broadcast_row(gamma_rows, gamma)
    first, last = shard_bounds(rows)
    for tile in TiledRange(last - first, P):
        span = slice(first + tile.start_offset, first + tile.end_offset)
        values = nl.ndarray((tile.size, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=values, src=x[span, 0:width])
        normed = nl.ndarray((tile.size, width), dtype=nl.float32, buffer=nl.sbuf)
        rms_norm_rows(normed, values, gamma_rows, eps=eps)
        tile_codes = nl.ndarray((tile.size, width), dtype=nl.float8_e4m3, buffer=nl.sbuf)
        tile_scales = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        quantize_rows(tile_codes, tile_scales, normed)
        nisa.dma_copy(dst=codes[span, 0:width], src=tile_codes)
        nisa.dma_copy(dst=scales[span, 0:1], src=tile_scales)
    return codes, scales
