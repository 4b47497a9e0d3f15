"""A router of a mixture of experts, and the dispatch of tokens to their experts' rows."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import (
    TiledRange,
    assert_shape,
    expert_positions,
    get_program_sharding_info,
    kernel_assert,
    permutation_rows,
    shard_bounds,
    softmax_rows,
    top_experts,
    transpose_tile,
)

P = 128


@nki.jit
def router_topk(x, w, bias, k=4, sigmoid=False, renormalise=False):
    """Logits, the k best experts of each token, and their affinities scattered over all experts.

    Args:
        x: [T, H] in HBM, float.
        w: [H, E] in HBM, same dtype, 8 <= E <= 512.
        bias: (E,) in HBM, float.
        k: experts of a token, at most 8.
        sigmoid: affinities by sigmoid instead of softmax.
        renormalise: let the chosen affinities sum to one.

    Returns:
        logits [T, E] float32, affinities [T, E] float32 (0 where not chosen), indices [T, k] uint32 in falling order of
        affinity. Tokens are split over the cores.
    """
    tokens, width = x.shape
    experts = w.shape[1]
    kernel_assert(8 <= experts <= 512, f"{experts} experts, 8 to 512")
    assert_shape(w, (width, experts), "w")
    assert_shape(bias, (experts,), "bias")
    logits = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.shared_hbm)
    affinities = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.shared_hbm)
    indices = nl.ndarray((tokens, k), dtype=nl.uint32, buffer=nl.shared_hbm)
    offsets = nl.ndarray((P, experts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=offsets, src=bias.reshape((1, experts)).broadcast(0, P))
    weights = load_rows(w)
    first, last = shard_bounds(tokens)
    for tile in TiledRange(last - first, P):
        span = slice(first + tile.start_offset, first + tile.end_offset)
        rows = nl.ndarray((tile.size, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x[span, 0:width])
        scores = project(rows, weights, offsets)
        nisa.dma_copy(dst=logits[span, 0:experts], src=scores)
        shares = nl.ndarray((tile.size, experts), dtype=nl.float32, buffer=nl.sbuf)
        if sigmoid:
            nisa.activation(dst=shares, op=nl.sigmoid, data=scores)
        else:
            softmax_rows(shares, scores)
        best = nl.ndarray((tile.size, 8), dtype=nl.float32, buffer=nl.sbuf)
        places = nl.ndarray((tile.size, 8), dtype=nl.uint32, buffer=nl.sbuf)
        mask = nl.ndarray((tile.size, experts), dtype=nl.float32, buffer=nl.sbuf)
        top_experts(best, places, mask, scores, k)
        chosen = nl.ndarray((tile.size, experts), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=chosen, data1=shares, data2=mask, op=nl.multiply)
        if renormalise:
            total = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=total, op=nl.add, data=chosen, axis=1)
            nisa.reciprocal(dst=total, data=total)
            nisa.tensor_scalar(dst=chosen, data=chosen, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=affinities[span, 0:experts], src=chosen)
        nisa.dma_copy(dst=indices[span, 0:k], src=places[0 : tile.size, 0:k])
    return logits, affinities, indices


@nki.jit
def router_topk_into(x, w, bias, logits, affinities, indices, k=4, sigmoid=False):
    """The same into tensors that are given; the chosen affinities go to their places by indirect stores.

    On two cores each routes half of the tokens and sends its indices to the other; the first writes all of them.

    Args:
        x: [T, H] in HBM, float, at most 128 tokens for each core, the same number for both.
        w: [H, E] in HBM, same dtype, 8 <= E <= 512, T E below 2^24.
        bias: (E,) in HBM, float.
        logits, affinities: [T, E] float32 in HBM, filled.
        indices: [T, k] uint32 in HBM, filled.
        k: experts of a token, at most 8.
        sigmoid: affinities by sigmoid instead of softmax.

    Returns:
        logits, affinities and indices, as `router_topk`.
    """
    tokens, width = x.shape
    experts = w.shape[1]
    _, cores, core = get_program_sharding_info()
    count = tokens // cores
    kernel_assert(tokens % cores == 0 and count <= P, f"{tokens} tokens on {cores} cores, at most {P} each")
    first = core * count
    span = slice(first, first + count)
    offsets = nl.ndarray((P, experts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=offsets, src=bias.reshape((1, experts)).broadcast(0, P))
    rows = nl.ndarray((count, width), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=x[span, 0:width])
    scores = project(rows, load_rows(w), offsets)
    nisa.dma_copy(dst=logits[span, 0:experts], src=scores)
    shares = nl.ndarray((count, experts), dtype=nl.float32, buffer=nl.sbuf)
    if sigmoid:
        nisa.activation(dst=shares, op=nl.sigmoid, data=scores)
    else:
        softmax_rows(shares, scores)
    best = nl.ndarray((count, 8), dtype=nl.float32, buffer=nl.sbuf)
    places = nl.ndarray((count, 8), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.max8(dst=best, src=scores)
    nisa.nc_find_index8(dst=places, data=scores, vals=best)
    scatter(affinities, shares, places, first, k)
    mine = nl.ndarray((count, k), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=mine, src=places[0:count, 0:k])
    if cores == 2:
        other = nl.ndarray((count, k), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        if core == 0:
            nisa.dma_copy(dst=indices[count:tokens, 0:k], src=other)
    if core == 0:
        nisa.dma_copy(dst=indices[0:count, 0:k], src=mine)
    return logits, affinities, indices


def load_rows(w):
    """The rows of a matrix in HBM as tiles of at most 128."""
    tiles = []
    for depth in TiledRange(w.shape[0], P):
        tile = nl.ndarray((depth.size, w.shape[1]), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=w[depth.start_offset : depth.end_offset, 0 : w.shape[1]])
        tiles.append(tile)
    return tiles


def scatter(affinities, shares, places, first, k):
    """Rows `first` and on of `affinities`: the share of each chosen expert at its column, 0 elsewhere."""
    count, experts = shares.shape
    blank = nl.ndarray((count, experts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=blank, value=0.0)
    nisa.dma_copy(dst=affinities[first : first + count, 0:experts], src=blank)
    picked = nl.ndarray((count, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.nc_n_gather(dst=picked, data=shares, indices=places)
    base = nl.ndarray((count, 8), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=base, pattern=[[0, 8]], offset=first * experts, channel_multiplier=experts)
    nisa.tensor_tensor(dst=base, data1=base, data2=places, op=nl.add)
    flat = affinities.reshape((affinities.shape[0] * experts, 1))
    for slot in range(k):
        where = nl.ndarray((count, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=where, src=base[0:count, slot : slot + 1])
        nisa.dma_copy(
            dst=flat.ap(pattern=[[1, count], [1, 1]], vector_offset=where), src=picked[0:count, slot : slot + 1]
        )


def project(rows, weights, offsets):
    """rows @ weights + offsets as a float32 tile, the rows transposed on the tensor engine."""
    tokens, experts = rows.shape[0], offsets.shape[1]
    product = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.psum)
    for k in range(len(weights)):
        depth = weights[k].shape[0]
        turned = nl.ndarray((depth, tokens), dtype=rows.dtype, buffer=nl.sbuf)
        transpose_tile(turned, rows[0:tokens, k * P : k * P + depth], index=k)
        nisa.nc_matmul(dst=product, stationary=turned, moving=weights[k])
    scores = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=scores, data1=product, data2=offsets[0:tokens, 0:experts], op=nl.add)
    return scores


@nki.jit
def dispatch(x, scores, k=2, capacity=32):
    """Copy each token to a row of each of its k experts, in the order of the tokens.

    Args:
        x: [T, H] in HBM, T at most 128.
        scores: [T, E] float32 in HBM, 8 <= E <= 128.
        k: experts of a token.
        capacity: rows of an expert; tokens beyond it are dropped.

    Returns:
        [E * capacity, H] in HBM, dtype of x, zero where no token went; and [T, E] int32: the row of each token for each
        expert, -1 where there is none.
    """
    tokens, width = x.shape
    experts = scores.shape[1]
    kernel_assert(tokens <= P and experts <= P, f"{tokens} tokens and {experts} experts, at most {P} each")
    assert_shape(scores, (tokens, experts), "scores")
    out = nl.ndarray((experts * capacity, width), dtype=x.dtype, buffer=nl.shared_hbm)
    where = nl.ndarray((tokens, experts), dtype=nl.int32, buffer=nl.shared_hbm)
    for block in TiledRange(experts * capacity, P):
        zeros = nl.ndarray((block.size, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=zeros, value=0.0)
        nisa.dma_copy(dst=out[block.start_offset : block.end_offset, 0:width], src=zeros)
    values = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=values, src=scores)
    best = nl.ndarray((tokens, 8), dtype=nl.float32, buffer=nl.sbuf)
    places = nl.ndarray((tokens, 8), dtype=nl.uint32, buffer=nl.sbuf)
    mask = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.sbuf)
    top_experts(best, places, mask, values, k)
    positions = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.sbuf)
    expert_positions(positions, mask)
    rows = nl.ndarray((tokens, experts), dtype=nl.int32, buffer=nl.sbuf)
    permutation_rows(rows, positions, mask, capacity)
    nisa.dma_copy(dst=where, src=rows)
    source = nl.ndarray((tokens, width), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=source, src=x)
    for expert in range(experts):
        target = out.ap(
            pattern=[[width, tokens], [1, width]], vector_offset=rows[0:tokens, expert : expert + 1], indirect_dim=0
        )
        nisa.dma_copy(dst=target, src=source, oob_mode=nisa.oob_mode.skip)
    return out, where
