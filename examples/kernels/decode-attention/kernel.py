"""One step of decoding: append a key and a value to the cache at a run-time position, and attend over the cache."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert, softmax_rows, transpose_tile

P = 128
N = 512
FAR = 30000.0


@nki.jit
def decode_attention(q, k_new, v_new, k_cache, v_cache, position):
    """Grouped-query attention of one new token.

    Args:
        q: [H, d] in HBM, d <= 128, float.
        k_new, v_new: [G, d]: of the new token; H is a multiple of G.
        k_cache: [G, d, S] in HBM; column `position` is overwritten.
        v_cache: [G, S, d] in HBM; row `position` is overwritten.
        position: (1, 1) int32 in HBM: tokens already in the cache, below S.

    Returns:
        out [H, d] (dtype of q), k_cache and v_cache.
    """
    heads, depth = q.shape
    groups, _, length = k_cache.shape
    kernel_assert(depth <= P and heads % groups == 0, f"{heads} heads of {depth} over {groups} groups")
    assert_shape(k_cache, (groups, depth, length), "k_cache")
    assert_shape(v_cache, (groups, length, depth), "v_cache")
    assert_shape(position, (1, 1), "position")
    share = heads // groups
    out = nl.ndarray((heads, depth), dtype=q.dtype, buffer=nl.shared_hbm)
    at = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=at, src=position)
    append_token(k_new, v_new, k_cache, v_cache, at)
    bias = future_bias(position, share, length)
    for group in range(groups):
        query = nl.ndarray((share, depth), dtype=q.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=query, src=q[group * share : (group + 1) * share, 0:depth])
        query_t = nl.ndarray((depth, share), dtype=q.dtype, buffer=nl.sbuf)
        transpose_tile(query_t, query)
        scores = nl.ndarray((share, length), dtype=nl.float32, buffer=nl.sbuf)
        for keys in TiledRange(length, N):
            span = slice(keys.start_offset, keys.end_offset)
            block = nl.ndarray((depth, keys.size), dtype=k_cache.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=block, src=k_cache[group, 0:depth, span])
            product = nl.ndarray((share, keys.size), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=product, stationary=query_t, moving=block)
            nisa.scalar_tensor_tensor(
                dst=scores[0:share, span],
                data=product,
                op0=nl.multiply,
                operand0=depth**-0.5,
                op1=nl.add,
                operand1=bias[0:share, span],
            )
        weights = nl.ndarray((share, length), dtype=v_cache.dtype, buffer=nl.sbuf)
        softmax_rows(weights, scores)
        result = nl.ndarray((share, depth), dtype=nl.float32, buffer=nl.psum)
        for keys in TiledRange(length, P):
            span = slice(keys.start_offset, keys.end_offset)
            values = nl.ndarray((keys.size, depth), dtype=v_cache.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=values, src=v_cache[group, span, 0:depth])
            turned = nl.ndarray((keys.size, share), dtype=v_cache.dtype, buffer=nl.sbuf)
            transpose_tile(turned, weights[0:share, span], index=keys.index)
            nisa.nc_matmul(dst=result, stationary=turned, moving=values)
        final = nl.ndarray((share, depth), dtype=q.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=final, src=result)
        nisa.dma_copy(dst=out[group * share : (group + 1) * share, 0:depth], src=final)
    return out, k_cache, v_cache


def append_token(k_new, v_new, k_cache, v_cache, at):
    """Write the new key and value of every group at the position that the (1, 1) tile `at` holds."""
    groups, depth, length = k_cache.shape
    key = nl.ndarray((groups, depth), dtype=k_cache.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=key, src=k_new)
    value = nl.ndarray((groups, depth), dtype=v_cache.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=value, src=v_new)
    column = k_cache.ap(pattern=[[depth * length, groups], [length, depth]], scalar_offset=at, indirect_dim=2)
    nisa.dma_copy(dst=column, src=key)
    row = v_cache.ap(pattern=[[depth * length, groups], [1, depth]], scalar_offset=at, indirect_dim=1)
    nisa.dma_copy(dst=row, src=value)


def future_bias(position, rows, length):
    """[rows, length] float32 in SBUF: 0 up to the position, far below zero behind it."""
    last = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=last, src=position.broadcast(0, rows))
    last_f = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=last_f, src=last)
    bias = nl.ndarray((rows, length), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=bias, pattern=[[1, length]])
    nisa.tensor_scalar(dst=bias, data=bias, op0=nl.greater, operand0=last_f, op1=nl.multiply, operand1=-FAR)
    return bias
