"""C = A B in float32, A turned on the way in."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, transpose_tile

P = 128
N = 512


@nki.jit
def matmul_fp32(a, b):
    """A @ B: row tiles of A are transposed on the tensor engine; `accumulate` is said for each product.

    Args:
        a: [M, K] in HBM, float32 (or a 2-byte float).
        b: [K, N] in HBM, same dtype.

    Returns:
        [M, N] in HBM, dtype of a.
    """
    height, depth = a.shape
    width = b.shape[1]
    assert_shape(b, (depth, width), "b")
    out = nl.ndarray((height, width), dtype=a.dtype, buffer=nl.shared_hbm)
    for m in TiledRange(height, P):
        rows = nl.ndarray((m.size, depth), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=a[m.start_offset : m.end_offset, 0:depth])
        turned = []
        for k in TiledRange(depth, P):
            tile = nl.ndarray((k.size, m.size), dtype=a.dtype, buffer=nl.sbuf)
            transpose_tile(tile, rows[0 : m.size, k.start_offset : k.end_offset], index=k.index)
            turned.append(tile)
        for n in TiledRange(width, N):
            product = nl.ndarray((m.size, n.size), dtype=nl.float32, buffer=nl.psum)
            for k in TiledRange(depth, P):
                right = nl.ndarray((k.size, n.size), dtype=b.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=right, src=b[k.start_offset : k.end_offset, n.start_offset : n.end_offset])
                nisa.nc_matmul(dst=product, stationary=turned[k.index], moving=right, accumulate=k.index > 0)
            result = nl.ndarray((m.size, n.size), dtype=a.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=product)
            nisa.dma_copy(dst=out[m.start_offset : m.end_offset, n.start_offset : n.end_offset], src=result)
    return out
