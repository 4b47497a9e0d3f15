"""The projection behind attention: heads merged and multiplied by a weight."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert, shard_bounds

P = 128
N = 512


@nki.jit
def output_projection(attention, weight, bias, scale=1.0):
    """out[b, s, h] = scale * sum over n, d of attention[b, n, d, s] weight[n D + d, h] + bias[h].

    Args:
        attention: [B, N, D, S] in HBM, 2-byte float, D at most 128.
        weight: [N D, H] in HBM, same dtype, or float8_e4m3 with one scale.
        bias: (H,) in HBM, float.
        scale: of an fp8 weight.

    Returns:
        [B, S, H] in HBM, dtype of attention. The columns H are split over the cores.
    """
    batch, heads, depth, length = attention.shape
    width = weight.shape[1]
    kernel_assert(depth <= P, f"head size {depth}, at most {P}")
    assert_shape(weight, (heads * depth, width), "weight")
    assert_shape(bias, (width,), "bias")
    out = nl.ndarray((batch, length, width), dtype=attention.dtype, buffer=nl.shared_hbm)
    first, last = shard_bounds(width)
    for columns in TiledRange(last - first, N):
        span = slice(first + columns.start_offset, first + columns.end_offset)
        tile = nl.ndarray((depth, heads, columns.size), dtype=weight.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=weight.reshape((heads, depth, width)).permute((1, 0, 2))[0:depth, 0:heads, span])
        offset = nl.ndarray((P, columns.size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=offset, src=bias[span].reshape((1, columns.size)).broadcast(0, P))
        for item in range(batch):
            for rows in TiledRange(length, P):
                place = slice(rows.start_offset, rows.end_offset)
                values = nl.ndarray((depth, heads, rows.size), dtype=attention.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=values, src=attention[item].permute((1, 0, 2))[0:depth, 0:heads, place])
                product = nl.ndarray((rows.size, columns.size), dtype=nl.float32, buffer=nl.psum)
                for head in range(heads):
                    nisa.nc_matmul(
                        dst=product,
                        stationary=values[0:depth, head, 0 : rows.size],
                        moving=tile[0:depth, head, 0 : columns.size],
                    )
                result = nl.ndarray((rows.size, columns.size), dtype=attention.dtype, buffer=nl.sbuf)
                nisa.scalar_tensor_tensor(
                    dst=result,
                    data=product,
                    op0=nl.multiply,
                    operand0=scale,
                    op1=nl.add,
                    operand1=offset[0 : rows.size, 0 : columns.size],
                )
                nisa.dma_copy(dst=out[item, place, span], src=result)
    return out
