"""The gated delta rule of one head, token by token: a matrix state that decays and is corrected towards each value."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert, transpose_tile

P = 128
CHUNK = 64  # tokens whose rows lie on partition 0 at once


@nki.jit
def gated_delta_rule(q, k, v, g, beta, state):
    """S = exp(g) S; r = S^T k; S = S + k ((v - r) beta)^T; o = S^T q, for each token.

    Args:
        q, k: [T, d] float32 in HBM, d at most 128.
        v: [T, dv] float32 in HBM, dv at most 512.
        g, beta: (T,) float32 in HBM.
        state: [d, dv] float32 in HBM: S before the first token.

    Returns:
        o [T, dv] and the state after the last token [d, dv], float32 in HBM.
    """
    tokens, depth = q.shape
    width = v.shape[1]
    kernel_assert(depth <= P and width <= 512, f"a state of {depth} x {width}, at most {P} x 512")
    assert_shape(k, (tokens, depth), "k")
    assert_shape(state, (depth, width), "state")
    out = nl.ndarray((tokens, width), dtype=nl.float32, buffer=nl.shared_hbm)
    new_state = nl.ndarray((depth, width), dtype=nl.float32, buffer=nl.shared_hbm)
    s = nl.ndarray((depth, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=s, src=state)
    for chunk in TiledRange(tokens, CHUNK):
        span = slice(chunk.start_offset, chunk.end_offset)
        q_t = transposed(q[span, 0:depth])
        k_t = transposed(k[span, 0:depth])
        keys = on_one_partition(k[span, 0:depth])
        values = on_one_partition(v[span, 0:width])
        rates = on_one_partition(beta[span].reshape((chunk.size, 1)))
        decays = nl.ndarray((depth, chunk.size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=decays, src=g[span].reshape((1, chunk.size)).broadcast(0, depth))
        nisa.activation(dst=decays, op=nl.exp, data=decays)
        results = nl.ndarray((1, chunk.size, width), dtype=nl.float32, buffer=nl.sbuf)
        for t in range(chunk.size):
            nisa.tensor_scalar(dst=s, data=s, op0=nl.multiply, operand0=decays[0:depth, t : t + 1])
            recalled = nl.ndarray((1, width), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=recalled, stationary=k_t[0:depth, t : t + 1], moving=s)
            error = nl.ndarray((1, width), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=error, data1=values[0:1, t, 0:width], data2=recalled, op=nl.subtract)
            nisa.tensor_scalar(dst=error, data=error, op0=nl.multiply, operand0=rates[0:1, t, 0:1])
            update = nl.ndarray((depth, width), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=update, stationary=keys[0:1, t, 0:depth], moving=error)
            nisa.tensor_tensor(dst=s, data1=s, data2=update, op=nl.add)
            read = nl.ndarray((1, width), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=read, stationary=q_t[0:depth, t : t + 1], moving=s)
            nisa.activation(dst=results[0:1, t, 0:width], op=nl.copy, data=read)
        nisa.dma_copy(dst=out[span, 0:width].expand_dim(0), src=results)
    nisa.dma_copy(dst=new_state, src=s)
    return out, new_state


def transposed(x):
    """x [T, d] of HBM as [d, T] in SBUF."""
    rows, columns = x.shape
    tile = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    turned = nl.ndarray((columns, rows), dtype=nl.float32, buffer=nl.sbuf)
    transpose_tile(turned, tile)
    return turned


def on_one_partition(x):
    """x [T, d] of HBM as [1, T, d] in SBUF."""
    rows, columns = x.shape
    tile = nl.ndarray((1, rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x.expand_dim(0))
    return tile
