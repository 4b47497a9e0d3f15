"""Rotary position embedding, in two layouts."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert

P = 128
COLUMNS = 2048


@nki.jit
def rope_columns(x, cos, sin):
    """RoPE on [d, S]: top' = top * cos - bottom * sin, bottom' = bottom * cos + top * sin.

    Args:
        x: [d, S] in HBM, d even and at most 256, float.
        cos, sin: [d / 2, S] in HBM, float.

    Returns:
        [d, S] in HBM, dtype of x.
    """
    depth, length = x.shape
    half = depth // 2
    kernel_assert(depth % 2 == 0 and half <= P, f"head size {depth}, even and at most {2 * P}")
    assert_shape(cos, (half, length), "cos")
    assert_shape(sin, (half, length), "sin")
    out = nl.ndarray((depth, length), dtype=x.dtype, buffer=nl.shared_hbm)
    for part in TiledRange(length, COLUMNS):
        span = slice(part.start_offset, part.end_offset)
        tiles = []
        for source in (x[0:half, span], x[half:depth, span], cos[0:half, span], sin[0:half, span]):
            tile = nl.ndarray((half, part.size), dtype=source.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=source)
            tiles.append(tile)
        top, bottom, c, s = tiles
        nisa.dma_copy(dst=out[0:half, span], src=rotated(top, bottom, c, s, nl.subtract))
        nisa.dma_copy(dst=out[half:depth, span], src=rotated(bottom, top, c, s, nl.add))
    return out


def rotated(first, second, c, s, op):
    """op(first * c, second * s), in the dtype of `first`."""
    one = nl.ndarray(first.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=one, data1=first, data2=c, op=nl.multiply)
    two = nl.ndarray(first.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=two, data1=second, data2=s, op=nl.multiply)
    result = nl.ndarray(first.shape, dtype=first.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=result, data1=one, data2=two, op=op)
    return result


@nki.jit
def rope_heads(q, k, cos, sin, out_q, out_k, backward=False):
    """RoPE on all heads of q and k: out = x * cos + rotate_half(x) * sin; `backward` applies the transposed rotation.

    Args:
        q: [B, H, S, d] in HBM, d even, float.
        k: [B, G, S, d] in HBM.
        cos: [S, d] in HBM; or [S, 2d] with the sines in the right half, and sin None.
        sin: [S, d] in HBM, or None.
        out_q, out_k: of the shapes of q and k; the kernel fills them.
        backward: the gradient's direction.

    Returns:
        out_q and out_k.
    """
    depth, length = q.shape[3], q.shape[2]
    kernel_assert(depth % 2 == 0, f"head size {depth} is odd")
    assert_shape(cos, (length, depth if sin != None else 2 * depth), "cos")
    assert_shape(out_q, q.shape, "out_q")
    assert_shape(out_k, k.shape, "out_k")
    for rows in TiledRange(length, P):
        span = slice(rows.start_offset, rows.end_offset)
        c = nl.ndarray((rows.size, depth), dtype=cos.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=c, src=cos[span, 0:depth])
        s = nl.ndarray((rows.size, depth), dtype=cos.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=s, src=sin[span, 0:depth] if sin != None else cos[span, depth : 2 * depth])
        for batch in range(q.shape[0]):
            rotate_heads(q[batch], out_q[batch], span, c, s, backward)
            rotate_heads(k[batch], out_k[batch], span, c, s, backward)
    return out_q, out_k


def rotate_heads(x, out, span, c, s, backward):
    """Rotate rows `span` of all heads of x [H, S, d] into out."""
    heads, _, depth = x.shape
    rows, half = c.shape[0], depth // 2
    tile = nl.ndarray((rows, heads, depth), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[0:heads, span, 0:depth].permute((1, 0, 2)))
    straight = nl.ndarray((rows, heads, depth), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=straight, data1=tile, data2=c.expand_dim(1).broadcast(1, heads), op=nl.multiply)
    crossed = nl.ndarray((rows, heads, depth), dtype=nl.float32, buffer=nl.sbuf)
    low, high = slice(0, half), slice(half, depth)
    for here, there in ((low, high), (high, low)):
        sine = s[0:rows, there if backward else here].expand_dim(1).broadcast(1, heads)
        nisa.tensor_tensor(
            dst=crossed[0:rows, 0:heads, here], data1=tile[0:rows, 0:heads, there], data2=sine, op=nl.multiply
        )
    result = nl.ndarray((rows, heads, depth), dtype=out.dtype, buffer=nl.sbuf)
    for here, op in ((low, nl.add if backward else nl.subtract), (high, nl.subtract if backward else nl.add)):
        nisa.tensor_tensor(
            dst=result[0:rows, 0:heads, here],
            data1=straight[0:rows, 0:heads, here],
            data2=crossed[0:rows, 0:heads, here],
            op=op,
        )
    nisa.dma_copy(dst=out[0:heads, span, 0:depth].permute((1, 0, 2)), src=result)
