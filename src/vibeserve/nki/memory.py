"""Memory: the regions, and one `Storage` for each allocation.

A storage is a flat run of bytes. On chip it is dense [partitions, free elements], so the partition stride of every view
is the free element count. A storage knows which of its elements were written, and where the kernel allocated it.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import numpy as np

from vibeserve.nki.dtypes import DType, float32
from vibeserve.nki.errors import NOWHERE, KernelError, Place


class MemoryRegion(enum.Enum):
    """Where a tensor lives."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    __hash__ = object.__hash__  # members are the only ones of their kind, and hashed for every allocation

    def __init__(self, label: str):
        self.label = label
        self.on_chip = label in ("sbuf", "psum")
        self.is_hbm = not self.on_chip

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"nl.{self.label}"


sbuf, psum = MemoryRegion.sbuf, MemoryRegion.psum
private_hbm, shared_hbm = MemoryRegion.private_hbm, MemoryRegion.shared_hbm
hbm = private_hbm

EMPTY, PARTIAL, FULL, GONE = 0, 1, 2, 3
POISON_INT = 4


def label_of(name: str | int) -> str:
    """How messages call an allocation of that name, or of that number where it has none."""
    return f"'{name}'" if isinstance(name, str) else f"tensor #{name}"


class Storage(msgspec.Struct, eq=False, weakref=True):
    """The bytes of one allocation.

    `dtype` is the element type it was allocated with and `held` the one its bytes are in (float32 for low precision
    under NKI_PRECISE_FP=0); `count` elements, `free` of them in each of `partitions`; `state` is EMPTY, PARTIAL (then
    `mask` tells the written elements), FULL, or GONE with the loop body that made it; `sums` tells the PSUM elements that a matmul has written.
    """

    region: MemoryRegion
    dtype: DType
    shape: tuple[int, ...]
    held: DType
    inflated: bool
    itemsize: int
    count: int
    partitions: int
    free: int
    kind: tuple[Any, ...]  # with a view: what its form depends on
    scale: int  # an offset over it tells the partition
    name: str = ""
    place: Place = NOWHERE
    address: tuple[int, int] | None = None
    state: int = EMPTY
    unwritten: int = 0
    number: int = 0
    core: int = 0
    life: list[Any] | None = None
    external: bool = False
    mask: np.ndarray | None = None
    poisoned: bool = False
    sums: np.ndarray | None = None
    taken: set[Any] | None = None
    conflicts: np.ndarray | None = None  # who read and wrote it since the last barrier: see `races`
    behind: tuple[np.ndarray, str] | None = None  # the same before a barrier on another tensor, and which
    accesses: list[Any] = []
    aliases: Any = None  # the storages of other arguments in the same memory: see `races`
    overlap: Any = None  # the tiles at the same address: see `overlaps`
    _bytes: np.ndarray | None = None

    @property
    def data(self) -> np.ndarray:
        """The bytes. They are there when something asks for them: a run without arithmetic never does."""
        if self._bytes is None:
            self._bytes = np.empty(self.count * self.itemsize, np.uint8)
        return self._bytes

    @property
    def bytes_per_partition(self) -> int:
        """Bytes that the allocation takes in each partition (as the device stores it)."""
        return self.free * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes in all, as the device stores it."""
        return self.count * self.dtype.itemsize

    def refuse_gone(self) -> None:
        """Refuse the use of a tensor whose loop body has ended."""
        raise KernelError(
            f"{self.label()}, made in the body of a dynamic loop, is used after that pass of the body",
            code="V6-LOOPTENSOR",
            rule="a tensor made in the body lives as long as one pass of it",
            fix="allocate it before the loop",
            operands=f"allocated at {self.place}",
        )

    def label(self) -> str:
        """How messages call it."""
        return label_of(self.name or self.number)

    def _elements(self, view: Any) -> np.ndarray:
        """The mask elements that a view of this storage covers (a writable view of `mask`)."""
        assert self.mask is not None
        return self.over(view, self.mask)

    def over(self, view: Any, mask: np.ndarray) -> np.ndarray:
        """What a view of this storage covers of `mask`, which has one byte an element (a view that writes through)."""
        size, own = view.dtype.itemsize, self.dtype.itemsize
        if size == own:
            return np.ndarray(view.shape, mask.dtype, mask, view.start(), view.strides)
        if size > own and size % own == 0:
            ratio = size // own
            strides = (*(stride * ratio for stride in view.strides), 1)
            return np.ndarray((*view.shape, ratio), mask.dtype, mask, view.start() * ratio, strides)
        low, high = view.extent()
        return mask[low * size // own : -(-high * size // own)]

    def all_written(self, view: Any) -> bool:
        """Whether every element of `view` was written."""
        if self.state == FULL:
            return True
        if self.state == EMPTY:
            return False
        return bool(self._elements(view).all())

    def mark(self, view: Any) -> None:
        """Note that every element of `view` is written now."""
        if self.state == FULL:
            return
        if view.covers_storage():
            self.state, self.mask = FULL, None
            return
        if self.state == EMPTY:
            self.mask = np.zeros(self.count, np.bool_)
            self.state = PARTIAL
        if 0 in view.strides:
            view = view.without_repeats()
        elements = self._elements(view)
        self.unwritten -= elements.size - int(np.count_nonzero(elements))
        elements[...] = True
        if self.unwritten <= 0:
            self.state, self.mask = FULL, None

    def mark_all(self) -> None:
        """Note that everything is written (where what was written depends on data)."""
        self.state, self.mask = FULL, None

    def poison(self) -> None:
        """Fill what was never written: NaN for floats, a sentinel for integers."""
        if self.poisoned or self.state == FULL:
            return
        self.poisoned = True
        values = self.data.view(self.held.stored)
        filler: Any = np.nan if self.held.is_float else POISON_INT
        if self.state == EMPTY:
            values[...] = filler
        else:
            assert self.mask is not None
            values[~self.mask] = filler


def new_storage(
    region: MemoryRegion,
    dtype: DType,
    shape: tuple[int, ...],
    *,
    data: np.ndarray | None = None,
    name: str = "",
    place: Place = NOWHERE,
    address: tuple[int, int] | None = None,
    inflate: bool = False,
) -> Storage:
    """The storage of an allocation; `data` are bytes that hold values already, `inflate` keeps low precision in float32."""
    inflated = inflate and dtype.low_precision
    held = float32 if inflated else dtype
    count = 1
    for size in shape:
        count *= size
    partitions = shape[0]
    free = count // partitions
    if region.on_chip:
        kind, scale = (region.label, dtype.name, free, address), 1 if region is psum else free
    else:
        kind, scale = (region.label, dtype.name, 0, address), 1 << 62
    made = Storage(
        region, dtype, shape, held, inflated, held.itemsize, count, partitions, free, kind, scale, name, place, address,
        EMPTY, count,
    )  # fmt: skip
    if data is not None:
        made._bytes, made.external, made.state = data, True, FULL
    return made
