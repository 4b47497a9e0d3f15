"""The schedule: when each instruction starts and ends, on in-order engines, DMA queues and 16 DMA engines a core.

Times are whole picoseconds from the first instruction, so the same run gives the same schedule to the last digit. Events
are taken in the order of their start; ties by stream and program order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from vibeserve.nki.timing import cost
from vibeserve.nki.timing.deps import BARRIERS
from vibeserve.nki.timing.ops import Op
from vibeserve.nki.timing.params import Params
from vibeserve.nki.timing.transfers import Transfer, is_dma, transfer, trigger_of

PROGRAM, LIST = "program", "list"
_NAMES = {"vector": "to_vector", "scalar": "to_scalar", "tensor": "to_tensor", "gpsimd": "to_gpsimd"}


@dataclass(slots=True)
class Moved:
    """What a transfer did: when each engine's packets began and ended (ps), and its queue."""

    plan: Transfer
    spans: list[tuple[int, int, int, int]]
    first: int
    last: int


@dataclass(slots=True)
class Schedule:
    """The result. `ops` carry start, end, done and wait in ps; `moved` the transfers by op index; `warm` the PE's changes
    of clock as (ps, core, full clock)."""

    ops: Sequence[Op]
    moved: dict[int, Moved] = field(default_factory=dict)
    warm: list[tuple[int, int, bool]] = field(default_factory=list)

    @property
    def latency_ps(self) -> int:
        """From the first instruction to the last wait."""
        return max((op.done for op in self.ops), default=0) - min((op.start for op in self.ops), default=0)


