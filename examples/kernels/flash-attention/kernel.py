"""Flash attention, forward: softmax(scale * q k^T) v without the score matrix, head by head."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert, transpose_tile

P = 128
KEYS = 512  # keys of a block: one PSUM bank of float32 scores
FAR = -30000.0  # added to a masked score: exp of it is 0, and differences of two of them stay finite


def load(source, shape, dtype):
    """A tile of `source` in SBUF, cast to `dtype`."""
    tile = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def load_values(v, keys, depth):
    """Rows `keys` of v [S, d] as [128, blocks, d]: row j * 128 + p of the block lies at [p, j]."""
    blocks = -(-keys.size // P)
    tile = nl.ndarray((min(P, keys.size), blocks, depth), dtype=v.dtype, buffer=nl.sbuf)
    for part in TiledRange(keys, P):
        nisa.dma_copy(dst=tile[0 : part.size, part.index, 0:depth], src=v[part.start_offset : part.end_offset, 0:depth])
    return tile


def attend(state, scores, values, first):
    """Fold a block of scores [rows, keys] (float32, SBUF) and its values into `state` = [out, sum, maximum]."""
    out, total, top = state
    rows, keys = scores.shape
    block_top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=block_top, op=nl.maximum, data=scores, axis=1)
    new_top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    if first:
        nisa.tensor_copy(dst=new_top, src=block_top)
    else:
        nisa.tensor_tensor(dst=new_top, data1=block_top, data2=top, op=nl.maximum)
    negative = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=negative, data=new_top, op0=nl.multiply, operand0=-1.0)
    powers = nl.ndarray((rows, keys), dtype=values.dtype, buffer=nl.sbuf)
    block_sum = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=powers,
        op=nl.exp,
        data=scores,
        bias=negative,
        reduce_op=nl.add,
        reduce_res=block_sum,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    product = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.psum)
    for part in TiledRange(keys, P):
        turned = nl.ndarray((part.size, rows), dtype=values.dtype, buffer=nl.sbuf)
        transpose_tile(turned, powers[0:rows, part.start_offset : part.end_offset], index=part.index)
        nisa.nc_matmul(dst=product, stationary=turned, moving=values[0 : part.size, part.index, 0 : out.shape[1]])
    if first:
        nisa.tensor_copy(dst=out, src=product)
        nisa.tensor_copy(dst=total, src=block_sum)
    else:
        shrink = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=shrink, op=nl.exp, data=top, bias=negative)
        nisa.scalar_tensor_tensor(dst=out, data=out, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=product)
        nisa.scalar_tensor_tensor(
            dst=total, data=total, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=block_sum
        )
    nisa.tensor_copy(dst=top, src=new_top)


def masked_scores(product, scale, causal, offset, mask):
    """scale * product in SBUF; keys after the query (query - key = offset + row - column) or masked are far below."""
    rows, keys = product.shape
    scores = nl.ndarray((rows, keys), dtype=nl.float32, buffer=nl.sbuf)
    if mask == None:
        nisa.activation(dst=scores, op=nl.copy, data=product, scale=scale)
    else:
        nisa.tensor_scalar(dst=scores, data=mask, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=-FAR)
        nisa.scalar_tensor_tensor(
            dst=scores, data=product, op0=nl.multiply, operand0=scale, op1=nl.add, operand1=scores
        )
    if causal and offset < keys - 1:
        nisa.affine_select(
            dst=scores,
            pattern=[[-1, keys]],
            channel_multiplier=1,
            on_true_tile=scores,
            on_false_value=FAR,
            cmp_op=nl.greater_equal,
            offset=offset,
        )
    return scores


@nki.jit
def flash_attention(q, k, v, mask=None, causal=False, scale=0.0):
    """Attention forward with a running maximum and sum, in blocks of 128 queries and 512 keys.

    Args:
        q: [H, d, Sq] in HBM, d <= 128, float.
        k: [H, d, Sk] in HBM, same dtype.
        v: [H, Sk, d] in HBM, same dtype.
        mask: [Sq, Sk] in HBM, float: 1 where a key counts, 0 where not; None for all.
        causal: key j counts for query i where j <= i (Sq = Sk).
        scale: of the scores; 0 for 1 / sqrt(d).

    Returns:
        out [H, Sq, d] (dtype of q), sums l [H, Sq] and maxima m [H, Sq] (float32), of the scaled scores.
    """
    heads, depth, queries = q.shape
    keys = k.shape[2]
    kernel_assert(depth <= P, f"head size {depth}, at most {P}")
    kernel_assert(not causal or queries == keys, f"causal with {queries} queries and {keys} keys")
    assert_shape(k, (heads, depth, keys), "k")
    assert_shape(v, (heads, keys, depth), "v")
    if scale == 0.0:
        scale = depth**-0.5
    out = nl.ndarray((heads, queries, depth), dtype=q.dtype, buffer=nl.shared_hbm)
    sums = nl.ndarray((heads, queries), dtype=nl.float32, buffer=nl.shared_hbm)
    maxima = nl.ndarray((heads, queries), dtype=nl.float32, buffer=nl.shared_hbm)
    for head in range(heads):
        keys_t = []
        values = []
        for block in TiledRange(keys, KEYS):
            part = k[head, 0:depth, block.start_offset : block.end_offset]
            keys_t.append(load(part, (depth, block.size), k.dtype))
            values.append(load_values(v[head], block, depth))
        for rows in TiledRange(queries, P):
            span = slice(rows.start_offset, rows.end_offset)
            query = load(q[head, 0:depth, span], (depth, rows.size), q.dtype)
            result = nl.ndarray((rows.size, depth), dtype=nl.float32, buffer=nl.sbuf)
            total = nl.ndarray((rows.size, 1), dtype=nl.float32, buffer=nl.sbuf)
            top = nl.ndarray((rows.size, 1), dtype=nl.float32, buffer=nl.sbuf)
            for block in TiledRange(min(keys, rows.end_offset) if causal else keys, KEYS):
                product = nl.ndarray((rows.size, block.size), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=product, stationary=query, moving=keys_t[block.index][0:depth, 0 : block.size])
                allowed = None
                if mask != None:
                    part = mask[span, block.start_offset : block.end_offset]
                    allowed = load(part, (rows.size, block.size), nl.float32)
                scores = masked_scores(product, scale, causal, rows.start_offset - block.start_offset, allowed)
                attend([result, total, top], scores, values[block.index], block.index == 0)
            inverse = nl.ndarray((rows.size, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.reciprocal(dst=inverse, data=total)
            final = nl.ndarray((rows.size, depth), dtype=q.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=final, data=result, op0=nl.multiply, operand0=inverse)
            nisa.dma_copy(dst=out[head, span, 0:depth], src=final)
            nisa.dma_copy(dst=sums[head, span].reshape((rows.size, 1)), src=total)
            nisa.dma_copy(dst=maxima[head, span].reshape((rows.size, 1)), src=top)
    return out, sums, maxima
