"""Softmax attention with the scores of a query tile kept whole: one pass for scores and maximum, one for the values."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert, softmax_rows, transpose_tile

P = 128
N = 512


@nki.jit
def attention_two_pass(q, k, v, scale=1.0):
    """softmax(scale * q^T k) v^T for one head.

    Args:
        q: [d, Sq] in HBM, d at most 128, float.
        k, v: [d, Sk] in HBM, same dtype; Sk at most 8192.
        scale: of the scores.

    Returns:
        [Sq, d] in HBM, dtype of q.
    """
    depth, queries = q.shape
    keys = k.shape[1]
    kernel_assert(depth <= P and keys <= 8192, f"head size {depth} and {keys} keys, at most {P} and 8192")
    assert_shape(k, (depth, keys), "k")
    assert_shape(v, (depth, keys), "v")
    out = nl.ndarray((queries, depth), dtype=q.dtype, buffer=nl.shared_hbm)
    tiles = []
    for source in (q, k, v):
        tile = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=source)
        tiles.append(tile)
    query, key, value = tiles
    values = []
    for part in TiledRange(keys, P):
        rows = nl.ndarray((part.size, depth), dtype=v.dtype, buffer=nl.sbuf)
        transpose_tile(rows, value[0:depth, part.start_offset : part.end_offset], index=part.index)
        values.append(rows)
    for tile in TiledRange(queries, P):
        span = slice(tile.start_offset, tile.end_offset)
        scores = nl.ndarray((tile.size, keys), dtype=nl.float32, buffer=nl.sbuf)
        for block in TiledRange(keys, N):
            product = nl.ndarray((tile.size, block.size), dtype=nl.float32, buffer=nl.psum)
            place = slice(block.start_offset, block.end_offset)
            nisa.nc_matmul(dst=product, stationary=query[0:depth, span], moving=key[0:depth, place])
            nisa.activation(dst=scores[0 : tile.size, place], op=nl.copy, data=product, scale=scale)
        weights = nl.ndarray((tile.size, keys), dtype=v.dtype, buffer=nl.sbuf)
        softmax_rows(weights, scores)
        total = nl.ndarray((tile.size, depth), dtype=nl.float32, buffer=nl.psum)
        for part in TiledRange(keys, P):
            turned = nl.ndarray((part.size, tile.size), dtype=v.dtype, buffer=nl.sbuf)
            transpose_tile(turned, weights[0 : tile.size, part.start_offset : part.end_offset], index=part.index)
            nisa.nc_matmul(dst=total, stationary=turned, moving=values[part.index])
        result = nl.ndarray((tile.size, depth), dtype=q.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=total)
        nisa.dma_copy(dst=out[span, 0:depth], src=result)
    return out