class _Clock:
    """The Tensor Engine's two speeds: full after a window in which it was busy nearly always, half after an idle one."""

    def __init__(self, params: Params, core: int, schedule: Schedule):
        self.window = round(params["tensor_warmup.window_ns"] * 1000)
        self.up = params["tensor_warmup.up_if_busy_over"] * self.window
        self.down = params["tensor_warmup.down_if_busy_under"] * self.window
        self.always = params["clock_ghz.tensor_cold"] == params["clock_ghz.tensor"]
        self.warm = self.always
        self.core, self.schedule = core, schedule
        self.next = 0
        self.busy: dict[int, int] = {}

    def at(self, when: int) -> bool:
        """Whether it runs at full clock at `when` (never asked for a time before the last)."""
        while not self.always and (self.next + 1) * self.window <= when:
            busy = self.busy.pop(self.next, 0)
            warm = busy > self.up or (self.warm and busy >= self.down)
            self.next += 1
            if warm != self.warm:
                self.warm = warm
                self.schedule.warm.append((self.next * self.window, self.core, warm))
            if not self.busy and not self.warm:
                self.next = max(self.next, when // self.window)
        return self.warm

    def worked(self, start: int, end: int) -> None:
        """Note that it was busy."""
        if self.always:
            return
        for window in range(start // self.window, (end - 1) // self.window + 1):
            low, high = max(start, window * self.window), min(end, (window + 1) * self.window)
            self.busy[window] = self.busy.get(window, 0) + high - low


def stream_of(op: Op) -> str:
    """The in-order stream that an instruction belongs to: its engine, or the queue of the engine that starts the DMA."""
    return f"q{trigger_of(op)[0]}" if is_dma(op) else op.engine


class Scheduler:
    """Runs the events (see the module)."""

    def __init__(self, ops: Sequence[Op], params: Params, generation: int, mode: str = PROGRAM):
        self.ops, self.params, self.generation, self.mode = ops, params, generation, mode
        self.schedule = Schedule(ops)
        self.streams: dict[tuple[int, str], list[int]] = {}
        self.keys = [(op.core, stream_of(op)) for op in ops]
        for op, key in zip(ops, self.keys, strict=True):
            self.streams.setdefault(key, []).append(op.index)
        self.heads = dict.fromkeys(self.streams, 0)
        self.free = dict.fromkeys(self.streams, 0)
        self.dma_free: dict[tuple[int, int], int] = {}
        self.hbm_free = 0
        self.hbm_ps_per_byte = 1000 / params["machine.hbm_bytes_per_ns"]
        self.clocks: dict[int, _Clock] = {}
        self.left = [len(op.deps) for op in ops]
        self.ready = [0] * len(ops)
        self.users: list[list[int]] = [[] for _ in ops]
        for op in ops:
            for index in op.deps:
                self.users[index].append(op.index)
        self.waiting: dict[tuple[int, str], list[tuple[int, int]]] = {key: [] for key in self.streams}
        self.available: dict[tuple[int, str], list[int]] = {key: [] for key in self.streams}
        self.events: list[tuple[int, tuple[int, str], int]] = []
        self.version = dict.fromkeys(self.streams, 0)
        self.costs: dict[tuple[object, ...], cost.Cost | cost.MatmulCost | Transfer] = {}
        self.syncs: dict[tuple[str, str], int] = {}
        self.done = 0

    def run(self) -> Schedule:
        """Schedule everything. RuntimeError where instructions wait for one another in a ring."""
        for key, indices in self.streams.items():
            for index in indices if self.mode == LIST else indices[:1]:
                if not self.left[index]:
                    self._offer(key, index)
        for key in self.streams:
            self._announce(key)
        while self.events:
            _, key, version = heapq.heappop(self.events)
            if version != self.version[key]:
                continue
            index = self._take(key)
            self._commit(self.ops[index], key)
        if self.done != len(self.ops):
            stuck = next(op for op in self.ops if not op.done)
            raise RuntimeError(f"{self.done} of {len(self.ops)} instructions scheduled; stuck at {stuck.place}")
        return self.schedule

    def _cost(self, op: Op) -> cost.Cost | cost.MatmulCost | Transfer:
        form = op.form()
        found = self.costs.get(form)
        if found is None:
            if is_dma(op):
                found = transfer(op, self.params)
            elif op.engine == "tensor":
                found = cost.matmul(op, self.params)
            else:
                found = cost.compute(op, self.params, self.generation)
            self.costs[form] = found
        return found

    def _offer(self, key: tuple[int, str], index: int) -> None:
        heapq.heappush(self.waiting[key], (self.ready[index], index))

    def _announce(self, key: tuple[int, str]) -> None:
        """Put the stream's next start among the events (older ones of it do not count any more)."""
        free, waiting, available = self.free[key], self.waiting[key], self.available[key]
        while waiting and waiting[0][0] <= free:
            heapq.heappush(available, heapq.heappop(waiting)[1])
        self.version[key] += 1
        if available:
            heapq.heappush(self.events, (free, key, self.version[key]))
        elif waiting:
            heapq.heappush(self.events, (waiting[0][0], key, self.version[key]))

    def _take(self, key: tuple[int, str]) -> int:
        if self.available[key]:
            return heapq.heappop(self.available[key])
        return heapq.heappop(self.waiting[key])[1]

    def _commit(self, op: Op, key: tuple[int, str]) -> None:
        ready, free = self.ready[op.index], self.free[key]
        if is_dma(op):
            self._move(op, key, max(ready, free))
        elif op.engine == "tensor":
            self._multiply(op, key, ready, free)
        elif op.opcode in BARRIERS:
            op.start = max(ready, free)
            op.end = op.done = op.start + round(self.params["sync_ns.barrier"] * 1000)
            self.free[key] = op.end
        else:
            spent = self._cost(op)
            assert isinstance(spent, cost.Cost)
            op.start = max(ready, free)
            op.end = max(free + spent.work + spent.gap, ready + spent.work + spent.lat)
            op.done = self.free[key] = op.end
        op.wait = max(0, op.start - free)
        self.done += 1
        touched = {key}
        self.heads[key] += 1
        if self.mode == PROGRAM and self.heads[key] < len(self.streams[key]):
            following = self.streams[key][self.heads[key]]
            if not self.left[following]:
                self._offer(key, following)
        for user in self.users[op.index]:
            touched |= self._release(op, self.ops[user])
        for changed in touched:
            self._announce(changed)

    def _release(self, op: Op, user: Op) -> set[tuple[int, str]]:
        self.left[user.index] -= 1
        self.ready[user.index] = max(self.ready[user.index], op.done + self._sync(op, user))
        if self.left[user.index]:
            return set()
        key = self.keys[user.index]
        if self._waits(user, key) > 1:
            self.ready[user.index] += round(self.params["sync_ns.second_wait"] * 1000)
        if self.mode == PROGRAM and self.streams[key][min(self.heads[key], len(self.streams[key]) - 1)] != user.index:
            return set()
        self._offer(key, user.index)
        return {key}

    def _waits(self, op: Op, key: tuple[int, str]) -> int:
        """Engines that the instruction really waits for."""
        free = self.free[key]
        return len({self.ops[i].engine for i in op.deps if self.ops[i].engine != op.engine and self.ops[i].done > free})

    def _sync(self, op: Op, user: Op) -> int:
        pair = (op.engine, user.engine)
        found = self.syncs.get(pair)
        if found is None:
            found = self.syncs[pair] = self._sync_ps(op, user)
        return found

    def _sync_ps(self, op: Op, user: Op) -> int:
        if is_dma(user):
            name = "sync_ns.to_dma"
        elif is_dma(op):
            name = "dma.to_consumer_ns"
        elif op.engine == user.engine:
            name = "sync_ns.same_engine"
        else:
            name = f"sync_ns.{_NAMES.get(user.engine, 'to_dma')}"
        return round(self.params[name] * 1000)

    def _multiply(self, op: Op, key: tuple[int, str], ready: int, free: int) -> None:
        clock = self.clocks.get(op.core)
        if clock is None:
            clock = self.clocks[op.core] = _Clock(self.params, op.core, self.schedule)
        spent = self._cost(op)
        assert isinstance(spent, cost.MatmulCost)
        warm = clock.at(max(ready, free))
        interval, first = (spent.warm_interval, spent.warm_first) if warm else (spent.cold_interval, spent.cold_first)
        op.end = max(free + interval, ready + first)
        op.start = op.end - interval if free + interval >= ready + first else ready
        op.done = self.free[key] = op.end
        clock.worked(max(op.start, op.end - interval), op.end)

    def _move(self, op: Op, key: tuple[int, str], start: int) -> None:
        params, plan = self.params, self._cost(op)
        assert isinstance(plan, Transfer)
        side = "load" if plan.load else "store"
        op.start = start
        if plan.software:
            begun = self.free[key] == start and start > 0
            issued = start + round(params[f"dma.software_issue_{'next' if begun else 'first'}_ns"] * 1000)
            first = issued + round(params[f"dma.software_first_packet_{side}_ns"] * 1000)
        else:
            issued = start + round(params["dma.trigger_ns"] * 1000)
            first = start + round(params[f"dma.first_packet_{side}_ns"] * 1000)
        spans = []
        for engine, packets, work in plan.engines:
            begin = max(first, self.dma_free.get((op.core, engine), 0))
            end = begin + work
            self.dma_free[op.core, engine] = end
            spans.append((engine, begin, end, packets))
        late = self._hbm_delay(op, first, max((span[2] for span in spans), default=first))
        if late:
            spans = [(engine, begin, end + late, packets) for engine, begin, end, packets in spans]
            for engine, _, end, _ in spans:
                self.dma_free[op.core, engine] = end
        last = max((span[2] for span in spans), default=first) + round(params[f"dma.{side}_spread_ns"] * 1000)
        self.schedule.moved[op.index] = Moved(plan, spans, min((s[1] for s in spans), default=first), last)
        op.end = self.free[key] = issued
        op.done = last + round(params["dma.done_ns"] * 1000)

    def _hbm_delay(self, op: Op, first: int, last: int) -> int:
        """ps by which the HBM that all cores share holds a transfer up: it serves them in the order of their start."""
        self.hbm_free = max(first, self.hbm_free) + round((op.hbm_read + op.hbm_write) * self.hbm_ps_per_byte)
        return max(0, self.hbm_free - last)
