"""What an instruction waits for: hazards on bytes, memory that must be free again, barriers, and order asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from vibeserve.nki.targets import Target
from vibeserve.nki.timing.ops import Box, Plan, box_of
from vibeserve.nki.timing.placing import Banks, Pool
from vibeserve.nki.timing.recorder import Recorder

BARRIERS = ("core_barrier",)
EXCHANGES = ("sendrecv",)
QUEUES_FROM = 5  # streams from this number on (modulo 16) are DMA queues, whose transfers may end in any order
_CELL_ROWS = 128
_CELL_BYTES = 8192
_MANY_CELLS = 64
_FEW = 24  # places of a storage that are compared one by one


class Cell(msgspec.Struct, eq=False):
    """A place that is accessed: its last writer (-1: none), its readers since by stream, and the places that it shares
    bytes with as (other, whether this one covers it)."""

    writer: int = -1
    readers: dict[int, int] = {}  # one for each cell
    others: Sequence[tuple[Cell, bool]] = ()
    box: Box | None = None


class Places:
    """The places of one storage that a core accesses, found by extent and offset; near ones are found by a grid."""

    __slots__ = ("cells", "grid", "wide")

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.grid: dict[tuple[int, int], list[Cell]] = {}
        self.wide: list[Cell] = []

    def add(self, cell: Cell, box: Box) -> None:
        """A new place: find what it overlaps."""
        cell.box = box
        for other in self._near(box):
            assert other.box is not None
            if other.box.overlaps(box):
                cell.others = [*cell.others, (other, box.covers(other.box))]
                other.others = [*other.others, (cell, other.box.covers(box))]
        self.cells.append(cell)
        if len(self.cells) == _FEW:
            for known in self.cells:
                self._note(known)
        elif len(self.cells) > _FEW:
            self._note(cell)

    def _near(self, box: Box) -> Iterable[Cell]:
        if len(self.cells) < _FEW:
            return self.cells
        lists = self._lists(box)
        near = [*(lists if lists is not None else self.grid.values()), self.wide]
        return {id(cell): cell for cells in near for cell in cells}.values()

    def _note(self, cell: Cell) -> None:
        assert cell.box is not None
        lists = self._lists(cell.box)
        for cells in lists if lists is not None else (self.wide,):
            cells.append(cell)

    def _lists(self, box: Box) -> list[list[Cell]] | None:
        rows = range(box.row // _CELL_ROWS, (box.row_end - 1) // _CELL_ROWS + 1)
        columns = range(box.low // _CELL_BYTES, (box.high - 1) // _CELL_BYTES + 1)
        if len(rows) * len(columns) > _MANY_CELLS:
            return None
        return [self.grid.setdefault((row, column), []) for row in rows for column in columns]


class Dependencies:
    """Works out `deps` (for each instruction the earlier ones that it waits for) and `orders` (those that it only starts
    after, being of the same stream). `streams[i]` is the in-order stream of instruction i; `target` has the memories' sizes;
    `banks` are the places of each core's tiles in PSUM; `in_order` says that a compute engine ends its instructions in program order, so that of
    several on one engine the last is enough to wait for; `loose` which forms may yet go to another engine."""

    def __init__(self, recorder: Recorder, streams: Sequence[int], target: Target, in_order: bool = True,
        loose: Callable[[Plan], bool] = lambda plan: False,
    ):  # fmt: skip
        self.loose = loose
        self.recorder, self.streams, self.in_order = recorder, streams, in_order
        self.deps: list[list[int]] = []
        self.orders: dict[int, list[int]] = {}
        cores, count = set(recorder.cores), target.psum_per_partition // target.psum_bank
        sizes = {"sbuf": target.sbuf_usable_per_partition, "psum": target.psum_per_partition}
        self.pools = {(core, region): Pool(size) for core in cores for region, size in sizes.items()}
        self.banks = {core: Banks(count, target.psum_bank) for core in cores}
        self.places: dict[int, Any] = {}  # Places, or the only place so far: (cell, plan, operand, storage, offset)
        self.cells: dict[tuple[int, int, int], Cell] = {}
        self.ends: dict[int, list[int]] = {}
        last_use = recorder.last_use
        for storage, (_, _, life) in recorder.tiles.items():
            if life[1] and life[6] is None:
                last = life[1] - 1 if last_use is None else last_use.get(storage, -1)
                self.ends.setdefault(last, []).append(storage)

    def run(self) -> None:
        """Go through the instructions in program order."""
        recorder, streams, ends, deps = self.recorder, self.streams, self.ends, self.deps
        in_order, written = self.in_order, recorder.written_hbm
        cells, get = self.cells, self.cells.get
        before_write, new = self._before_write, self._new
        add = deps.append
        for index, (plan, places, stream) in enumerate(zip(recorder.plans, recorder.locations, streams, strict=True)):
            waits: list[int] = []
            key = stream if in_order and stream & 15 < QUEUES_FROM else -index - 1
            at = 0
            for extent, write, in_hbm in plan.accesses:
                storage, offset = places[at], places[at + 1]
                at += 2
                if in_hbm and storage not in written:  # nothing is ever written to it
                    continue
                found = (storage, extent, offset)
                cell = get(found)
                if cell is None:
                    cell = cells[found] = Cell()
                    new(cell, plan, at // 2 - 1, storage, offset, waits)
                if write:
                    if cell.readers:
                        before_write(cell, index, stream, waits)
                        cell.readers = {}
                    elif cell.writer >= 0 and (stream & 15 or not in_order or streams[cell.writer] != stream):
                        before_write(cell, index, stream, waits)
                    cell.writer = index
                    for other, covered in cell.others:
                        before_write(other, index, stream, waits)
                        if covered:
                            other.writer = -1
                            other.readers = {}
                else:
                    if cell.writer >= 0:
                        waits.append(cell.writer)
                    for other, _ in cell.others:
                        if other.writer >= 0:
                            waits.append(other.writer)
                    cell.readers[key] = index
            if index in waits:
                waits = [earlier for earlier in waits if earlier != index]
            add(waits)
            if index in ends:
                self._release(ends[index])
        self._edges()
        self._barriers()

    def _before_write(self, cell: Cell, index: int, stream: int, waits: list[int]) -> None:
        """What a write to a place waits for. On one stream a sum into PSUM and a write after a read need only the order."""
        streams = self.streams
        writer = cell.writer
        if writer >= 0:
            if streams[writer] != stream or stream & 15:
                waits.append(writer)
            elif not self.in_order:
                self.orders.setdefault(index, []).append(writer)  # sums: the Tensor Engine's alone
        if cell.readers:
            for reader in cell.readers.values():
                if streams[reader] != stream:
                    waits.append(reader)
                elif not self.in_order:
                    loose = self.loose(self.recorder.plans[index]) or self.loose(self.recorder.plans[reader])
                    if loose:
                        waits.append(reader)
                    else:
                        self.orders.setdefault(index, []).append(reader)

    def _new(self, cell: Cell, plan: Plan, at: int, storage: int, offset: int, waits: list[int]) -> None:
        """The first access to a place: a new tile takes memory, a new place of an old one is compared with the others."""
        places = self.places.get(storage)
        if places is None:
            self.places[storage] = (cell, plan, at, storage, offset)
            tile = self.recorder.tiles.get(storage)
            if tile is not None:
                core, region, life = tile
                if region == "psum":
                    self._bank(storage, core, life)
                if life[6] is None:
                    before = self.pools[core, region].take(life[2])
                    if before:
                        waits.extend(before)
            return
        if places.__class__ is tuple:
            lone = places
            places = self.places[storage] = Places()
            places.add(lone[0], self._box(*lone[1:]))
        places.add(cell, self._box(plan, at, storage, offset))

    def _bank(self, storage: int, core: int, life: Sequence[Any]) -> None:
        """Note the banks of a tile in PSUM."""
        if life[6] is not None:
            self.banks[core].fix(storage, life[6][1], life[2])
        else:
            self.banks[core].take(storage, life[2])

    def _box(self, plan: Plan, at: int, storage: int, offset: int) -> Box:
        extent = plan.shapes[at]
        if extent is not None:
            rows, reach, itemsize, free = extent
            first, low = divmod(offset * itemsize, free)
            return Box(first, first + rows, low, low + reach)
        operand = plan.operands[at]
        if (operand.storage, operand.offset) != (storage, offset):
            operand = replace(operand, storage=storage, offset=offset)
        return box_of(operand, self.recorder.pitch(operand))

    def _release(self, storages: Sequence[int]) -> None:
        tiles, pools, places_of = self.recorder.tiles, self.pools, self.places.get
        for storage in storages:
            places = places_of(storage)
            if places is None:
                continue
            core, region, life = tiles[storage]
            if places.__class__ is tuple:
                cell = places[0]
                users = (cell.writer, *cell.readers.values()) if cell.writer >= 0 else tuple(cell.readers.values())
            else:
                users = self._users(places.cells)
            pools[core, region].free.append((life[2], users))
            if region == "psum":
                self.banks[core].release(storage)

    def _users(self, cells: Sequence[Cell]) -> tuple[int, ...]:
        """Who used a tile last: for a compute engine its last instruction, of transfers all."""
        users: dict[int, int] = {}
        for cell in cells:
            for user in (cell.writer, *cell.readers.values()):
                if user >= 0:
                    stream = self.streams[user]
                    key = stream if self.in_order and stream & 15 < QUEUES_FROM else -user - 1
                    users[key] = max(users.get(key, -1), user)
        return tuple(users.values())

    def _edges(self) -> None:
        for later, earlier in self.recorder.edges:
            if self.streams[later] == self.streams[earlier]:
                self.orders.setdefault(later, []).append(earlier)
            else:
                self.deps[later].append(earlier)

    def _barriers(self) -> None:
        """A barrier waits for everything before it on every core that comes to it; everything after it waits for it."""
        recorder = self.recorder
        opcodes = {plan.opcode for plan in recorder.forms}
        if opcodes & set(EXCHANGES):
            self._exchanges()
        if not opcodes & set(BARRIERS):
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
        self._together(meetings.values())

    def _exchanges(self) -> None:
        """Cores that send to each other wait for what either of them waits for; nothing else does."""
        recorder = self.recorder
        meetings: dict[tuple[str, int], list[int]] = {}
        met: dict[tuple[str, int], int] = {}
        for index, (plan, core) in enumerate(zip(recorder.plans, recorder.cores, strict=True)):
            if plan.opcode in EXCHANGES:
                pipe = str(plan.params.get("pipe_id"))
                number = met[pipe, core] = met.get((pipe, core), -1) + 1
                meetings.setdefault((pipe, number), []).append(index)
        self._together(meetings.values())

    def _together(self, meetings: Iterable[list[int]]) -> None:
        for members in meetings:
            every = sorted({earlier for index in members for earlier in self.deps[index]} - set(members))
            for index in members:
                self.deps[index] = list(every)
