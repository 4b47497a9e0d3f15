"""A product with a weight in fp8 and one scale a column."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, broadcast_row, kernel_assert, transpose_tile

P = 128
N = 512


@nki.jit
def w8_matmul(x, weight, scales):
    """out = (x @ weight) * scales, the weight moving through the tensor engine as fp8.

    Args:
        x: [T, K] in HBM, 2-byte float, T at most 128.
        weight: [K, N] float8_e4m3 in HBM.
        scales: (N,) float32 in HBM.

    Returns:
        [T, N] in HBM, dtype of x.
    """
    tokens, depth = x.shape
    width = weight.shape[1]
    kernel_assert(tokens <= P, f"{tokens} rows, at most {P}")
    assert_shape(weight, (depth, width), "weight")
    assert_shape(scales, (width,), "scales")
    out = nl.ndarray((tokens, width), dtype=x.dtype, buffer=nl.shared_hbm)
    rows = nl.ndarray((tokens, depth), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=x)
    turned = []
    for k in TiledRange(depth, P):
        tile = nl.ndarray((k.size, tokens), dtype=x.dtype, buffer=nl.sbuf)
        transpose_tile(tile, rows[0:tokens, k.start_offset : k.end_offset], index=k.index)
        turned.append(tile)
    for n in TiledRange(width, N):
        span = slice(n.start_offset, n.end_offset)
        product = nl.ndarray((tokens, n.size), dtype=nl.float32, buffer=nl.psum)
        for k in TiledRange(depth, P):
            tile = nl.ndarray((k.size, n.size), dtype=weight.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=weight[k.start_offset : k.end_offset, span])
            nisa.nc_matmul(dst=product, stationary=turned[k.index], moving=tile)
        factor = nl.ndarray((tokens, n.size), dtype=nl.float32, buffer=nl.sbuf)
        broadcast_row(factor, scales[span])
        result = nl.ndarray((tokens, n.size), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=result, data1=product, data2=factor, op=nl.multiply)
        nisa.dma_copy(dst=out[0:tokens, span], src=result)
    return out
