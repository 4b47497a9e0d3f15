"""A norm and the QKV projection in one kernel, for few tokens."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import (
    NormType,
    TiledRange,
    assert_shape,
    broadcast_row,
    kernel_assert,
    layer_norm_rows,
    rms_norm_rows,
    shard_bounds,
    transpose_tile,
)

P = 128
N = 512


@nki.jit
def norm_qkv(x, gamma, weight, bias, attention=None, mlp=None, norm="rms", heads=0, eps=1e-6):
    """out = norm(x + attention + mlp) * gamma @ weight + bias.

    Args:
        x: [B, S, H] in HBM, float; B S at most 128.
        gamma: (H,) in HBM.
        weight: [H, I] in HBM, dtype of x.
        bias: (I,) in HBM.
        attention, mlp: [B, S, H] or None: residuals that a computing DMA adds to x first.
        norm: "rms", "layer" or "off".
        heads: 0 for the layout BSD; else the number of heads, for NBSd.
        eps: of the norm.

    Returns:
        [B, S, I], or [heads, B, S, I / heads], in HBM, dtype of x. Columns (whole heads) are split over the cores.
    """
    batch, length, width = x.shape
    tokens, columns = batch * length, weight.shape[1]
    kernel_assert(tokens <= P, f"{tokens} tokens, at most {P}")
    assert_shape(weight, (width, columns), "weight")
    assert_shape(bias, (columns,), "bias")
    shape = (tokens, columns) if heads == 0 else (heads, tokens, columns // heads)
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = nl.ndarray((tokens, width), dtype=x.dtype, buffer=nl.sbuf)
    sources = []
    for source in (x, attention, mlp):
        if source != None:
            sources.append(source.reshape((tokens, width)))
    if len(sources) > 1:
        nisa.dma_compute(dst=rows, srcs=sources, reduce_op=nl.add)
    else:
        nisa.dma_copy(dst=rows, src=sources[0])
    normed = normalised(rows, gamma, norm, eps)
    turned = []
    for k in TiledRange(width, P):
        tile = nl.ndarray((k.size, tokens), dtype=x.dtype, buffer=nl.sbuf)
        transpose_tile(tile, normed[0:tokens, k.start_offset : k.end_offset], index=k.index)
        turned.append(tile)
    first, last = shard_bounds(columns, 1 if heads == 0 else columns // heads)
    result = nl.ndarray((tokens, max(1, last - first)), dtype=x.dtype, buffer=nl.sbuf)
    for part in TiledRange(last - first, N):
        span = slice(first + part.start_offset, first + part.end_offset)
        product = nl.ndarray((tokens, part.size), dtype=nl.float32, buffer=nl.psum)
        for k in TiledRange(width, P):
            tile = nl.ndarray((k.size, part.size), dtype=weight.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=weight[k.start_offset : k.end_offset, span])
            nisa.nc_matmul(dst=product, stationary=turned[k.index], moving=tile)
        offset = nl.ndarray((tokens, part.size), dtype=nl.float32, buffer=nl.sbuf)
        broadcast_row(offset, bias[span])
        nisa.tensor_tensor(
            dst=result[0:tokens, part.start_offset : part.end_offset], data1=product, data2=offset, op=nl.add
        )
    if heads == 0:
        nisa.dma_copy(dst=out[0:tokens, first:last], src=result)
        return out.reshape((batch, length, columns))
    size = columns // heads
    for head in range(first // size, last // size):
        nisa.dma_copy(dst=out[head], src=result[0:tokens, head * size - first : (head + 1) * size - first])
    return out.reshape((heads, batch, length, size))


def normalised(rows, gamma, norm, eps):
    """The rows under the norm that is asked for, in their own dtype."""
    kernel_assert(norm in ("rms", "layer", "off"), f"norm {norm!r}: rms, layer or off")
    if norm == "off":
        return rows
    kind = NormType.RMS_NORM if norm == "rms" else NormType.LAYER_NORM
    weights = nl.ndarray(rows.shape, dtype=nl.float32, buffer=nl.sbuf)
    broadcast_row(weights, gamma)
    result = nl.ndarray(rows.shape, dtype=rows.dtype, buffer=nl.sbuf)
    if kind == NormType.RMS_NORM:
        rms_norm_rows(result, rows, weights, eps=eps)
    else:
        layer_norm_rows(result, rows, weights, eps=eps)
    return result
