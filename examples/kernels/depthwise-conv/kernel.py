"""Depthwise 1-D convolution with three taps."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape

P = 128
F = 2048
TAPS = 3


@nki.jit
def depthwise_conv(x, w):
    """y[n, c, 0, i] = sum over j of w[c, 0, 0, j] x[n, c, 0, i + j - 1], zero outside.

    Args:
        x: [N, C, 1, W] in HBM, float.
        w: [C, 1, 1, 3] in HBM, float.

    Returns:
        [N, C, 1, W] in HBM, dtype of x.
    """
    batch, channels, _, width = x.shape
    assert_shape(w, (channels, 1, 1, TAPS), "w")
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for tile in TiledRange(channels, P):
        span = slice(tile.start_offset, tile.end_offset)
        taps = nl.ndarray((tile.size, TAPS), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=taps, src=w[span].reshape((tile.size, TAPS)))
        for item in range(batch):
            for part in TiledRange(width, F):
                values = with_edges(x[item, span, 0, 0:width], part)
                total = nl.ndarray((tile.size, part.size), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(
                    dst=total,
                    data=values[0 : tile.size, 0 : part.size],
                    op0=nl.multiply,
                    operand0=taps[0 : tile.size, 0:1],
                )
                for tap in range(1, TAPS):
                    nisa.scalar_tensor_tensor(
                        dst=total,
                        data=values[0 : tile.size, tap : tap + part.size],
                        op0=nl.multiply,
                        operand0=taps[0 : tile.size, tap : tap + 1],
                        op1=nl.add,
                        operand1=total,
                    )
                result = nl.ndarray((tile.size, part.size), dtype=x.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=result, src=total)
                nisa.dma_copy(dst=out[item, span, 0, part.start_offset : part.end_offset], src=result)
    return out


def with_edges(x, part):
    """Columns `part` of x [C, W] and one more on both sides, in SBUF; zero beyond the ends of the row."""
    channels, width = x.shape
    tile = nl.ndarray((channels, part.size + 2), dtype=x.dtype, buffer=nl.sbuf)
    first, last = max(0, part.start_offset - 1), min(width, part.end_offset + 1)
    if part.start_offset == 0:
        nisa.memset(dst=tile[0:channels, 0:1], value=0.0)
    if part.end_offset == width:
        nisa.memset(dst=tile[0:channels, part.size + 1 : part.size + 2], value=0.0)
    start = first - part.start_offset + 1
    nisa.dma_copy(dst=tile[0:channels, start : start + last - first], src=x[0:channels, first:last])
    return tile
