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


class Places:
    """The tiles of a core that have addresses: `active` ones, and `dormant` ones whose bytes were all taken by others.

    A dormant tile is looked at again only where it is read or written: kernels hold many tiles of the same few addresses.
    """

    __slots__ = ("active", "dormant")

    def __init__(self) -> None:
        self.active: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()
        self.dormant: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()


class Overlap:
    """What a storage knows of the tiles that share bytes with it.

    `others` are those tiles, weakly held; `taken` is a mask [partitions, bytes] of its own bytes that another tile wrote
    last (None: none of them), `all_taken` whether that is all of them, and `by` the number, name, address and place of the
    tile that wrote last. A tile that is gone keeps no bytes: what it wrote is reported, not fetched.
    """

    __slots__ = ("all_taken", "by", "others", "places", "taken")

    def __init__(self, places: Places) -> None:
        self.places = places
        self.others: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()
        self.taken: np.ndarray | None = None
        self.all_taken = False
        self.by: tuple[int, str, Any, Any] | None = None


def place(core: Core, storage: Storage) -> None:
    """Find the live tiles of this core that share bytes with a new one that has an address."""
    if core.placed is None:
        core.placed = Places()
    _link(core.placed, storage, core.placed.active)
    core.placed.active[storage.number] = storage


def _link(places: Places, storage: Storage, among: weakref.WeakValueDictionary[int, Storage]) -> None:
    for other in list(among.values()):
        if other is storage or _window(storage, other) is None:
            continue
        for one, two in ((storage, other), (other, storage)):
            if one.overlap is None:
                one.overlap = Overlap(places)
            one.overlap.others[two.number] = two


def _link_all(storage: Storage) -> None:
    places = storage.overlap.places
    _link(places, storage, places.active)
    _link(places, storage, places.dormant)


def wrote(view: NkiTensor) -> None:
    """After a write through `view` of a storage that shares bytes: they are its own, and no other's."""
    storage = view.storage
    overlap = storage.overlap
    assert overlap is not None
    if overlap.all_taken:  # dormant until now
        _link_all(storage)
        overlap.all_taken = False
        overlap.places.dormant.pop(storage.number, None)
        overlap.places.active[storage.number] = storage
    if overlap.taken is None and not overlap.others:
        return
    mask = None if view.covers_storage() else _bytes_of(view)
    if overlap.taken is not None:
        if mask is not None:
            overlap.taken = overlap.taken & ~mask
        if mask is None or not overlap.taken.any():
            overlap.taken = overlap.by = None
    for other in list(overlap.others.values()):
        if not other.overlap.all_taken:
            _take(storage, other, mask)
        if other.overlap.all_taken:
            del overlap.others[other.number]


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
    if overlap.all_taken:
        _link_all(storage)
    for other in list(overlap.others.values()):
        if _copy(other, storage, wanted):
            overlap.by = _named(other)
    _mark(storage, wanted)
    return True


def _named(storage: Storage) -> tuple[int, str, Any, Any]:
    return storage.number, storage.name, storage.address, storage.place


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
    shape = (other.partitions, _bytes_per_partition(other))
    whole = mask is None and (their_rows, theirs) == (slice(0, shape[0]), slice(0, shape[1]))
    if whole:
        overlap.taken = np.broadcast_to(np.True_, shape)
    else:
        if overlap.taken is None:
            overlap.taken = np.zeros(shape, np.bool_)
        overlap.taken[their_rows, theirs] |= True if mask is None else mask[rows, columns]
    overlap.by = _named(storage)
    if whole or overlap.taken.all():
        overlap.all_taken = True
        overlap.places.active.pop(other.number, None)
        overlap.places.dormant[other.number] = other


def _copy(other: Storage, storage: Storage, wanted: np.ndarray) -> bool:
    """Copy what is wanted and belongs to the other tile out of it; whether there is any."""
    window = _window(other, storage)
    if window is None or other.state in (EMPTY, GONE):
        return False
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
    return bool(own.any())


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
