"""Attention backward: dq, dk and dv from the saved log-sum-exp, without the score matrix in HBM."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import (
    TiledRange,
    assert_shape,
    get_program_sharding_info,
    interleave_copy,
    kernel_assert,
    transpose_tile,
)

P = 128
FAR = -30000.0


@nki.jit
def attention_backward(q, k, v, out, d_out, lse, bounds=None, sink=None, causal=False, window=0, scale=0.0):
    """Gradients of softmax(scale q^T k) v, tile by tile.

    With P = exp(scale q^T k - lse) and D[i] = sum over d of out[d, i] d_out[d, i]: dv = d_out P, dS = P (d_out^T v - D),
    dq = scale k dS^T, dk = scale q dS. Several q heads may share a kv head: their dk and dv add up.

    Args:
        q, out, d_out: [B, H, d, S] in HBM, d at most 128, float, S a multiple of 128.
        k, v: [B, G, d, S] in HBM; H is a multiple of G.
        lse: [B, H, S] float32 in HBM: log of the sum of exp of the scaled scores.
        bounds: [B, S, 2] float32 in HBM or None: key j counts for query i where bounds[i, 0] <= j < bounds[i, 1] (packed
            sequences), at least one for each query.
        sink: (H,) float32 in HBM or None: a logit more in each row's sum, which has no value; lse holds it too.
        causal: key j counts for query i where j <= i.
        window: with causal: only where i - j < window; 0 for all.
        scale: of the scores; 0 for 1 / sqrt(d).

    Returns:
        dq [B, H, d, S], dk and dv [B, G, d, S] in HBM, dtype of q. Pairs of batch and kv head are split over the cores. With
        a sink also its gradient by batch, [B, H] float32.
    """
    batch, heads, depth, length = q.shape
    groups = k.shape[1]
    kernel_assert(depth <= P and length % P == 0, f"head size {depth} (at most {P}), length {length} (times {P})")
    kernel_assert(heads % groups == 0 and (causal or window == 0), "whole groups of heads; a window only if causal")
    for name, tensor in (("out", out), ("d_out", d_out)):
        assert_shape(tensor, (batch, heads, depth, length), name)
    assert_shape(lse, (batch, heads, length), "lse")
    if scale == 0.0:
        scale = depth**-0.5
    dq = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    dk = nl.ndarray(k.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    dv = nl.ndarray(v.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    d_sink = nl.ndarray((batch, heads), dtype=nl.float32, buffer=nl.shared_hbm)
    _, cores, core = get_program_sharding_info()
    share = heads // groups
    for pair in range(core, batch * groups, cores):
        item, group = pair // groups, pair % groups
        key, value = load(k[item, group]), load(v[item, group])
        key_rows = transposed_tiles(key)
        dk_sum = nl.ndarray((P, length // P, depth), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=dk_sum, value=0.0)
        dv_sum = nl.ndarray((P, length // P, depth), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=dv_sum, value=0.0)
        for head in range(group * share, (group + 1) * share):
            query, gradient, result = load(q[item, head]), load(d_out[item, head]), load(out[item, head])
            query_rows, gradient_rows = transposed_tiles(query), transposed_tiles(gradient)
            result_rows = transposed_tiles(result)
            sink_sum = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=sink_sum, value=0.0)
            for i in range(length // P):
                statistics = row_statistics(lse[item, head, i * P : (i + 1) * P], gradient_rows[i], result_rows[i])
                if sink != None:
                    add_sink(sink_sum, sink[head : head + 1], statistics)
                edges = None
                if bounds != None:
                    edges = load(bounds[item, i * P : (i + 1) * P, 0:2])
                dq_sum = nl.ndarray((depth, P), dtype=nl.float32, buffer=nl.psum)
                for j in range(i + 1 if causal else length // P):
                    offset = (i - j) * P
                    if window > 0 and offset - (P - 1) >= window:
                        continue
                    rows, columns = slice(i * P, (i + 1) * P), slice(j * P, (j + 1) * P)
                    limits = (causal, window, offset, edges, j * P)
                    weights = probabilities(query[0:depth, rows], key[0:depth, columns], statistics[0], scale, limits)
                    d_scores = score_gradient(
                        gradient[0:depth, rows], value[0:depth, columns], weights, statistics[1], scale
                    )
                    add_product(dv_sum[0:P, j, 0:depth], weights, gradient_rows[i])
                    add_product(dk_sum[0:P, j, 0:depth], d_scores, query_rows[i])
                    turned = nl.ndarray((P, P), dtype=q.dtype, buffer=nl.sbuf)
                    transpose_tile(turned, d_scores, index=j)
                    nisa.nc_matmul(dst=dq_sum, stationary=key_rows[j], moving=turned)
                final = nl.ndarray((depth, P), dtype=q.dtype, buffer=nl.sbuf)
                interleave_copy(final, dq_sum, index=i)
                nisa.dma_copy(dst=dq[item, head, 0:depth, i * P : (i + 1) * P], src=final)
            if sink != None:
                store_total(d_sink[item, head : head + 1], sink_sum)
        store_transposed(dk[item, group], dk_sum)
        store_transposed(dv[item, group], dv_sum)
    if sink != None:
        return dq, dk, dv, d_sink
    return dq, dk, dv


def load(x):
    """A piece of HBM in SBUF."""
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def transposed_tiles(x):
    """The tiles [128, d] of the transpose of x [d, S]."""
    depth, length = x.shape
    tiles = []
    for part in TiledRange(length, P):
        tile = nl.ndarray((part.size, depth), dtype=x.dtype, buffer=nl.sbuf)
        transpose_tile(tile, x[0:depth, part.start_offset : part.end_offset], index=part.index)
        tiles.append(tile)
    return tiles


def row_statistics(lse, gradient, result):
    """(-lse, D) of 128 queries as (P, 1) float32 tiles."""
    negative = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=negative, src=lse.reshape((P, 1)))
    nisa.tensor_scalar(dst=negative, data=negative, op0=nl.multiply, operand0=-1.0)
    product = nl.ndarray(gradient.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=product, data1=gradient, data2=result, op=nl.multiply)
    total = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=product, axis=1)
    return negative, total


def probabilities(query, key, negative, scale, limits):
    """exp(scale q^T k - lse) of a tile, zero where a key does not count, in the dtype of q."""
    causal, window, offset, edges, first_key = limits
    product = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=query, moving=key)
    scores = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=scores, op=nl.copy, data=product, scale=scale)
    if causal and offset < P:
        select(scores, 1, offset)
    if window > 0 and offset + P > window:
        select(scores, -1, window - 1 - offset)
    if edges != None:
        keep_between(scores, edges, first_key)
    weights = nl.ndarray((P, P), dtype=query.dtype, buffer=nl.sbuf)
    nisa.activation(dst=weights, op=nl.exp, data=scores, bias=negative)
    return weights


def select(scores, sign, offset):
    """Keep a score where sign * (row - column) + offset >= 0."""
    nisa.affine_select(
        dst=scores,
        pattern=[[-sign, P]],
        channel_multiplier=sign,
        on_true_tile=scores,
        on_false_value=FAR,
        cmp_op=nl.greater_equal,
        offset=offset,
    )


def keep_between(scores, edges, first_key):
    """Put scores far below where the key is not in [edges[p, 0], edges[p, 1])."""
    columns = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=columns, pattern=[[1, P]], offset=first_key)
    below = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=below, data=columns, op0=nl.less, operand0=edges[0:P, 0:1], op1=nl.multiply, operand1=FAR)
    above = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=above, data=columns, op0=nl.greater_equal, operand0=edges[0:P, 1:2], op1=nl.multiply, operand1=FAR
    )
    nisa.tensor_tensor(dst=scores, data1=scores, data2=below, op=nl.add)
    nisa.tensor_tensor(dst=scores, data1=scores, data2=above, op=nl.add)


def add_sink(total, sink, statistics):
    """total -= exp(sink - lse) D, the share of 128 queries in the sink's gradient."""
    logit = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=logit, src=sink.reshape((1, 1)).broadcast(0, P))
    share = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=share, op=nl.exp, data=logit, bias=statistics[0])
    nisa.tensor_tensor(dst=share, data1=share, data2=statistics[1], op=nl.multiply)
    nisa.tensor_tensor(dst=total, data1=total, data2=share, op=nl.subtract)


