"""Spills: where the live tiles of a core do not fit into SBUF, some are stored to HBM and loaded again before their next use.

In program order, the tile that is needed again the furthest away makes room; one that HBM already holds unchanged is not
stored again. The traffic becomes DMA instructions of the schedule, at the line that needed the room.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from typing import Any

from vibeserve.nki.errors import KernelError
from vibeserve.nki.memory import label_of
from vibeserve.nki.observe import Operand
from vibeserve.nki.timing.ops import Plan, Tile
from vibeserve.nki.timing.recorder import Recorder

SAVE, RELOAD = "save", "reload"


def spilled(recorder: Recorder, capacity: int) -> Recorder:
    """A copy of a recorded run with spills, so that each core's tiles fit into `capacity` bytes of a partition; the run
    itself where they fit anyway. Raises the out-of-memory error where one instruction's own tiles do not fit."""
    made = _Spiller(recorder, capacity).run()
    return made if len(made.plans) > len(recorder.plans) else recorder


def kind_of(plan: Plan) -> str | None:
    """SAVE or RELOAD where the instruction is a spill."""
    return plan.params.get("spill") if plan.engine == "dma" else None


class _Spiller:
    def __init__(self, recorder: Recorder, capacity: int):
        self.recorder, self.capacity = recorder, capacity
        self.made = copy.copy(recorder)
        made = self.made
        made.forms, made.tiles = list(recorder.forms), dict(recorder.tiles)
        made.storage_names, made.pitches = dict(recorder.storage_names), dict(recorder.pitches)
        made.written_hbm = set(recorder.written_hbm)
        made.plans, made.locations, made.cores, made.sites = [], [], [], []
        self.uses: dict[int, list[int]] = {}
        self.rows: dict[int, int] = {}
        for index, (plan, places) in enumerate(zip(recorder.plans, recorder.locations, strict=True)):
            for at, operand in enumerate(plan.operands):
                storage = places[2 * at]
                tile = recorder.tiles.get(storage)
                if tile is not None and tile.region == "sbuf" and not tile.fixed:
                    self.uses.setdefault(storage, []).append(index)
                    self.rows[storage] = max(self.rows.get(storage, 0), operand.partitions[1])
        self.number = 1 + max([*(n for places in recorder.locations for n in places[::2]), *recorder.tiles], default=0)
        self.alias: dict[int, int] = {}  # resident tiles: the number of their present stay
        self.copies: dict[int, int] = {}  # HBM storages of what was stored
        self.dirty: set[int] = set()
        self.used: dict[int, int] = {}
        self.plans: dict[Any, Plan] = {}

    def run(self) -> Recorder:
        """Go through the instructions."""
        recorder, made = self.recorder, self.made
        where: dict[int, int] = {}
        for index, (plan, places) in enumerate(zip(recorder.plans, recorder.locations, strict=True)):
            needed = list(dict.fromkeys(storage for storage in places[::2] if storage in self.uses))
            for storage in needed:
                if storage not in self.alias:
                    self._enter(storage, index, needed)
            where[index] = len(made.plans)
            alias = self.alias
            self._append(plan, tuple(alias.get(n, n) if at % 2 == 0 else n for at, n in enumerate(places)), index)
            for at, operand in enumerate(plan.operands):
                if operand.write and places[2 * at] in self.uses:
                    self.dirty.add(places[2 * at])
            for storage in needed:
                if self.uses[storage][-1] == index:
                    self._leave(storage)
        made.names = {where[index]: name for index, name in recorder.names.items()}
        made.edges = [(where[later], where[earlier]) for later, earlier in recorder.edges]
        made.last_use = {}
        for index, places in enumerate(made.locations):
            for storage in places[::2]:
                made.last_use[storage] = index
        return made

    def _append(self, plan: Plan, places: tuple[int, ...], index: int) -> None:
        made = self.made
        made.plans.append(plan)
        made.locations.append(places)
        made.cores.append(self.recorder.cores[index])
        made.sites.append(self.recorder.sites[index])

    def _leave(self, storage: int) -> None:
        tile = self.recorder.tiles[storage]
        del self.alias[storage]
        self.used[tile.core] -= tile.bytes

    def _enter(self, storage: int, index: int, needed: list[int]) -> None:
        """Make a tile resident before instruction `index`."""
        tiles = self.recorder.tiles
        tile = tiles[storage]
        while self.used.get(tile.core, 0) + tile.bytes > self.capacity:
            others = [n for n in self.alias if tiles[n].core == tile.core and n not in needed]
            if not others:
                raise KernelError(
                    f"one instruction's tiles need more than {self.capacity:,} bytes of sbuf in a partition", code="NCC_IGCA035",
                    rule="a spill makes room only for what one instruction needs", fix="smaller tiles", place=self.recorder.place(index),
                )  # fmt: skip
            furthest = max(others, key=lambda n: (self._next(n, index), -n))
            self._evict(furthest, index)
        self.used[tile.core] = self.used.get(tile.core, 0) + tile.bytes
        if storage not in self.copies or storage in self.dirty:
            self.alias[storage] = storage
            return
        number = self._fresh()
        self.made.tiles[number] = Tile(tile.core, tile.region, list(tile.life))
        self.made.storage_names[number] = self.recorder.storage_names.get(storage, "")
        self.alias[storage] = number
        self._append(self._plan(RELOAD, storage), (number, 0, self.copies[storage], 0), index)

    def _next(self, storage: int, index: int) -> int:
        uses = self.uses[storage]
        return uses[min(bisect_right(uses, index - 1), len(uses) - 1)]

    def _evict(self, storage: int, index: int) -> None:
        if storage in self.dirty:
            if storage not in self.copies:
                self.copies[storage] = self._fresh()
                self.made.storage_names[self.copies[storage]] = (
                    f"spill of {label_of(self.recorder.tiles[storage].life[4])}"
                )
                self.made.written_hbm.add(self.copies[storage])
            self._append(self._plan(SAVE, storage), (self.copies[storage], 0, self.alias[storage], 0), index)
            self.dirty.discard(storage)
        self._leave(storage)

    def _fresh(self) -> int:
        self.number += 1
        return self.number - 1

    def _plan(self, kind: str, storage: int) -> Plan:
        rows, width = self.rows[storage], self.recorder.tiles[storage].bytes
        plan = self.plans.get((kind, rows, width))
        if plan is None:
            regions = ("private_hbm", "sbuf") if kind == SAVE else ("sbuf", "private_hbm")
            operands = tuple(
                Operand(
                    role,
                    role == "dst",
                    -1,
                    "",
                    region,
                    "uint8",
                    1,
                    (rows, width),
                    (width, 1),
                    0,
                    width,
                    None,
                    False,
                    False,
                )
                for role, region in zip(("dst", "src"), regions, strict=True)
            )
            plan = self.plans[kind, rows, width] = self.made.make("dma_copy", "dma", operands, {"spill": kind})
        return plan
