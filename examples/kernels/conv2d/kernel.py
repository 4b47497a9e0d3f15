"""2-D convolution as a sum of matrix products, one for each tap of the filter."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert

P = 128
N = 512


@nki.jit
def conv2d(x, w, bias, padding=0, stride=1):
    """out[n, o, i, j] = bias[o] + sum over c, a, b of w[a, b, c, o] x[n, c, i * stride + a - padding, ...].

    Channels lie on the partitions; each tap is a product with a shifted view of the padded image, all of them summed in
    one PSUM tile.

    Args:
        x: [B, C, H, W] in HBM, float.
        w: [A, A2, C, O] in HBM, same dtype.
        bias: (O,) in HBM, float.
        padding: zeros around the image.
        stride: of both dimensions.

    Returns:
        [B, O, H', W'] in HBM, dtype of x, with W' at most 512.
    """
    batch, channels, height, width = x.shape
    taps_y, taps_x, _, filters = w.shape
    assert_shape(w, (taps_y, taps_x, channels, filters), "w")
    assert_shape(bias, (filters,), "bias")
    out_h = (height + 2 * padding - taps_y) // stride + 1
    out_w = (width + 2 * padding - taps_x) // stride + 1
    kernel_assert(out_h > 0 and 0 < out_w <= N, f"an output of {out_h} x {out_w}; its width is at most {N}")
    out = nl.ndarray((batch, filters, out_h, out_w), dtype=x.dtype, buffer=nl.shared_hbm)
    weights = []
    for c in TiledRange(channels, P):
        tile = nl.ndarray((c.size, taps_y, taps_x, filters), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=w.permute((2, 0, 1, 3))[c.start_offset : c.end_offset])
        weights.append(tile)
    for image in range(batch):
        padded = []
        for c in TiledRange(channels, P):
            padded.append(padded_image(x[image, c.start_offset : c.end_offset], padding))
        for o in TiledRange(filters, P):
            offsets = nl.ndarray((o.size, 1), dtype=bias.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=offsets, src=bias[o.start_offset : o.end_offset].reshape((o.size, 1)))
            for rows in TiledRange(out_h, N // out_w):
                product = nl.ndarray((o.size, rows.size, out_w), dtype=nl.float32, buffer=nl.psum)
                for a in range(taps_y):
                    top = rows.start_offset * stride + a
                    for b in range(taps_x):
                        for c in range(len(padded)):
                            window = padded[c].slice(1, top, top + (rows.size - 1) * stride + 1, stride)
                            nisa.nc_matmul(
                                dst=product,
                                stationary=weights[c][:, a, b, o.start_offset : o.end_offset],
                                moving=window.slice(2, b, b + (out_w - 1) * stride + 1, stride),
                            )
                result = nl.ndarray((o.size, rows.size, out_w), dtype=x.dtype, buffer=nl.sbuf)
                nisa.activation(dst=result, op=nl.copy, data=product, bias=offsets)
                nisa.dma_copy(
                    dst=out[image, o.start_offset : o.end_offset, rows.start_offset : rows.end_offset, 0:out_w],
                    src=result,
                )
    return out


def padded_image(x, padding):
    """x [C, H, W] in SBUF with `padding` zeros around H and W."""
    channels, height, width = x.shape
    tile = nl.ndarray((channels, height + 2 * padding, width + 2 * padding), dtype=x.dtype, buffer=nl.sbuf)
    if padding > 0:
        nisa.memset(dst=tile, value=0.0)
    nisa.dma_copy(dst=tile[0:channels, padding : padding + height, padding : padding + width], src=x)
    return tile
