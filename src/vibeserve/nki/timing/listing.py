"""The list schedule: instructions that do not depend on each other may pass, as a compiler arranges them.

Whenever an engine or queue is free it takes, of the instructions whose waits are over, the one with the longest way to
the end of the kernel (the sum of costs along its dependents), and of equal ones the first in program order.
"""

from __future__ import annotations

import heapq
from typing import Any

from vibeserve.nki.timing.cost import Cost, MatmulCost
from vibeserve.nki.timing.ops import Plan
from vibeserve.nki.timing.rewriting import either_engine
from vibeserve.nki.timing.schedule import ENGINES, LIST, SCALAR, VECTOR, Machine, Schedule


class ListScheduler:
    """Runs the events in the order of their start."""

    def __init__(self, machine: Machine):
        self.machine = machine
        machine.schedule.order = LIST
        size = len(machine.streams)
        deps = machine.schedule.deps
        deps[:] = [sorted(set(waits)) for waits in deps]
        self.left = [len(waits) for waits in deps]
        self.users: list[list[int]] = [[] for _ in range(size)]
        for index, waits in enumerate(deps):
            for earlier in waits:
                self.users[earlier].append(index)
        for index, before in machine.schedule.program.orders.items():
            for earlier in set(before):
                self.left[index] += 1
                self.users[earlier].append(index)
        self.rank = self._ranks()
        forms = {plan: either_engine(plan) for plan in machine.recorder.forms}
        self.either = [forms[plan] for plan in machine.recorder.plans]
        self.choices: dict[Plan, list[tuple[int, Plan]]] = {}
        self.waiting: dict[int, list[tuple[int, int, int]]] = {stream: [] for stream in machine.free}
        self.available: dict[int, list[tuple[int, int, int]]] = {stream: [] for stream in machine.free}
        self.version = dict.fromkeys(machine.free, 0)
        self.events: list[tuple[int, int, int]] = []

    def _ranks(self) -> list[int]:
        """Minus the ps from an instruction's start to the end of the kernel along its longest chain of dependents."""
        lengths = [_length(self.machine.cost(plan)) for plan in self.machine.recorder.plans]
        ranks = [0] * len(lengths)
        for index in range(len(lengths) - 1, -1, -1):
            ranks[index] = -lengths[index] + min((ranks[user] for user in self.users[index]), default=0)
        return ranks

    def run(self) -> Schedule:
        """Schedule everything."""
        machine = self.machine
        for index, left in enumerate(self.left):
            if not left:
                self._offer(index)
        for stream in list(self.waiting):
            self._announce(stream)
        while self.events:
            _, stream, version = heapq.heappop(self.events)
            if version != self.version[stream]:
                continue
            available = self.available[stream]
            _, index, ready = heapq.heappop(available) if available else self._first(stream)
            machine.commit(index, ready)
            touched = {stream}
            for user in self.users[index]:
                self.left[user] -= 1
                if not self.left[user]:
                    self._offer(user)
                    touched.add(machine.streams[user])
            for changed in touched:
                self._announce(changed)
        if min(machine.schedule.done, default=0) < 0:
            stuck = machine.recorder.place(machine.schedule.done.index(-1))
            raise RuntimeError(f"instructions wait for one another in a ring; the first is at {stuck}")
        return machine.schedule

    def _first(self, stream: int) -> tuple[int, int, int]:
        ready, rank, index = heapq.heappop(self.waiting[stream])
        return rank, index, ready

    def _offer(self, index: int) -> None:
        if self.either[index]:
            self._choose(index)
        heapq.heappush(self.waiting[self.machine.streams[index]], (self.machine.ready(index), self.rank[index], index))

    def _choose(self, index: int) -> None:
        """Give a copy to the engine that ends it first, its queue of ready instructions counted; of equal ones to vector."""
        machine = self.machine
        recorder, core = machine.recorder, machine.recorder.cores[index]
        best: tuple[int, int, Plan] | None = None
        for number, plan in self._choices(recorder.plans[index]):
            stream = number + 16 * core
            free = machine.free.setdefault(stream, 0)
            queue = [(ready, queued) for _, queued, ready in self.available.setdefault(stream, [])]
            queue += [(ready, queued) for ready, _, queued in self.waiting.setdefault(stream, [])]
            for ready, queued in sorted(queue):
                free = max(free, ready) + _length(machine.cost(recorder.plans[queued]))
            self.version.setdefault(stream, 0)
            machine.streams[index], machine.kinds[index] = stream, number
            ends = max(free, machine.ready(index)) + _length(machine.cost(plan))
            if best is None or ends < best[0]:
                best = (ends, stream, plan)
        assert best is not None
        machine.streams[index], machine.kinds[index] = best[1], best[1] & 15
        recorder.plans[index] = best[2]

    def _choices(self, plan: Plan) -> list[tuple[int, Plan]]:
        found = self.choices.get(plan)
        if found is None:
            made = self.machine.recorder.make
            found = [(n, made(plan.opcode, ENGINES[n], plan.operands, plan.params)) for n in (VECTOR, SCALAR)]
            self.machine.costs += [None] * 2
            self.machine.special += [False] * 2
            self.choices[plan] = found
        return found

    def _announce(self, stream: int) -> None:
        """Put the stream's next start among the events (older ones of it do not count any more)."""
        free, waiting, available = self.machine.free[stream], self.waiting[stream], self.available[stream]
        while waiting and waiting[0][0] <= free:
            ready, rank, index = heapq.heappop(waiting)
            heapq.heappush(available, (rank, index, ready))
        self.version[stream] += 1
        if available:
            heapq.heappush(self.events, (free, stream, self.version[stream]))
        elif waiting:
            heapq.heappush(self.events, (waiting[0][0], stream, self.version[stream]))


def _length(spent: Any) -> int:
    """About how long an instruction takes from its start to the start of what waits for it, ps."""
    if isinstance(spent, Cost):
        return spent.work + spent.lat
    if isinstance(spent, MatmulCost):
        return spent.warm_interval
    return 2_000_000 + max((work for _, _, work in spent.engines), default=0)
