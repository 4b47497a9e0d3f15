"""Products of complex matrices and of complex arrays, real and imaginary parts apart."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape

P = 128
N = 512


@nki.jit
def complex_matmul(a_re_t, a_im_t, b_re, b_im):
    """C = A B: four real products into two PSUM tiles; the imaginary part of A is negated once for the real part.

    Args:
        a_re_t, a_im_t: [K, M] in HBM, float: A transposed (not conjugated).
        b_re, b_im: [K, N] in HBM, same dtype.

    Returns:
        the real and the imaginary part of C, [M, N] float32 in HBM.
    """
    depth, height = a_re_t.shape
    width = b_re.shape[1]
    assert_shape(a_im_t, (depth, height), "a_im_t")
    assert_shape(b_re, (depth, width), "b_re")
    assert_shape(b_im, (depth, width), "b_im")
    out_re = nl.ndarray((height, width), dtype=nl.float32, buffer=nl.shared_hbm)
    out_im = nl.ndarray((height, width), dtype=nl.float32, buffer=nl.shared_hbm)
    for m in TiledRange(height, P):
        rows = slice(m.start_offset, m.end_offset)
        for n in TiledRange(width, N):
            columns = slice(n.start_offset, n.end_offset)
            real = nl.ndarray((m.size, n.size), dtype=nl.float32, buffer=nl.psum)
            imaginary = nl.ndarray((m.size, n.size), dtype=nl.float32, buffer=nl.psum)
            for k in TiledRange(depth, P):
                span = slice(k.start_offset, k.end_offset)
                tiles = []
                for source in (a_re_t[span, rows], a_im_t[span, rows], b_re[span, columns], b_im[span, columns]):
                    tile = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
                    nisa.dma_copy(dst=tile, src=source)
                    tiles.append(tile)
                left_re, left_im, right_re, right_im = tiles
                negated = nl.ndarray(left_im.shape, dtype=left_im.dtype, buffer=nl.sbuf)
                nisa.tensor_scalar(dst=negated, data=left_im, op0=nl.multiply, operand0=-1.0)
                nisa.nc_matmul(dst=real, stationary=left_re, moving=right_re)
                nisa.nc_matmul(dst=real, stationary=negated, moving=right_im)
                nisa.nc_matmul(dst=imaginary, stationary=left_re, moving=right_im)
                nisa.nc_matmul(dst=imaginary, stationary=left_im, moving=right_re)
            for product, target in ((real, out_re), (imaginary, out_im)):
                result = nl.ndarray((m.size, n.size), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_copy(dst=result, src=product)
                nisa.dma_copy(dst=target[rows, columns], src=result)
    return out_re, out_im


@nki.jit
def complex_multiply(a_re, a_im, b_re, b_im):
    """The elementwise product of two complex arrays.

    Args:
        a_re, a_im, b_re, b_im: [R, C] in HBM, float.

    Returns:
        real and imaginary part, [R, C] in HBM, dtype of a_re.
    """
    rows, columns = a_re.shape
    for name, tensor in (("a_im", a_im), ("b_re", b_re), ("b_im", b_im)):
        assert_shape(tensor, (rows, columns), name)
    out_re = nl.ndarray((rows, columns), dtype=a_re.dtype, buffer=nl.shared_hbm)
    out_im = nl.ndarray((rows, columns), dtype=a_re.dtype, buffer=nl.shared_hbm)
    for tile in TiledRange(rows, P):
        span = slice(tile.start_offset, tile.end_offset)
        tiles = []
        for source in (a_re, a_im, b_re, b_im):
            loaded = nl.ndarray((tile.size, columns), dtype=source.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=loaded, src=source[span, 0:columns])
            tiles.append(loaded)
        left_re, left_im, right_re, right_im = tiles
        pairs = ((left_re, right_re, left_im, right_im, nl.subtract), (left_re, right_im, left_im, right_re, nl.add))
        for target, (x, y, z, w, op) in ((out_re, pairs[0]), (out_im, pairs[1])):
            first = nl.ndarray((tile.size, columns), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=first, data1=x, data2=y, op=nl.multiply)
            second = nl.ndarray((tile.size, columns), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=second, data1=z, data2=w, op=nl.multiply)
            result = nl.ndarray((tile.size, columns), dtype=target.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=result, data1=first, data2=second, op=op)
            nisa.dma_copy(dst=target[span, 0:columns], src=result)
    return out_re, out_im
