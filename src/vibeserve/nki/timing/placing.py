"""Where tiles go: SBUF as bytes that have been free the longest, PSUM by banks.

Both hand out what was released first, so memory rotates, and tell who used it last: a new tile waits for those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Users = tuple[int, ...]  # the instructions that used memory last
Pieces = tuple[tuple[int, int], ...]  # (bank, bytes) one after another


class Pool:
    """Bytes of a partition that are handed out in the order of their release."""

    __slots__ = ("free",)

    def __init__(self, size: int):
        self.free: deque[tuple[int, Users]] = deque([(size, ())])

    def take(self, size: int) -> list[int]:
        """Take `size` bytes, or what there is; returns who used them last."""
        waits: list[int] = []
        free = self.free
        while size > 0 and free:
            held, before = free.popleft()
            waits.extend(before)
            if held > size:
                free.appendleft((held - size, before))
            size -= held
        return waits

    def release(self, size: int, users: Users) -> None:
        """Give back `size` bytes."""
        self.free.append((size, users))


class Banks:
    """PSUM: a tile goes into one bank where it fits, that whose memory was released first; of banks that nobody used yet
    into the one with the fewest tiles. A larger one goes on in the next. `places` are the pieces of each tile by storage."""

    def __init__(self, count: int, size: int):
        self.size = size
        self.free: list[deque[tuple[int, Users, int]]] = [deque([(size, (), -1)]) for _ in range(count)]
        self.room = [size] * count
        self.tiles = [0] * count
        self.released = 0
        self.places: dict[int, Pieces] = {}

    def take(self, storage: int, size: int) -> list[int]:
        """Take `size` bytes, or what there is; returns who used them last."""
        waits: list[int] = []
        pieces = []
        while size > 0 and any(self.room):
            want = min(size, self.size)
            fits = [bank for bank, room in enumerate(self.room) if room >= want]
            if not fits:
                fits = [bank for bank, room in enumerate(self.room) if room]
            bank = min(fits, key=lambda bank: (self.free[bank][0][2], self.tiles[bank], bank))
            taken = min(want, self.room[bank])
            pieces.append((bank, taken))
            self._cut(bank, taken, waits)
            size -= taken
        self.places[storage] = tuple(pieces)
        return waits

    def _cut(self, bank: int, size: int, waits: list[int]) -> None:
        self.room[bank] -= size
        self.tiles[bank] += 1
        free = self.free[bank]
        while size > 0:
            held, before, when = free.popleft()
            waits.extend(before)
            if held > size:
                free.appendleft((held - size, before, when))
            size -= held

    def fix(self, storage: int, address: int, size: int) -> None:
        """Note a tile that the kernel put at an address of its own."""
        first, last = address // self.size, (address + max(1, size) - 1) // self.size
        self.places[storage] = tuple((bank, self.size) for bank in range(first, last + 1))

    def release(self, storage: int, users: Users) -> None:
        """Give a tile's bytes back."""
        self.released += 1
        for bank, size in self.places[storage]:
            self.free[bank].append((size, users, self.released))
            self.room[bank] += size
            self.tiles[bank] -= 1


def banks_of(pieces: Pieces, low: int, high: int) -> Sequence[int]:
    """The banks that bytes [low, high) of a tile lie in."""
    if len(pieces) == 1:
        return (pieces[0][0],)
    found, at = [], 0
    for bank, size in pieces:
        if at < high and low < at + size:
            found.append(bank)
        at += size
    return found
