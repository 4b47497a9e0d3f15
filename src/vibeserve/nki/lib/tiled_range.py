"""Loops over tiles of a dimension whose last tile may be short."""

from __future__ import annotations

from typing import Any

from vibeserve.nki.lib.binding import nl
from vibeserve.nki.lib.checks import kernel_assert


class TiledRangeIterator(nl.NKIObject):  # type: ignore[misc, name-defined]
    """One tile: `size` elements from `start_offset` to `end_offset` (exclusive), the `index`-th of its range."""

    def __init__(self, size: int, index: int, start_offset: int):
        self.size = size
        self.index = index
        self.start_offset = start_offset
        self.end_offset = start_offset + size

    def __repr__(self) -> str:
        return f"tile {self.index} [{self.start_offset}:{self.end_offset}]"


def TiledRange(size_or_iterator: int | TiledRangeIterator, tile_size: int) -> tuple[TiledRangeIterator, ...]:
    """The tiles of a dimension, or the subtiles of a tile.

    Args:
        size_or_iterator: the size of the dimension (>= 0), or a tile of an outer TiledRange. Subtiles of a tile keep
            offsets into the whole dimension, and count their index from 0.
        tile_size: elements of a tile (>= 1); the last one may be shorter.

    Returns:
        A tuple of tiles with `size`, `index`, `start_offset` and `end_offset`.

    Example:
        for rows in TiledRange(300, 128):             # sizes 128, 128, 44
            for part in TiledRange(rows, 32): ...     # the last one of 12
    """
    kernel_assert(tile_size >= 1, f"TiledRange: tile size {tile_size}, expected at least 1")
    if isinstance(size_or_iterator, TiledRangeIterator):
        base, total = size_or_iterator.start_offset, size_or_iterator.size
    else:
        base, total = 0, size_or_iterator
        kernel_assert(total >= 0, f"TiledRange: size {total}, expected at least 0")
    tiles: list[Any] = []
    for index in range(-(-total // tile_size)):
        tiles.append(TiledRangeIterator(min(tile_size, total - index * tile_size), index, base + index * tile_size))
    return tuple(tiles)
