"""What an instruction waits for: hazards on bytes, memory that must be free again, barriers, and order asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from vibeserve.nki.timing.ops import Access, Box, Op, Recorder

BARRIERS = ("core_barrier", "sendrecv")
_CELL_ROWS = 128
_CELL_BYTES = 8192
_MANY_CELLS = 64


class _History:
    """Who wrote and who read one storage, found by place: boxes in cells of rows × bytes, wide ones apart."""

    __slots__ = ("cells", "wide")

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], list[tuple[Box, int, bool]]] = {}
        self.wide: list[tuple[Box, int, bool]] = []

    def _lists(self, box: Box) -> list[list[tuple[Box, int, bool]]] | None:
        rows = range(box.row // _CELL_ROWS, (box.row_end - 1) // _CELL_ROWS + 1)
        columns = range(box.low // _CELL_BYTES, (box.high - 1) // _CELL_BYTES + 1)
        if len(rows) * len(columns) > _MANY_CELLS:
            return None
        return [self.cells.setdefault((row, column), []) for row in rows for column in columns]

    def found(self, box: Box, write: bool) -> set[int]:
        """The ops whose accesses clash with one to `box`: writers, and for a write readers too."""
        lists = self._lists(box)
        every = [*(lists if lists is not None else self.cells.values()), self.wide]
        return {
            index for entries in every for other, index, wrote in entries if (wrote or write) and other.overlaps(box)
        }

    def note(self, box: Box, index: int, write: bool) -> None:
        """Remember an access; a write makes what it covers forgotten."""
        lists = self._lists(box)
        if lists is None:
            if write:
                self.wide = [entry for entry in self.wide if not box.covers(entry[0])]
                for entries in self.cells.values():
                    entries[:] = [entry for entry in entries if not box.covers(entry[0])]
            self.wide.append((box, index, write))
            return
        for entries in lists:
            if write:
                entries[:] = [entry for entry in entries if not box.covers(entry[0])]
            entries.append((box, index, write))


def fill(recorder: Recorder, streams: Sequence[str], capacity: dict[str, int]) -> None:
    """Give every op its `deps` (in order, without repeats). `streams[i]` is the in-order stream of op i; `capacity` are the
    bytes of a partition in sbuf and psum."""
    _hazards(recorder.ops, streams)
    _placement(recorder, capacity)
    _barriers(recorder.ops)
    for op in recorder.ops:
        op.deps = sorted(set(op.deps) - {op.index})


def _hazards(ops: Sequence[Op], streams: Sequence[str]) -> None:
    histories: dict[tuple[int, int], _History] = {}
    for op in ops:
        clashes: set[int] = set()
        for access in op.accesses:
            history = histories.setdefault((access.storage, op.core), _History())
            for index in history.found(access.box, access.write):
                if not (access.write and streams[index] == streams[op.index] and _in_order(ops[index], access)):
                    clashes.add(index)
        for access in op.accesses:
            histories[access.storage, op.core].note(access.box, op.index, access.write)
        op.deps.extend(clashes)


def _in_order(earlier: Op, access: Access) -> bool:
    """Whether two accesses by one stream need no wait: sums of the Tensor Engine, and a write after a read."""
    if earlier.engine == "tensor":
        return True
    return not any(other.write and other.storage == access.storage for other in earlier.accesses)


def _placement(recorder: Recorder, capacity: dict[str, int]) -> None:
    """Tiles take the memory that has been free the longest; what used it before must have ended."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    for op in recorder.ops:
        for access in op.accesses:
            if access.storage in recorder.tiles:
                first.setdefault(access.storage, op.index)
                last[access.storage] = op.index
                users.setdefault(access.storage, []).append(op.index)
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for storage, index in first.items():
        if not recorder.tiles[storage].fixed:
            begins.setdefault(index, []).append(storage)
            ends.setdefault(last[storage], []).append(storage)
    pools: dict[tuple[int, str], deque[tuple[int, tuple[int, ...]]]] = {}
    for op in recorder.ops:
        for storage in begins.get(op.index, ()):
            tile = recorder.tiles[storage]
            pool = pools.setdefault((tile.core, tile.region), deque([(capacity[tile.region], ())]))
            op.deps.extend(_take(pool, tile.bytes))
        for storage in ends.get(op.index, ()):
            tile = recorder.tiles[storage]
            pools[tile.core, tile.region].append((tile.bytes, _last_users(recorder.ops, users[storage])))


def _take(pool: deque[tuple[int, tuple[int, ...]]], size: int) -> list[int]:
    waits: list[int] = []
    while size > 0 and pool:
        held, before = pool.popleft()
        waits.extend(before)
        if held > size:
            pool.appendleft((held - size, before))
        size -= held
    return waits


def _last_users(ops: Sequence[Op], users: Sequence[int]) -> tuple[int, ...]:
    """The last user on each engine, and the last transfers (they may end in another order than they began)."""
    last = {ops[index].engine: index for index in users}
    return tuple({*last.values(), *[index for index in users if ops[index].engine == "dma"][-16:]})


def _barriers(ops: Sequence[Op]) -> None:
    """A barrier waits for everything before it on every core that comes to it; everything after it waits for it."""
    before: dict[int, list[int]] = {}
    fence: dict[int, int] = {}
    meetings: dict[int, list[Op]] = {}
    met: dict[int, int] = {}
    for op in ops:
        if op.core in fence:
            op.deps.append(fence[op.core])
        if op.opcode in BARRIERS:
            number = met[op.core] = met.get(op.core, -1) + 1
            op.deps.extend(before.get(op.core, ()))
            meetings.setdefault(number, []).append(op)
            before[op.core] = []
            fence[op.core] = op.index
        else:
            before.setdefault(op.core, []).append(op.index)
    for together in meetings.values():
        every = sorted({index for op in together for index in op.deps})
        members = {op.index for op in together}
        for op in together:
            op.deps = [index for index in every if index not in members]
