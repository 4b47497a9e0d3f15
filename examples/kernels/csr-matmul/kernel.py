"""A sparse matrix times a dense one: the host expands the sparse one, the device skips its empty tiles."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert

P = 128
N = 512


@nki.jit
def csr_matmul(a_t, b, tiles):
    """A @ B for an A with few non-zero tiles of 128 x 128.

    Args:
        a_t: [K, M] float32 in HBM: A transposed and expanded, K and M multiples of 128.
        b: [K, N] float32 in HBM.
        tiles: for each row of tiles of A, the tuple of the columns of tiles that hold non-zeros.

    Returns:
        [M, N] float32 in HBM.
    """
    depth, height = a_t.shape
    width = b.shape[1]
    kernel_assert(depth % P == 0 and height % P == 0, f"A^T of {a_t.shape}, multiples of {P}")
    assert_shape(b, (depth, width), "b")
    kernel_assert(len(tiles) == height // P, f"{len(tiles)} rows of tiles, expected {height // P}")
    out = nl.ndarray((height, width), dtype=nl.float32, buffer=nl.shared_hbm)
    for m in TiledRange(height, P):
        left = nl.ndarray((P, max(1, len(tiles[m.index])), P), dtype=nl.float32, buffer=nl.sbuf)
        for slot in range(len(tiles[m.index])):
            k = tiles[m.index][slot]
            nisa.dma_copy(dst=left[0:P, slot, 0:P], src=a_t[k * P : (k + 1) * P, m.start_offset : m.end_offset])
        for n in TiledRange(width, N):
            result = nl.ndarray((P, n.size), dtype=nl.float32, buffer=nl.sbuf)
            if len(tiles[m.index]) == 0:
                nisa.memset(dst=result, value=0.0)
            else:
                product = nl.ndarray((P, n.size), dtype=nl.float32, buffer=nl.psum)
                for slot in range(len(tiles[m.index])):
                    k = tiles[m.index][slot]
                    right = nl.ndarray((P, n.size), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.dma_copy(dst=right, src=b[k * P : (k + 1) * P, n.start_offset : n.end_offset])
                    nisa.nc_matmul(dst=product, stationary=left[0:P, slot, 0:P], moving=right)
                nisa.tensor_copy(dst=result, src=product)
            nisa.dma_copy(dst=out[m.start_offset : m.end_offset, n.start_offset : n.end_offset], src=result)
    return out
