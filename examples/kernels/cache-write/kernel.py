"""Rows written into a cache where an index in memory says."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import assert_shape, kernel_assert


@nki.jit
def cache_write(cache, rows, start):
    """cache[start : start + n] = rows.

    Args:
        cache: [R, C] in HBM; changed in place.
        rows: [n, C] in HBM, n at most 128, dtype of the cache.
        start: (1, 1) int32 in HBM, at most R - n.

    Returns:
        cache.
    """
    count, columns = rows.shape
    kernel_assert(count <= 128, f"{count} rows, at most 128")
    assert_shape(cache, (None, columns), "cache")
    assert_shape(start, (1, 1), "start")
    at = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=at, src=start)
    tile = nl.ndarray((count, columns), dtype=rows.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=rows)
    target = cache.ap(pattern=[[columns, count], [1, columns]], scalar_offset=at, indirect_dim=0)
    nisa.dma_copy(dst=target, src=tile)
    return cache


@nki.jit
def cache_scatter(cache, rows, slots):
    """cache[slots[p]] = rows[p]; a slot below zero leaves its row out.

    Args:
        cache: [R, C] in HBM; changed in place.
        rows: [n, C] in HBM, n at most 128, dtype of the cache.
        slots: (n, 1) int32 in HBM, below R, each at most once.

    Returns:
        cache.
    """
    count, columns = rows.shape
    kernel_assert(count <= 128, f"{count} rows, at most 128")
    assert_shape(cache, (None, columns), "cache")
    assert_shape(slots, (count, 1), "slots")
    places = nl.ndarray((count, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=places, src=slots)
    tile = nl.ndarray((count, columns), dtype=rows.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=rows)
    nisa.dma_copy(dst=cache.vector_select(0, places), src=tile, oob_mode=nisa.oob_mode.skip)
    return cache
