"""A dimension cut into tiles, and each tile into subtiles: counts, starts and bounds by index."""

from __future__ import annotations

from typing import Any

from vibeserve.nki.lib.binding import nl
from vibeserve.nki.lib.checks import kernel_assert


class TiledDimInfo(nl.NKIObject):  # type: ignore[misc, name-defined]
    """How a dimension is tiled.

    `tiled_dim_size` elements in `tile_count` tiles of `tile_size`; the last may be short. `subtile_dim_info` is the
    tiling of one full tile, or None. Starts and indices of subtiles are those of the whole dimension, unless the name
    says local (within the tile). A bound is the number of elements there: short at the end of the dimension.
    """

    def __init__(self, tiled_dim_size: int, tile_size: int, subtile_dim_info: Any = None):
        kernel_assert(tiled_dim_size >= 1 and tile_size >= 1, f"tiles of {tile_size} over {tiled_dim_size}")
        self.tiled_dim_size = tiled_dim_size
        self.tile_size = tile_size
        self.tile_count = -(-tiled_dim_size // tile_size)
        self.subtile_dim_info = subtile_dim_info

    @staticmethod
    def build(tiled_dim_size: int, tile_size: int, subtile_info: Any = None) -> TiledDimInfo:
        """A tiling; `subtile_info` tiles one full tile."""
        if subtile_info is not None:
            size = subtile_info.tiled_dim_size
            kernel_assert(size == tile_size, f"subtiles over {size} elements in tiles of {tile_size}")
        return TiledDimInfo(tiled_dim_size, tile_size, subtile_info)

    @staticmethod
    def build_with_subtiling(tiled_dim_size: int, tile_size: int, subtile_size: int) -> TiledDimInfo:
        """A tiling with subtiles of `subtile_size` in each tile."""
        return TiledDimInfo(tiled_dim_size, tile_size, TiledDimInfo(tile_size, subtile_size))

    def is_subtiled(self) -> bool:
        """Whether tiles are cut further."""
        return self.subtile_dim_info is not None

    def get_tile_indices(self) -> range:
        """The indices of the tiles."""
        return range(self.tile_count)

    def get_tile_bound(self, tile_idx: int) -> int:
        """Elements in a tile."""
        return max(0, min(self.tile_size, self.tiled_dim_size - tile_idx * self.tile_size))

    def get_actual_subtile_num(self, tile_idx: int) -> int:
        """Subtiles of a tile that hold elements."""
        return -(-self.get_tile_bound(tile_idx) // self._subtile().tile_size)

    def get_subtile_indices(self, tile_idx: int) -> range:
        """The indices of a tile's subtiles, from 0."""
        return range(self.get_actual_subtile_num(tile_idx))

    def get_local_subtile_start(self, subtile_idx: int) -> int:
        """Where a subtile starts within its tile."""
        return int(subtile_idx * self._subtile().tile_size)

    def get_subtile_start(self, tile_idx: int, subtile_idx: int) -> int:
        """Where a subtile starts in the dimension."""
        return tile_idx * self.tile_size + self.get_local_subtile_start(subtile_idx)

    def get_local_subtile_bound(self, subtile_idx: int) -> int:
        """Elements in a subtile of a full tile."""
        return int(self._subtile().get_tile_bound(subtile_idx))

    def get_subtile_bound(self, tile_idx: int, subtile_idx: int) -> int:
        """Elements in a subtile."""
        left = self.get_tile_bound(tile_idx) - self.get_local_subtile_start(subtile_idx)
        return max(0, min(self.get_local_subtile_bound(subtile_idx), left))

    def _subtile(self) -> Any:
        kernel_assert(self.subtile_dim_info is not None, "the tiling has no subtiles")
        return self.subtile_dim_info
