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
            token = (q_t, k_t, keys, values, rates, decays, t)
            correct_and_read(s, results[0:1, t, 0:width], token)
        nisa.dma_copy(dst=out[span, 0:width].expand_dim(0), src=results)
    nisa.dma_copy(dst=new_state, src=s)
    return out, new_state


@nki.jit
def gated_delta_step(q, k, v, g, beta, state):
    """One token of many heads: the rule of `gated_delta_rule` once for each head.

    Args:
        q, k: [N, d] float32 in HBM, N and d at most 128.
        v: [N, dv] float32 in HBM, dv at most 512.
        g, beta: (N,) float32 in HBM.
        state: [N, d, dv] float32 in HBM.

    Returns:
        o [N, dv] and the new states [N, d, dv], float32 in HBM.
    """
    heads, depth = q.shape
    width = v.shape[1]
    kernel_assert(heads <= P and depth <= P and width <= 512, f"{heads} states of {depth} x {width}")
    assert_shape(k, (heads, depth), "k")
    assert_shape(state, (heads, depth, width), "state")
    out = nl.ndarray((heads, width), dtype=nl.float32, buffer=nl.shared_hbm)
    new_state = nl.ndarray((heads, depth, width), dtype=nl.float32, buffer=nl.shared_hbm)
    q_t, k_t = transposed(q), transposed(k)
    keys, values = on_one_partition(k), on_one_partition(v)
    rates = on_one_partition(beta.reshape((heads, 1)))
    decays = nl.ndarray((depth, heads), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=decays, src=g.reshape((1, heads)).broadcast(0, depth))
    nisa.activation(dst=decays, op=nl.exp, data=decays)
    results = nl.ndarray((1, heads, width), dtype=nl.float32, buffer=nl.sbuf)
    for head in range(heads):
        s = nl.ndarray((depth, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=s, src=state[head])
        token = (q_t, k_t, keys, values, rates, decays, head)
        correct_and_read(s, results[0:1, head, 0:width], token)
        nisa.dma_copy(dst=new_state[head], src=s)
    nisa.dma_copy(dst=out.expand_dim(0), src=results)
    return out, new_state


def correct_and_read(s, result, token):
    """Decay and correct the state s [d, dv] for column t of the token's tiles, and put S^T q into `result` [1, dv]."""
    q_t, k_t, keys, values, rates, decays, t = token
    depth, width = s.shape
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
    nisa.activation(dst=result, op=nl.copy, data=read)


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
