"""1-D convolution over channels, with stride, dilation, padding, bias and activation."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert, shard_bounds

P = 128
N = 512


@nki.jit
def conv1d(x, w, bias, stride=1, dilation=1, left=0, right=0, relu=False):
    """y[b, o, i] = act(bias[o] + sum over c, j of w[j, c, o] x[b, c, i * stride + j * dilation - left]).

    Args:
        x: [B, Cin, L] in HBM, float; a padded row fits into a partition.
        w: [K, Cin, Cout] in HBM, same dtype.
        bias: (Cout,) in HBM, float.
        stride, dilation: steps of the output and of the taps.
        left, right: zeros before and after the row.
        relu: apply max(0, y).

    Returns:
        [B, Cout, L'] in HBM, dtype of x. Output channels are split over the cores.
    """
    batch, channels, length = x.shape
    taps, _, filters = w.shape
    assert_shape(w, (taps, channels, filters), "w")
    assert_shape(bias, (filters,), "bias")
    columns = (length + left + right - dilation * (taps - 1) - 1) // stride + 1
    kernel_assert(columns >= 1, f"no output from {length} + {left} + {right} columns and {taps} taps")
    out = nl.ndarray((batch, filters, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    weights = []
    for c in TiledRange(channels, P):
        tile = nl.ndarray((c.size, taps, filters), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=w.permute((1, 0, 2))[c.start_offset : c.end_offset])
        weights.append(tile)
    first, last = shard_bounds(filters)
    for item in range(batch):
        rows = []
        for c in TiledRange(channels, P):
            rows.append(padded_row(x[item, c.start_offset : c.end_offset], left, right))
        for o in TiledRange(last - first, P):
            span = slice(first + o.start_offset, first + o.end_offset)
            offset = nl.ndarray((o.size, 1), dtype=bias.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=offset, src=bias[span].reshape((o.size, 1)))
            for part in TiledRange(columns, N):
                product = nl.ndarray((o.size, part.size), dtype=nl.float32, buffer=nl.psum)
                for tap in range(taps):
                    start = part.start_offset * stride + tap * dilation
                    for c in range(len(rows)):
                        nisa.nc_matmul(
                            dst=product,
                            stationary=weights[c][:, tap, span],
                            moving=rows[c].slice(1, start, start + (part.size - 1) * stride + 1, stride),
                        )
                result = nl.ndarray((o.size, part.size), dtype=x.dtype, buffer=nl.sbuf)
                nisa.activation(dst=result, op=nl.relu if relu else nl.copy, data=product, bias=offset)
                nisa.dma_copy(dst=out[item, span, part.start_offset : part.end_offset], src=result)
    return out


def padded_row(x, left, right):
    """x [C, L] in SBUF between zeros."""
    channels, length = x.shape
    tile = nl.ndarray((channels, left + length + right), dtype=x.dtype, buffer=nl.sbuf)
    if left > 0:
        nisa.memset(dst=tile[0:channels, 0:left], value=0.0)
    if right > 0:
        nisa.memset(dst=tile[0:channels, left + length : left + length + right], value=0.0)
    nisa.dma_copy(dst=tile[0:channels, left : left + length], src=x)
    return tile
