"""What an instruction waits for: hazards on bytes, memory that must be free again, barriers, and order asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from vibeserve.nki.timing.ops import Box, Plan, box_of
from vibeserve.nki.timing.recorder import Recorder

BARRIERS = ("core_barrier", "sendrecv")
QUEUES_FROM = 5  # streams from this number on (modulo 16) are DMA queues, whose transfers may end in any order
_CELL_ROWS = 128
_CELL_BYTES = 8192
_MANY_CELLS = 64


class Cell:
    """A place that is accessed: its last writer (-1: none), its readers since by stream, and the places that it shares
    bytes with as (other, whether this one covers it)."""

    __slots__ = ("box", "others", "readers", "writer")

    def __init__(self) -> None:
        self.writer = -1
        self.readers: dict[int, int] = {}
        self.others: list[tuple[Cell, bool]] = []
        self.box: Box | None = None


class Places:
    """The places of one storage that a core accesses, found by extent and offset; near ones are found by a grid."""

    __slots__ = ("cells", "grid", "lone", "wide")

    def __init__(self) -> None:
        self.lone: tuple[Cell, Plan, int, int, int] | None = None  # the only place so far: nothing to compare it with
        self.cells: list[Cell] = []
        self.grid: dict[tuple[int, int], list[Cell]] = {}
        self.wide: list[Cell] = []

    def add(self, cell: Cell, box: Box) -> None:
        """A new place: find what it overlaps."""
        cell.box = box
        lists = self._lists(box)
        near = [*(lists if lists is not None else self.grid.values()), self.wide]
        for other in {id(c): c for cells in near for c in cells}.values():
            assert other.box is not None
            if other.box.overlaps(box):
                cell.others.append((other, box.covers(other.box)))
                other.others.append((cell, other.box.covers(box)))
        for cells in lists if lists is not None else (self.wide,):
            cells.append(cell)
        self.cells.append(cell)

    def _lists(self, box: Box) -> list[list[Cell]] | None:
        rows = range(box.row // _CELL_ROWS, (box.row_end - 1) // _CELL_ROWS + 1)
        columns = range(box.low // _CELL_BYTES, (box.high - 1) // _CELL_BYTES + 1)
        if len(rows) * len(columns) > _MANY_CELLS:
            return None
        return [self.grid.setdefault((row, column), []) for row in rows for column in columns]


class Dependencies:
    """Works out `deps` (for each instruction the earlier ones that it waits for) and `orders` (those that it only starts
    after, being of the same stream). `streams[i]` is the in-order stream of instruction i; `capacity` are the bytes of a
    partition in sbuf and psum; `in_order` says that a compute engine ends its instructions in program order, so that of
    several on one engine the last is enough to wait for."""

    def __init__(self, recorder: Recorder, streams: Sequence[int], capacity: dict[str, int], in_order: bool = True):
        self.recorder, self.streams, self.in_order = recorder, streams, in_order
        self.deps: list[list[int]] = []
        self.orders: dict[int, list[int]] = {}
        self.pools: dict[tuple[int, str], deque[tuple[int, tuple[int, ...]]]] = {
            (core, region): deque([(size, ())]) for core in set(recorder.cores) for region, size in capacity.items()
        }
        self.places: dict[int, Places] = {}
        self.cells: dict[tuple[int, int, int], Cell] = {}
        self.ends: dict[int, list[int]] = {}
        for storage, tile in recorder.tiles.items():
            if not tile.fixed and tile.life[1]:
                self.ends.setdefault(tile.life[1] - 1, []).append(storage)

    def run(self) -> None:
        """Go through the instructions in program order."""
        recorder, streams, ends, deps = self.recorder, self.streams, self.ends, self.deps
        in_order = self.in_order
        read_only = self._read_only()
        get = self.cells.get
        for index, (plan, places) in enumerate(zip(recorder.plans, recorder.locations, strict=True)):
            stream = streams[index]
            waits: list[int] = []
            touched = []
            at = 0
            for extent, write in plan.accesses:
                storage, offset = places[at], places[at + 1]
                at += 2
                if storage in read_only:
                    continue
                cell = get((storage, extent, offset))
                if cell is None:
                    cell = self._new(plan, at // 2 - 1, storage, offset, waits)
                touched.append((cell, write))
                if write:
                    self._before_write(cell, index, stream, waits)
                elif cell.writer >= 0:
                    waits.append(cell.writer)
                if cell.others:
                    for other, _ in cell.others:
                        if write:
                            self._before_write(other, index, stream, waits)
                        elif other.writer >= 0:
                            waits.append(other.writer)
            for cell, write in touched:
                if write:
                    cell.writer = index
                    if cell.readers:
                        cell.readers = {}
                    for other, covered in cell.others:
                        if covered:
                            other.writer = -1
                            other.readers = {}
            key = stream if in_order and stream & 15 < QUEUES_FROM else -index - 1
            for cell, write in touched:
                if not write:
                    cell.readers[key] = index
            deps.append(waits)
            if index in ends:
                self._release(ends[index])
        self._edges()
        self._barriers()
        for index, waits in enumerate(deps):
            if len(waits) > 1:
                deps[index] = sorted(set(waits))

    def _before_write(self, cell: Cell, index: int, stream: int, waits: list[int]) -> None:
        """What a write to a place waits for. On one stream a sum into PSUM and a write after a read need only the order."""
        streams = self.streams
        writer = cell.writer
        if writer >= 0:
            if streams[writer] != stream or stream & 15:
                waits.append(writer)
            elif not self.in_order:
                self.orders.setdefault(index, []).append(writer)
        if cell.readers:
            for reader in cell.readers.values():
                if streams[reader] != stream:
                    waits.append(reader)
                elif not self.in_order:
                    self.orders.setdefault(index, []).append(reader)

    def _read_only(self) -> set[int]:
        """HBM storages that nothing is written to."""
        used: set[int] = set()
        hbm = {p: [2 * i for i, o in enumerate(p.operands) if o.region.endswith("hbm")] for p in self.recorder.forms}
        for plan, places in zip(self.recorder.plans, self.recorder.locations, strict=True):
            for at in hbm[plan]:
                used.add(places[at])
        return used - self.recorder.written_hbm

    def _new(self, plan: Plan, at: int, storage: int, offset: int, waits: list[int]) -> Cell:
        """The first access to a place: a new tile takes memory, a new place of an old one is compared with the others."""
        cell = self.cells[storage, plan.extents[at], offset] = Cell()
        places = self.places.get(storage)
        if places is None:
            places = self.places[storage] = Places()
            tile = self.recorder.tiles.get(storage)
            if tile is not None and not tile.fixed:
                waits.extend(_take(self.pools[tile.core, tile.region], tile.bytes))
        if not places.cells:
            places.cells.append(cell)
            places.lone = (cell, plan, at, storage, offset)
            return cell
        if places.lone is not None:
            lone, places.lone, places.cells = places.lone, None, []
            places.add(lone[0], self._box(*lone[1:]))
        places.add(cell, self._box(plan, at, storage, offset))
        return cell

    def _box(self, plan: Plan, at: int, storage: int, offset: int) -> Box:
        operand = plan.operands[at]
        if (operand.storage, operand.offset) != (storage, offset):
            operand = replace(operand, storage=storage, offset=offset)
        on_chip = operand.region in ("sbuf", "psum")
        return box_of(operand, 0 if on_chip else self.recorder.pitch(operand))

    def _release(self, storages: Sequence[int]) -> None:
        for storage in storages:
            places = self.places.get(storage)
            if places is None:
                continue
            tile = self.recorder.tiles[storage]
            users: dict[int, int] = {}
            for cell in places.cells:
                for user in (cell.writer, *cell.readers.values()):
                    if user >= 0:
                        stream = self.streams[user]
                        key = stream if self.in_order and stream & 15 < QUEUES_FROM else -user - 1
                        users[key] = max(users.get(key, -1), user)
            self.pools[tile.core, tile.region].append((tile.bytes, tuple(users.values())))

    def _edges(self) -> None:
        for later, earlier in self.recorder.edges:
            if self.streams[later] == self.streams[earlier]:
                self.orders.setdefault(later, []).append(earlier)
            else:
                self.deps[later].append(earlier)

    def _barriers(self) -> None:
        """A barrier waits for everything before it on every core that comes to it; everything after it waits for it."""
        recorder = self.recorder
        if not any(plan.opcode in BARRIERS for plan in recorder.forms):
            return
        before: dict[int, list[int]] = {}
        fence: dict[int, int] = {}
        meetings: dict[int, list[int]] = {}
        met: dict[int, int] = {}
        for index, (plan, core) in enumerate(zip(recorder.plans, recorder.cores, strict=True)):
            if core in fence:
                self.deps[index].append(fence[core])
            if plan.opcode in BARRIERS:
                number = met[core] = met.get(core, -1) + 1
                self.deps[index] += before.get(core, ())
                meetings.setdefault(number, []).append(index)
                before[core] = []
                fence[core] = index
            else:
                before.setdefault(core, []).append(index)
        for together in meetings.values():
            every = sorted({earlier for index in together for earlier in self.deps[index]} - set(together))
            for index in together:
                self.deps[index] = list(every)


def _take(pool: deque[tuple[int, tuple[int, ...]]], size: int) -> list[int]:
    """Take the memory that has been free the longest; returns who used it last."""
    waits: list[int] = []
    while size > 0 and pool:
        held, before = pool.popleft()
        waits.extend(before)
        if held > size:
            pool.appendleft((held - size, before))
        size -= held
    return waits
