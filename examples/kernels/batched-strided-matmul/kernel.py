"""A matrix product for each index of the innermost dimension."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import assert_shape, kernel_assert

P = 128


@nki.jit
def batched_strided_matmul(a, b):
    """out[i, j, d] = sum over k of a[i, k, d] b[j, k, d]; operands are fetched with stride D in the innermost pattern.

    Args:
        a: [I, K, D] in HBM, float; I, K at most 128.
        b: [J, K, D] in HBM, same dtype; J at most 512.

    Returns:
        [I, J, D] in HBM, dtype of a.
    """
    height, depth, count = a.shape
    width = b.shape[0]
    kernel_assert(height <= P and depth <= P and width <= 512, f"operands {a.shape} and {b.shape} are too large")
    assert_shape(b, (width, depth, count), "b")
    out = nl.ndarray((height, width, count), dtype=a.dtype, buffer=nl.shared_hbm)
    results = nl.ndarray((height, width, count), dtype=a.dtype, buffer=nl.sbuf)
    for d in range(count):
        left = nl.ndarray((depth, height), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=a.permute((1, 0, 2))[0:depth, 0:height, d])
        right = nl.ndarray((depth, width), dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=right, src=b.permute((1, 0, 2))[0:depth, 0:width, d])
        product = nl.ndarray((height, width), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=left, moving=right)
        nisa.tensor_copy(dst=results[0:height, 0:width, d], src=product)
    nisa.dma_copy(dst=out, src=results)
    return out
