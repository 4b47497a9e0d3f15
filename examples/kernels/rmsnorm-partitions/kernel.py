"""RMSNorm that leaves the hidden dimension on the partitions, ready for a product."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, get_program_sharding_info, kernel_assert, shard_bounds

P = 128
ELEMENTS = 8192  # of a tile in one partition


@nki.jit
def rmsnorm_partitions(x, gamma, eps=1e-6, hidden=0, strided=False):
    """y[p, t, j] = x[t, h] / sqrt(mean over h of x[t]^2 + eps) * gamma[h], with h = p * (H / 128) + j.

    The sum over the partitions is a product with a square of ones, which also puts it on every partition.

    Args:
        x: [T, H] in HBM, float, H a multiple of 128; tokens are split over the cores.
        gamma: (H,) in HBM, float.
        eps: added to the mean of squares.
        hidden: what the sum of squares is divided by; 0 for H.
        strided: h = j * 128 + p instead.

    Returns:
        [128, T, H / 128] in HBM, dtype of x.
    """
    tokens, width = x.shape
    kernel_assert(width % P == 0, f"width {width}, a multiple of {P}")
    assert_shape(gamma, (width,), "gamma")
    inner = width // P
    out = nl.ndarray((P, tokens, inner), dtype=x.dtype, buffer=nl.shared_hbm)
    if strided:
        source = x.reshape((tokens, inner, P)).permute((2, 0, 1))
        weight = gamma.reshape((inner, P)).permute((1, 0))
    else:
        source = x.reshape((tokens, P, inner)).permute((1, 0, 2))
        weight = gamma.reshape((P, inner))
    scale = nl.ndarray((P, inner), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=scale, src=weight)
    ones = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    margin = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=margin, value=eps)
    first, last = shard_bounds(tokens)
    for part in TiledRange(last - first, max(1, min(512, ELEMENTS // inner))):
        span = slice(first + part.start_offset, first + part.end_offset)
        values = nl.ndarray((P, part.size, inner), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=values, src=source[0:P, span, 0:inner])
        squares = nl.ndarray((P, part.size, inner), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=squares, op=nl.square, data=values)
        sums = nl.ndarray((P, part.size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=sums, op=nl.add, data=squares, axis=2)
        totals = nl.ndarray((P, part.size), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=totals, stationary=ones, moving=sums, is_stationary_onezero=True)
        inverse = nl.ndarray((P, part.size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=inverse, op=nl.rsqrt, data=totals, scale=1.0 / (hidden or width), bias=margin)
        normed = nl.ndarray((P, part.size, inner), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=normed, data1=values, data2=inverse.expand_dim(2).broadcast(2, inner), op=nl.multiply)
        nisa.tensor_tensor(dst=values, data1=normed, data2=scale.expand_dim(1).broadcast(1, part.size), op=nl.multiply)
        nisa.dma_copy(dst=out[0:P, span, 0:inner], src=values)
    return out


@nki.jit
def rmsnorm_partitions_split(x, gamma, eps=1e-6):
    """The same with the hidden dimension split over two cores, which exchange their sums of squares by sendrecv.

    Args:
        x: [T, H] in HBM, float, H a multiple of 256, T at most 512.
        gamma: (H,) in HBM, float.
        eps: added to the mean of squares.

    Returns:
        [128, T, H / 128] in HBM, dtype of x, with h = p * (H / 128) + j; each core writes half of the columns j.
    """
    tokens, width = x.shape
    _, cores, core = get_program_sharding_info()
    kernel_assert(cores == 2, f"launched on {cores} cores, expected 2")
    kernel_assert(
        width % (2 * P) == 0 and tokens <= 512, f"{tokens} tokens (at most 512), width {width} (times {2 * P})"
    )
    assert_shape(gamma, (width,), "gamma")
    inner, part = width // P, width // P // 2
    span = slice(core * part, (core + 1) * part)
    out = nl.ndarray((P, tokens, inner), dtype=x.dtype, buffer=nl.shared_hbm)
    scale = nl.ndarray((P, part), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=scale, src=gamma.reshape((P, inner))[0:P, span])
    values = nl.ndarray((P, tokens, part), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=values, src=x.reshape((tokens, P, inner)).permute((1, 0, 2))[0:P, 0:tokens, span])
    squares = nl.ndarray((P, tokens, part), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=squares, op=nl.square, data=values)
    mine = nl.ndarray((P, tokens), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=mine, op=nl.add, data=squares, axis=2)
    theirs = nl.ndarray((P, tokens), dtype=nl.float32, buffer=nl.sbuf)
    nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    sums = nl.ndarray((P, tokens), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=sums, data1=mine, data2=theirs, op=nl.add)
    ones = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    totals = nl.ndarray((P, tokens), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=totals, stationary=ones, moving=sums, is_stationary_onezero=True)
    margin = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=margin, value=eps)
    inverse = nl.ndarray((P, tokens), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=inverse, op=nl.rsqrt, data=totals, scale=1.0 / width, bias=margin)
    normed = nl.ndarray((P, tokens, part), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=normed, data1=values, data2=inverse.expand_dim(2).broadcast(2, part), op=nl.multiply)
    nisa.tensor_tensor(dst=values, data1=normed, data2=scale.expand_dim(1).broadcast(1, tokens), op=nl.multiply)
    nisa.dma_copy(dst=out[0:P, 0:tokens, span], src=values)
    return out
