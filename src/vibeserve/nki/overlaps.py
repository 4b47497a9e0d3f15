"""Tiles that a kernel puts at addresses of its own and that share bytes of SBUF or PSUM.

What is written to one of them is read through the others as well, byte by byte, as on the device: each byte belongs to the
tile that wrote it last, and is fetched from there when another tile is read. The compiler orders instructions by the tiles
that they name, so nothing waits for such a write: the read is reported. A tile starts afresh where it is made: what lay at
its address before is not seen through it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from vibeserve.nki.memory import EMPTY, FULL, GONE, PARTIAL, Storage, label_of

if TYPE_CHECKING:
    from vibeserve.nki.context import Core
    from vibeserve.nki.tensor import NkiTensor


class Overlap:
    """What a storage knows of the tiles that share bytes with it.

    `others` are those tiles, weakly held; `taken` is a mask [partitions, bytes] of its own bytes that another tile wrote
    last (None: none of them), `all_taken` whether that is all of them, and `by` the number, name, address
    and place of the tile that wrote last. A tile that is gone keeps no bytes: what it wrote is reported, not fetched.
    """

    __slots__ = ("all_taken", "by", "others", "taken")

    def __init__(self) -> None:
        self.others: dict[int, weakref.ref[Storage]] = {}
        self.taken: np.ndarray | None = None
        self.all_taken = False
        self.by: tuple[int, str, Any, Any] | None = None


def place(core: Core, storage: Storage) -> None:
    """Find the live tiles of this core that share bytes with a new one that has an address."""
    alive = []
    for reference in core.placed:
        other = reference()
        if other is None:
            continue
        alive.append(reference)
        if _window(storage, other) is not None:
            for one, two in ((storage, other), (other, storage)):
                if one.overlap is None:
                    one.overlap = Overlap()
                one.overlap.others[two.number] = weakref.ref(two)
    core.placed = [*alive, weakref.ref(storage)]


def wrote(view: NkiTensor) -> None:
    """After a write through `view` of a storage that shares bytes: they are its own, and no other's."""
    storage = view.storage
    overlap = storage.overlap
    assert overlap is not None
    mask = None if view.covers_storage() else _bytes_of(view)
    if overlap.taken is not None:
        overlap.all_taken = False
        if mask is not None:
            overlap.taken &= ~mask
        if mask is None or not overlap.taken.any():
            overlap.taken = overlap.by = None
    for number, reference in [*overlap.others.items()]:
        other = reference()
        if other is None:
            del overlap.others[number]
        elif not other.overlap.all_taken:
            _take(storage, other, mask)


def read(core: Core, view: NkiTensor) -> None:
    """Before a read: fetch and report bytes that another tile at the same place wrote last."""
    storage = view.storage
    if fetch(view):
        number, name, address, at = storage.overlap.by
        core.session.report(
            "overlapping-tiles",
            f"{storage.label()} is read where {label_of(name or number)}, at the same address, was written last",
            detail=f"at {storage.address} allocated at {storage.place}, at {address} allocated at {at}; the compiler orders "
            "instructions by the tiles that they name",
            code="NKI-OVERLAP",
            fix="addresses apart, or views of one tile",
        )  # fmt: skip


def fetch(view: NkiTensor) -> bool:
    """Bring the bytes of a view up to date; whether another tile wrote any of them last."""
    storage = view.storage
    overlap = storage.overlap
    if overlap is None or overlap.taken is None:
        return False
    wanted = overlap.taken if view.covers_storage() else overlap.taken & _bytes_of(view)
    if not wanted.any():
        return False
    for reference in overlap.others.values():
        other = reference()
        if other is not None:
            _copy(other, storage, wanted)
    _mark(storage, wanted)
    return True


def _bytes_per_partition(storage: Storage) -> int:
    return storage.free * storage.itemsize


def _window(one: Storage, two: Storage) -> tuple[slice, slice, slice, slice] | None:
    """(partitions, bytes) of the first and of the second where both lie; None where they share nothing."""
    if one.region is not two.region or one.address is None or two.address is None:
        return None
    out: list[slice] = []
    for storage, other in ((one, two), (two, one)):
        sizes = ((storage.partitions, other.partitions), (_bytes_per_partition(storage), _bytes_per_partition(other)))
        for at in (0, 1):
            begin, beside = storage.address[at], other.address[at]  # type: ignore[index]
            low, high = max(begin, beside), min(begin + sizes[at][0], beside + sizes[at][1])
            if low >= high:
                return None
            out.append(slice(low - begin, high - begin))
    return out[0], out[1], out[2], out[3]


def _bytes_of(view: Any) -> np.ndarray:
    """[partitions, bytes] of the storage: which of them a view covers."""
    storage = view.storage
    mask = np.zeros(storage.count, np.bool_)
    if view.rows is not None or view.lanes is not None:
        mask[...] = True
    else:
        storage.over(view, mask)[...] = True
    return np.repeat(mask.reshape(storage.partitions, -1), storage.itemsize, axis=1)


def _take(storage: Storage, other: Storage, mask: np.ndarray | None) -> None:
    """Note in the other tile which of its bytes were written (`mask`, None for all) through this one."""
    window = _window(storage, other)
    assert window is not None
    rows, columns, their_rows, theirs = window
    overlap = other.overlap
    if overlap.taken is None:
        overlap.taken = np.zeros((other.partitions, _bytes_per_partition(other)), np.bool_)
    overlap.taken[their_rows, theirs] |= True if mask is None else mask[rows, columns]
    overlap.all_taken = bool(overlap.taken.all())
    overlap.by = (storage.number, storage.name, storage.address, storage.place)


def _copy(other: Storage, storage: Storage, wanted: np.ndarray) -> None:
    """Copy what is wanted and belongs to the other tile out of it."""
    window = _window(other, storage)
    if window is None or other.state in (EMPTY, GONE):
        return
    rows, columns, my_rows, mine = window
    own = wanted[my_rows, mine].copy()
    if other.overlap.taken is not None:
        own &= ~other.overlap.taken[rows, columns]
    if other.state == PARTIAL:
        assert other.mask is not None
        held = np.repeat(other.mask.reshape(other.partitions, -1), other.itemsize, axis=1)
        own &= held[rows, columns]
    source = other.data.reshape(other.partitions, -1)[rows, columns]
    np.copyto(storage.data.reshape(storage.partitions, -1)[my_rows, mine], source, where=own)


def _mark(storage: Storage, wanted: np.ndarray) -> None:
    """Elements whose bytes were all fetched count as written."""
    if storage.state == FULL:
        return
    if storage.state == EMPTY:
        storage.mask, storage.state = np.zeros(storage.count, np.bool_), PARTIAL
    assert storage.mask is not None
    elements = storage.mask.reshape(storage.partitions, -1)
    held = wanted.reshape(storage.partitions, -1, storage.itemsize).all(axis=2)
    storage.unwritten -= int(np.count_nonzero(held & ~elements))
    elements |= held
    if storage.unwritten <= 0:
        storage.state, storage.mask = FULL, None