def store_total(target, total):
    """The sum of a (P, 1) tile over its partitions, to one element in HBM."""
    ones = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    product = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=total, moving=ones)
    result = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=product)
    nisa.dma_copy(dst=target.reshape((1, 1)), src=result)


def score_gradient(gradient, value, weights, statistic, scale):
    """scale P (d_out^T v - D) of a tile, in the dtype of P."""
    product = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=gradient, moving=value)
    centred = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=centred, data=product, op0=nl.subtract, operand0=statistic, op1=nl.multiply, operand1=scale)
    result = nl.ndarray((P, P), dtype=weights.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=result, data1=centred, data2=weights, op=nl.multiply)
    return result


def add_product(total, stationary, moving):
    """total += stationary^T moving, in SBUF."""
    product = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=stationary, moving=moving)
    nisa.tensor_tensor(dst=total, data1=product, data2=total, op=nl.add)


def store_transposed(target, total):
    """target [d, S] in HBM from total [128, S / 128, d] in SBUF."""
    depth = target.shape[0]
    for j in range(total.shape[1]):
        turned = nl.ndarray((depth, P), dtype=target.dtype, buffer=nl.sbuf)
        transpose_tile(turned, total[0:P, j, 0:depth], index=j)
        nisa.dma_copy(dst=target[0:depth, j * P : (j + 1) * P], src=turned)
