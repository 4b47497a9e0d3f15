"""Where tiles go: each memory as bytes that have been free the longest, and the banks that tiles of PSUM lie in.

Memory rotates: what was released first is handed out first, and a new tile waits for those who used it last. A bank is
taken for what is in it at the same time alone: tiles are not made to wait because small ones have broken a bank up, which
a compiler would arrange otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Users = tuple[int, ...]  # the instructions that used memory last
_A_TILE = 1 << 40  # in a bank's rank: more than there are releases
Pieces = tuple[tuple[int, int], ...]  # (bank, bytes) one after another


class Pool:
    """Bytes of a partition that are handed out in the order of their release: `free` are (bytes, who used them last), and
    what is released is put at its end."""

    __slots__ = ("free",)

    def __init__(self, size: int):
        self.free: deque[tuple[int, Users]] = deque([(size, ())])

    def take(self, size: int) -> Sequence[int]:
        """Take `size` bytes, or what there is; returns who used them last."""
        free = self.free
        if free and free[0][0] == size:
            return free.popleft()[1]
        waits: list[int] = []
        while size > 0 and free:
            held, before = free.popleft()
            waits.extend(before)
            if held > size:
                free.appendleft((held - size, before))
            size -= held
        return waits


class Banks:
    """The banks of PSUM. A tile goes into the one with the fewest tiles, of equal ones that which was left first; a tile of
    several banks goes on in the next. `places` are the pieces of each tile by storage."""

    def __init__(self, count: int, size: int):
        self.size = size
        self.room = [size] * count
        self.tiles = [0] * count
        self.rank = [0] * count  # tiles first, then the number of the release that it was left by
        self.releases = 0
        self.places: dict[int, Pieces] = {}

    def take(self, storage: int, size: int) -> None:
        """Find a place for a tile of `size` bytes of a partition (in part, where PSUM is full)."""
        pieces = []
        while size > 0:
            want = min(size, self.size)
            bank = self._emptiest(want)
            if bank < 0:
                bank = self._emptiest(1)
            if bank < 0:
                break
            taken = min(want, self.room[bank])
            pieces.append((bank, taken))
            self.room[bank] -= taken
            self.tiles[bank] += 1
            self.rank[bank] += _A_TILE
            size -= taken
        self.places[storage] = tuple(pieces)

    def _emptiest(self, want: int) -> int:
        """Of the banks with room for `want` bytes the one with the fewest tiles, left first; -1 where there is none."""
        rank, room = self.rank, self.room
        found = rank.index(min(rank))
        if room[found] >= want:
            return found
        fit = [bank for bank, left in enumerate(room) if left >= want]
        return min(fit, key=rank.__getitem__, default=-1)

    def fix(self, storage: int, address: int, size: int) -> None:
        """Note a tile that the kernel put at an address of its own."""
        first, last = address // self.size, (address + max(1, size) - 1) // self.size
        self.places[storage] = tuple((bank, self.size) for bank in range(first, last + 1))

    def release(self, storage: int) -> None:
        """Give a tile's bytes back."""
        self.releases += 1
        for bank, size in self.places[storage]:
            self.room[bank] += size
            self.tiles[bank] -= 1
            self.rank[bank] = self.tiles[bank] * _A_TILE + self.releases


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
