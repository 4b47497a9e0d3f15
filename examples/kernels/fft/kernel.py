"""A 256-point FFT of real rows: two 128-point transforms by matmul, twiddles, one butterfly."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, transpose_tile

P = 128


@nki.jit
def fft256(x, dft_re, dft_im, twiddle_re, twiddle_im):
    """X[k] = E[k] + w[k] O[k] and X[k + 128] = E[k] - w[k] O[k], E and O the transforms of even and odd samples.

    Args:
        x: [R, 256] float32 in HBM.
        dft_re, dft_im: [128, 128] float32: cos and -sin of 2 pi n k / 128.
        twiddle_re, twiddle_im: (128,) float32: cos and -sin of 2 pi k / 256.

    Returns:
        real and imaginary part, [R, 256] float32 in HBM.
    """
    rows, points = x.shape
    assert_shape(x, (None, 2 * P), "x")
    assert_shape(dft_re, (P, P), "dft_re")
    assert_shape(dft_im, (P, P), "dft_im")
    out_re = nl.ndarray((rows, points), dtype=nl.float32, buffer=nl.shared_hbm)
    out_im = nl.ndarray((rows, points), dtype=nl.float32, buffer=nl.shared_hbm)
    tables = []
    for source in (dft_re, dft_im):
        table = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=table, src=source)
        tables.append(table)
    for source in (twiddle_re, twiddle_im):
        table = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=table, src=source.reshape((1, P)).broadcast(0, P))
        tables.append(table)
    for tile in TiledRange(rows, P):
        span = slice(tile.start_offset, tile.end_offset)
        samples = nl.ndarray((tile.size, points), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=samples, src=x[span, 0:points])
        even = transform(samples, 0, tables)
        odd = transform(samples, 1, tables)
        w_re, w_im = tables[2][0 : tile.size, 0:P], tables[3][0 : tile.size, 0:P]
        turned_re = combine(multiply(odd[0], w_re), multiply(odd[1], w_im), nl.subtract)
        turned_im = combine(multiply(odd[0], w_im), multiply(odd[1], w_re), nl.add)
        for part, turned, target in ((even[0], turned_re, out_re), (even[1], turned_im, out_im)):
            result = nl.ndarray((tile.size, points), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=result[0 : tile.size, 0:P], data1=part, data2=turned, op=nl.add)
            nisa.tensor_tensor(dst=result[0 : tile.size, P:points], data1=part, data2=turned, op=nl.subtract)
            nisa.dma_copy(dst=target[span, 0:points], src=result)
    return out_re, out_im


def transform(samples, phase, tables):
    """The 128-point transform of every second sample from `phase` on: (real, imaginary), [rows, 128] in SBUF."""
    rows = samples.shape[0]
    half = nl.ndarray((rows, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=half, src=samples.slice(1, phase, 2 * P, 2))
    turned = nl.ndarray((P, rows), dtype=nl.float32, buffer=nl.sbuf)
    transpose_tile(turned, half)
    parts = []
    for table in (tables[0], tables[1]):
        product = nl.ndarray((rows, P), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=turned, moving=table)
        part = nl.ndarray((rows, P), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=part, src=product)
        parts.append(part)
    return parts


def multiply(left, right):
    """The elementwise product in a new tile."""
    return combine(left, right, nl.multiply)


def combine(left, right, op):
    """op(left, right) in a new tile."""
    result = nl.ndarray(left.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=result, data1=left, data2=right, op=op)
    return result
