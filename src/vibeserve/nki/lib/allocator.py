"""`SbufManager`: places tiles in SBUF by hand, on a stack that grows up and a heap that grows down."""

from __future__ import annotations

import math
from typing import Any

from vibeserve.nki.lib.binding import nl
from vibeserve.nki.lib.checks import kernel_assert
from vibeserve.nki.lib.logging import Logger, get_logger  # noqa: F401 (part of the module's names)

DEFAULT_ALIGNMENT = 32


def sizeinbytes(dtype: Any) -> int:
    """Bytes of one element."""
    return int(dtype.itemsize)


def align_to(value: int, alignment: int) -> int:
    """The least multiple of `alignment` that is not below `value`."""
    return -(-value // alignment) * alignment


def num_elts(shape: Any) -> int:
    """Elements of one partition: the product of all sizes but the first."""
    return math.prod(tuple(shape)[1:])


class Scope(nl.NKIObject):  # type: ignore[misc, name-defined]
    """An open scope of the stack: where it starts, how many sections rotate in it, and the highest byte used."""

    def __init__(self, name: str, start: int, sections: int):
        self.name = name
        self.start = start
        self.sections = sections
        self.section = 0
        self.high = start
        self.tiles: list[str] = []


class SbufManager(nl.NKIObject):  # type: ignore[misc, name-defined]
    """A byte allocator over [sb_lower_bound, sb_upper_bound) of each partition.

    `alloc_stack` takes from the bottom, within the innermost open scope, and `close_scope` gives a scope's bytes back.
    `alloc_heap` takes from the top, and `pop_heap` gives the last one back. In a scope with `interleave_degree` n, each
    `increment_section` goes on to the next of n sections and then starts over at the first: tiles of n iterations lie
    side by side (multi-buffering). With `use_auto_alloc` the compiler places the tiles, and this only keeps the books.
    """

    def __init__(
        self,
        sb_lower_bound: int,
        sb_upper_bound: int,
        logger: Logger | None = None,
        use_auto_alloc: bool = False,
        default_stack_alloc: bool = True,
    ):
        kernel_assert(0 <= sb_lower_bound <= sb_upper_bound, f"SBUF bounds [{sb_lower_bound}, {sb_upper_bound})")
        self.lower, self.upper = sb_lower_bound, sb_upper_bound
        self.logger = logger
        self.use_auto_alloc = use_auto_alloc
        self.default_stack_alloc = default_stack_alloc
        self.stack, self.heap = sb_lower_bound, sb_upper_bound
        self.scopes: list[Scope] = []
        self.heap_tiles: list[tuple[str, int]] = []
        self.peak = 0
        self.prefix = ""

    # -- scopes ------------------------------------------------------------------------------------------------------

    def open_scope(self, interleave_degree: int = 1, name: str = "") -> None:
        """Open a scope on the stack, with `interleave_degree` rotating sections."""
        kernel_assert(interleave_degree >= 1, f"scope {name!r}: interleave degree {interleave_degree}")
        self.scopes.append(Scope(name or f"scope{len(self.scopes)}", self.stack, interleave_degree))

    def increment_section(self) -> None:
        """Go on to the next section; after the last one, to the first again."""
        kernel_assert(bool(self.scopes), "increment_section without an open scope")
        scope = self.scopes[-1]
        scope.section = (scope.section + 1) % scope.sections
        if scope.section == 0:
            self.stack = scope.start

    def close_scope(self) -> None:
        """Close the innermost scope: its bytes are free again."""
        kernel_assert(bool(self.scopes), "close_scope without an open scope")
        self.stack = self.scopes.pop().start

    # -- tiles -------------------------------------------------------------------------------------------------------

    def alloc(self, shape: Any, dtype: Any, name: str = "", **options: Any) -> Any:
        """A tile from the stack, or from the heap where that is the manager's default."""
        take = self.alloc_stack if self.default_stack_alloc else self.alloc_heap
        return take(shape, dtype, name=name, **options)

    def alloc_stack(
        self,
        shape: Any,
        dtype: Any,
        buffer: Any = None,
        name: str = "",
        base_partition: int = 0,
        align: int | None = None,
    ) -> Any:
        """A tile of `shape` (partitions first) from the stack, aligned to `align` bytes (32 by default)."""
        start = align_to(self.stack, align or DEFAULT_ALIGNMENT)
        end = start + num_elts(shape) * sizeinbytes(dtype)
        self._check_room(end <= self.heap, shape, dtype, name)
        self.stack = end
        if self.scopes:
            scope = self.scopes[-1]
            scope.high = max(scope.high, end)
            scope.tiles.append(f"{self.prefix}{name or 'tile'} {list(shape)} at {start}")
        return self._tile(shape, dtype, buffer, name, base_partition, start)

    def alloc_heap(
        self,
        shape: Any,
        dtype: Any,
        buffer: Any = None,
        name: str = "",
        base_partition: int = 0,
        align: int | None = None,
    ) -> Any:
        """A tile of `shape` from the heap."""
        unit = align or DEFAULT_ALIGNMENT
        start = (self.heap - num_elts(shape) * sizeinbytes(dtype)) // unit * unit
        self._check_room(start >= self.stack, shape, dtype, name)
        self.heap_tiles.append((f"{self.prefix}{name or 'tile'} {list(shape)} at {start}", self.heap))
        self.heap = start
        return self._tile(shape, dtype, buffer, name, base_partition, start)

    def pop_heap(self) -> None:
        """Give the last heap tile's bytes back."""
        kernel_assert(bool(self.heap_tiles), "pop_heap of an empty heap")
        self.heap = self.heap_tiles.pop()[1]

    def align_stack_curr_addr(self, align: int = DEFAULT_ALIGNMENT) -> None:
        """Move the stack's top up to a multiple of `align` bytes."""
        self.stack = align_to(self.stack, align)
        kernel_assert(self.stack <= self.heap, f"no SBUF left to align the stack to {align}")

    def _tile(self, shape: Any, dtype: Any, buffer: Any, name: str, partition: int, start: int) -> Any:
        self.peak = max(self.peak, self.get_used_space())
        if self.logger is not None:
            self.logger.debug(f"{name or 'tile'} {list(shape)} at byte {start}")
        place = None if self.use_auto_alloc else (partition, start)
        full = f"{self.prefix}{name}" if name else ""
        return nl.ndarray(tuple(shape), dtype=dtype, buffer=buffer or nl.sbuf, name=full, address=place)

    def _check_room(self, fits: bool, shape: Any, dtype: Any, name: str) -> None:
        need = num_elts(shape) * sizeinbytes(dtype)
        if not fits and not self.use_auto_alloc:
            kernel_assert(False, f"no SBUF for {name or 'tile'} {list(shape)} of {need} bytes\n{self.report()}")

    # -- the books ---------------------------------------------------------------------------------------------------

    def set_name_prefix(self, prefix: str) -> None:
        """A prefix for the names of the tiles to come."""
        self.prefix = prefix

    def get_name_prefix(self) -> str:
        return self.prefix

    def get_stack_curr_addr(self) -> int:
        """The first free byte above the stack."""
        return self.stack

    def get_heap_curr_addr(self) -> int:
        """The lowest byte that the heap uses."""
        return self.heap

    def get_total_space(self) -> int:
        """Bytes of a partition that the manager has."""
        return self.upper - self.lower

    def get_used_space(self) -> int:
        """Bytes in use now."""
        return self.stack - self.lower + self.upper - self.heap

    def get_free_space(self) -> int:
        """Bytes between stack and heap."""
        return self.heap - self.stack

    def report(self) -> str:
        """What lies where, for reading."""
        used, free = self.get_used_space(), self.get_free_space()
        lines = [f"SBUF [{self.lower}, {self.upper}): {used} bytes used, {free} free, peak {self.peak}"]
        for depth, scope in enumerate(self.scopes):
            lines.append(f"{'  ' * (depth + 1)}scope {scope.name} from {scope.start}, sections {scope.sections}")
            for tile in scope.tiles:
                lines.append(f"{'  ' * (depth + 2)}{tile}")
        for tile, _ in self.heap_tiles:
            lines.append(f"  heap {tile}")
        return "\n".join(lines)


BufferManager = SbufManager


def create_auto_alloc_manager(logger: Logger | None = None) -> SbufManager:
    """A manager that leaves the places to the compiler."""
    return SbufManager(0, nl.tile_size.sbuf_fmax_bytes, logger=logger, use_auto_alloc=True)
