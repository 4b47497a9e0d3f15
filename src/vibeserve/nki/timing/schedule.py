"""The schedule: when each instruction starts and ends, on in-order engines, DMA queues and 16 DMA engines a core.

Times are whole picoseconds from the first instruction, so the same run gives the same schedule to the last digit. An
engine is followed as far as what its instructions wait for is known; what is shared (DMA engines, HBM, ports) is given
to whoever comes first in time, ties by stream and program order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vibeserve.nki.timing import cost
from vibeserve.nki.timing.cost import Cost, MatmulCost
from vibeserve.nki.timing.deps import BARRIERS, QUEUES_FROM
from vibeserve.nki.timing.ops import Op, Plan
from vibeserve.nki.timing.params import Params
from vibeserve.nki.timing.placing import Banks, banks_of
from vibeserve.nki.timing.recorder import Recorder
from vibeserve.nki.timing.transfers import Transfer, is_dma, transfer, trigger_of

PROGRAM, LIST = "program", "list"
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
QUEUES = ("sync", "scalar", "gpsimd", "vector", "tensor")
TENSOR, VECTOR, SCALAR, GPSIMD, SYNC, QUEUE = range(6)
_CONSUMERS = ("to_tensor", "to_vector", "to_scalar", "to_gpsimd", "to_dma", "to_dma")


@dataclass(slots=True)
class Moved:
    """What a transfer did: when the packets of its engines began and ended (ps; one pair where all did alike)."""

    plan: Transfer
    begins: int | list[int]
    ends: int | list[int]
    first: int
    last: int

    @property
    def spans(self) -> list[tuple[int, int, int, int]]:
        """(engine, begin, end, packets) of each engine that took part."""
        found = []
        for at, (engine, packets, _) in enumerate(self.plan.engines):
            begin = self.begins if isinstance(self.begins, int) else self.begins[at]
            end = self.ends if isinstance(self.ends, int) else self.ends[at]
            found.append((engine, begin, end, packets))
        return found


@dataclass(frozen=True, slots=True)
class Program:
    """What is scheduled: the recorded instructions, the number of each one's stream, what it waits for, those of its own
    stream that it starts after, and where the tiles of each core lie in PSUM."""

    recorder: Recorder
    streams: list[int]
    deps: list[list[int]]
    orders: Mapping[int, Sequence[int]]
    banks: Mapping[int, Banks]


@dataclass(slots=True)
class Schedule:
    """The result, in ps by instruction; `tables` the loads of function tables as (instruction that needs it, begin, end);
    `moved` the transfers; `warm` the PE's changes of clock as (ps, core, full clock); `order` says
    what it is (PROGRAM or LIST). `program` holds the instructions that these times are of: as recorded, or as a compiler has rewritten them."""

    program: Program
    start: list[int]
    end: list[int]
    done: list[int]
    wait: list[int]
    tables: list[tuple[int, int, int]] = field(default_factory=list)
    moved: dict[int, Moved] = field(default_factory=dict)
    warm: list[tuple[int, int, bool]] = field(default_factory=list)
    order: str = PROGRAM

    @property
    def recorder(self) -> Recorder:
        return self.program.recorder

    @property
    def streams(self) -> list[int]:
        return self.program.streams

    @property
    def deps(self) -> list[list[int]]:
        """What each instruction waited for."""
        return self.program.deps

    @property
    def latency_ps(self) -> int:
        """From the first instruction to the last wait."""
        return max(self.done, default=0) - min(self.start, default=0)


class _Clock:
    """The Tensor Engine's two speeds: full after a window in which it was busy nearly always, half after an idle one.

    The windows are a grid that runs whatever the engine does; its phase is the time of one of its edges."""

    def __init__(self, params: Params, core: int, schedule: Schedule):
        self.window = round(params["tensor_warmup.window_ns"] * 1000)
        self.shift = -round(params["tensor_warmup.phase_ns"] * 1000) % self.window  # from the time to a grid from 0
        self.up = params["tensor_warmup.up_if_busy_over"] * self.window
        self.down = params["tensor_warmup.down_if_busy_under"] * self.window
        self.always = params["clock_ghz.tensor_cold"] == params["clock_ghz.tensor"]
        self.warm = self.always
        self.core, self.schedule = core, schedule
        self.next = 0
        self.edge = self.window - self.shift
        self.busy: dict[int, int] = {}

    def at(self, when: int) -> bool:
        """Whether it runs at full clock at `when` (never asked for a time before the last)."""
        when += self.shift
        while not self.always and (self.next + 1) * self.window <= when:
            busy = self.busy.pop(self.next, 0)
            warm = busy > self.up or (self.warm and busy >= self.down)
            self.next += 1
            if warm != self.warm:
                self.warm = warm
                self.schedule.warm.append((self.next * self.window - self.shift, self.core, warm))
            if not self.busy and not self.warm:
                self.next = max(self.next, when // self.window)
        self.edge = (self.next + 1) * self.window - self.shift
        return self.warm

    def across(self, start: int, end: int, spent: MatmulCost) -> int:
        """Work from `start` to `end` that goes over edges of the grid: note it, and return its end. What is left of it
        at an edge where the clock changes goes on at the new one."""
        while end > self.edge:
            edge, warm = self.edge, self.warm
            if start < edge:
                self.worked(start, edge)
            if self.at(edge) != warm:
                old, new = spent.warm_interval, spent.cold_interval
                end = edge + ((end - edge) * (new if warm else old)) // (old if warm else new)
            start = max(start, edge)
        self.worked(start, end)
        return end

    def worked(self, start: int, end: int) -> None:
        """Note that it was busy."""
        if end <= self.edge and start >= self.edge - self.window:
            self.busy[self.next] = self.busy.get(self.next, 0) + end - start
            return
        start, end = start + self.shift, end + self.shift
        for window in range(start // self.window, (end - 1) // self.window + 1):
            low, high = max(start, window * self.window), min(end, (window + 1) * self.window)
            self.busy[window] = self.busy.get(window, 0) + high - low


def stream_of(op: Op | Plan) -> str:
    """The in-order stream that an instruction belongs to: its engine, or the queue of the engine that starts the DMA."""
    return f"q{trigger_of(op)[0]}" if is_dma(op) else op.engine


def _number(plan: Plan) -> int:
    """The stream as a number: an engine's place in ENGINES, or QUEUE + a queue's in QUEUES."""
    if is_dma(plan):
        return QUEUE + QUEUES.index(trigger_of(plan)[0])
    return ENGINES.index(plan.engine) if plan.engine in ENGINES else SYNC


def streams_of(recorder: Recorder) -> list[int]:
    """The stream number of each instruction: that of its engine or queue, and 16 more for each core."""
    numbers = {plan: _number(plan) for plan in recorder.forms}
    return [numbers[plan] + 16 * core for plan, core in zip(recorder.plans, recorder.cores, strict=True)]


class Machine:
    """Engines, queues and memory as they stand; `commit` puts one instruction on them."""

    def __init__(self, program: Program, params: Params, generation: int):
        recorder, streams = program.recorder, program.streams
        self.recorder, self.streams, self.params, self.generation = recorder, streams, params, generation
        size = len(recorder.plans)
        self.schedule = Schedule(program, [0] * size, [0] * size, [-1] * size, [0] * size)
        self.free = dict.fromkeys(streams, 0)
        self.clocks = {core: _Clock(params, core, self.schedule) for core in set(recorder.cores)}
        self.dma_even: dict[int, int] = {}  # when all DMA engines of a core are free, -1 where they differ
        self.dma = {core: [0] * int(params["dma.engines"]) for core in set(recorder.cores)}
        self.hbm_free = 0
        self.costs: list[Any] = [None] * len(recorder.forms)
        self.special = [False] * len(recorder.forms)
        self.tables: dict[int, str] = {}
        self.ports: dict[tuple[int, str, int], tuple[int, int]] = {}
        names = ("table_load", "table_load_start", "table_switch")
        self.table_load, self.table_start, self.table_switch = (round(params[f"scalar_ns.{n}"] * 1000) for n in names)
        self.barrier = round(params["sync_ns.barrier"] * 1000)
        self.second = round(params["sync_ns.second_wait"] * 1000)
        self.syncs = [[self._sync(producer, consumer) for consumer in range(6)] for producer in range(6)]
        self.kinds = [min(stream & 15, QUEUE) for stream in streams]
        self.delays = {
            side == "load": tuple(
                round(params[f"dma.{name}"] * 1000)
                for name in (
                    f"first_packet_{side}_ns", f"software_first_packet_{side}_ns", f"{side}_spread_ns", "trigger_ns",
                    "trigger_interval_ns", "software_issue_first_ns", "software_issue_next_ns", "done_ns",
                )
            )
            for side in ("load", "store")
        }  # fmt: skip
        self.ready = self._ready()
        self.commit = self._commit()

    def _sync(self, producer: int, consumer: int) -> int:
        if consumer == QUEUE:
            name = "sync_ns.to_dma"
        elif producer == QUEUE:
            name = "dma.to_consumer_ns"
        elif producer == consumer:
            name = "sync_ns.same_engine"
        else:
            name = f"sync_ns.{_CONSUMERS[consumer]}"
        return round(self.params[name] * 1000)

    def cost(self, plan: Plan) -> Any:
        """The cost of a form."""
        found = self.costs[plan.number]
        if found is None:
            if is_dma(plan):
                found = transfer(plan, self.params)
            elif plan.opcode in BARRIERS:
                found = cost.Cost(self.barrier, 0, 0)
            elif plan.engine == "tensor":
                found = cost.matmul(plan, self.params)
            else:
                found = cost.compute(plan, self.params, self.generation)
            self.costs[plan.number] = found
            self.special[plan.number] = isinstance(found, cost.Cost) and found.special
        return found

    def _held(self, index: int, stream: int, begin: int, ready: int, spent: Cost) -> tuple[int, int, int]:
        """(begin, ready, work) of an instruction that needs a function table, or ports that others may hold."""
        core, work = stream >> 4, spent.work
        if spent.table and self.tables.get(core) != spent.table:
            first = core not in self.tables
            at = self.table_start if first else self.free[stream]
            load = self.table_load if first else self.table_switch
            self.tables[core] = spent.table
            self.schedule.tables.append((index, at, at + load))
            begin = max(begin, at + load)
        for port in spent.ports:
            for key in self._keys(index, core, port):
                until, holder = self.ports.get(key, (0, stream))
                if holder != stream and until > ready:
                    ready = until
                    begin = max(begin, until)
        if spent.speed > 1:
            until, _ = self.ports.get((core, "bus", 0), (0, 0))
            work += max(0, min(until - begin, work)) * (spent.speed - 1)
        for port in spent.ports:
            for key in self._keys(index, core, port):
                self.ports[key] = (begin + work, stream)
        return begin, ready, work

    def _keys(self, index: int, core: int, port: str) -> list[tuple[int, str, int]]:
        """What a port stands for: itself, or each PSUM bank of the instruction."""
        if port != "bank":
            return [(core, port, 0)]
        places, plan = self.recorder.locations[index], self.recorder.plans[index]
        known = self.schedule.program.banks[core].places
        found = []
        for at, extent in enumerate(plan.shapes):
            if extent is not None and plan.operands[at].region == "psum":
                _, reach, itemsize, free = extent
                low = places[2 * at + 1] * itemsize % free
                found += [(core, port, bank) for bank in banks_of(known[places[2 * at]], low, low + reach)]
        return found

    def contended(self) -> set[int]:
        """Engines that share a port which each of them uses in this kernel."""
        users: dict[str, set[int]] = {}
        for plan in self.recorder.forms:
            if plan.engine in ENGINES and not is_dma(plan):
                for port in cost.ports(plan, self.generation):
                    users.setdefault(port, set()).add(ENGINES.index(plan.engine))
        if "bus" in users:
            users["bus"].add(VECTOR)
        return {engine for engines in users.values() if len(engines) > 1 for engine in engines}

    def _ready(self) -> Callable[[int], int]:
        """The function that tells when what an instruction waits for has come to it; -1 - i where it waits for
        instruction i, which is not committed yet. (A closure, as the next: they run for every instruction.)"""
        done, kinds, all_deps = self.schedule.done, self.kinds, self.schedule.deps
        free_of, streams, syncs, second = self.free, self.streams, self.syncs, self.second

        def ready(index: int) -> int:
            kind = kinds[index]
            free = free_of[streams[index]]
            found = 0
            waited = -1
            several = False
            for earlier in all_deps[index]:
                when = done[earlier]
                if when < 0:
                    return -1 - earlier
                producer = kinds[earlier]
                if when > free and producer != kind:
                    if waited >= 0 and waited != producer:
                        several = True
                    waited = producer
                when += syncs[producer][kind]
                if when > found:  # noqa: PLR1730
                    found = when
            return found + second if several else found

        return ready

    def _commit(self) -> Callable[[int, int], None]:
        """The function that starts an instruction whose waits are over at `ready` as soon as its stream is free."""
        schedule, plans, streams, kinds, costs = (
            self.schedule,
            self.recorder.plans,
            self.streams,
            self.kinds,
            self.costs,
        )
        starts, ends, done, waits = schedule.start, schedule.end, schedule.done, schedule.wait
        special = self.special
        free_of, cores, clocks, move = self.free, self.recorder.cores, self.clocks, self._move()

        def commit(index: int, ready: int) -> None:
            plan = plans[index]
            stream = streams[index]
            free = free_of[stream]
            kind = kinds[index]
            spent = costs[plan.number]
            if spent is None:
                spent = self.cost(plan)
            begin = ready if ready > free else free
            if kind == QUEUE:
                move(index, stream, begin, spent)
            elif kind or spent.__class__ is not MatmulCost:
                work = spent.work
                if special[plan.number]:
                    begin, ready, work = self._held(index, stream, begin, ready, spent)
                    queued = max(free, begin if begin > ready else 0) + work + spent.gap
                else:
                    queued = free + work + spent.gap
                waited = ready + work + spent.lat
                ends[index] = done[index] = free_of[stream] = queued if queued > waited else waited
            else:
                clock = clocks[cores[index]]
                warm = clock.warm if begin < clock.edge else clock.at(begin)
                if warm:
                    interval, waited = spent.warm_interval, ready + spent.warm_first
                else:
                    interval, waited = spent.cold_interval, ready + spent.cold_first
                end = free + interval
                if end >= waited:
                    begin = free
                else:
                    end, begin = waited, ready
                if not clock.always:
                    works = begin if begin > end - interval else end - interval
                    if end > clock.edge:
                        end = clock.across(works, end, spent)
                    else:
                        clock.worked(works, end)
                ends[index] = done[index] = free_of[stream] = end
            starts[index] = begin
            if begin > free:
                waits[index] = begin - free

        return commit

    def _move(self) -> Callable[[int, int, int, Transfer], None]:
        """The function that starts a transfer: its queue is free at `start`."""
        schedule, free_of, cores, delays = self.schedule, self.free, self.recorder.cores, self.delays
        dma, dma_even = self.dma, self.dma_even

        def move(index: int, stream: int, start: int, spent: Transfer) -> None:
            packet, software_packet, spread, trigger, interval, issue, issue_next, after = delays[spent.load]
            if spent.software:
                issued = free = start + (issue_next if free_of[stream] == start and start > 0 else issue)
                first = issued + software_packet
            else:
                issued, free, first = start + trigger, start + interval, start + packet
            core = cores[index]
            if spent.hbm:
                self.hbm_free = (first if first > self.hbm_free else self.hbm_free) + spent.hbm
            even = dma_even.get(core, 0)
            begins: int | list[int]
            ends: int | list[int]
            if spent.even and even >= 0:
                seen = begins = first if first > even else even
                last = begins + spent.engines[0][2]
                if spent.hbm and self.hbm_free > last:
                    last = self.hbm_free
                dma_even[core] = ends = last
            elif spent.engines:
                engines = dma[core]
                if even >= 0:
                    engines[:] = [even] * len(engines)
                begins = [max(first, engines[engine]) for engine, _, _ in spent.engines]
                ends = [begin + work for begin, (_, _, work) in zip(begins, spent.engines, strict=True)]
                late = max(0, self.hbm_free - max(ends)) if spent.hbm else 0
                if late:
                    ends = [end + late for end in ends]
                for (engine, _, _), end in zip(spent.engines, ends, strict=True):
                    engines[engine] = end
                dma_even[core] = engines[0] if min(engines) == max(engines) else -1
                seen, last = min(begins), max(ends)
            else:
                begins = seen = first
                ends = last = first + spent.own
            last += spread
            schedule.moved[index] = Moved(spent, begins, ends, seen, last)
            schedule.end[index], free_of[stream] = issued, free
            schedule.done[index] = last + after

        return move


class Scheduler:
    """Each engine in program order (see the module)."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.lists: dict[int, list[int]] = {}
        for index, stream in enumerate(machine.streams):
            self.lists.setdefault(stream, []).append(index)
        self.heads = dict.fromkeys(self.lists, 0)
        self.waiters: dict[int, list[int]] = {}
        contended = machine.contended()
        self.timed = {stream for stream in self.lists if stream & 15 >= QUEUES_FROM or stream & 15 in contended}
        self.shared: list[tuple[int, int, int]] = []  # (start, ready, stream): the next instructions on what is shared
        self.held: set[int] = set()  # the streams among them

    def run(self) -> Schedule:
        """Schedule everything. RuntimeError where instructions wait for one another in a ring."""
        self._follow(sorted(self.lists))
        shared, held, lists, heads, waiters = self.shared, self.held, self.lists, self.heads, self.waiters
        ready_of, commit, free_of = self.machine.ready, self.machine.commit, self.machine.free
        while shared:
            _, ready, stream = heapq.heappop(shared)
            held.discard(stream)
            indices, at = lists[stream], heads[stream]
            count = len(indices)
            while True:  # on this stream as long as no other has an earlier start
                index = indices[at]
                commit(index, ready)
                at += 1
                heads[stream] = at
                if index in waiters:
                    self._follow(waiters.pop(index))
                if at == count:
                    break
                ready = ready_of(indices[at])
                if ready < 0:
                    waiters.setdefault(-1 - ready, []).append(stream)
                    break
                free = free_of[stream]
                start = (free if free > ready else ready, ready, stream)
                if shared and shared[0] < start:
                    heapq.heappush(shared, start)
                    held.add(stream)
                    break
        done = self.machine.schedule.done
        if min(done, default=0) < 0:
            stuck = done.index(-1)
            count = sum(when < 0 for when in done)
            raise RuntimeError(
                f"{count} of {len(done)} instructions never start; the first is at {self.machine.recorder.place(stuck)}"
            )
        return self.machine.schedule

    def _follow(self, todo: list[int]) -> None:
        """Take streams as far as they go."""
        machine, waiters, held = self.machine, self.waiters, self.held
        ready_of, commit = machine.ready, machine.commit
        while todo:
            stream = todo.pop()
            if stream in held:
                continue
            indices, at = self.lists[stream], self.heads[stream]
            timed = stream in self.timed
            count = len(indices)
            while at < count:
                index = indices[at]
                ready = ready_of(index)
                if ready < 0:
                    waiters.setdefault(-1 - ready, []).append(stream)
                    break
                if timed:
                    free = machine.free[stream]
                    heapq.heappush(self.shared, (free if free > ready else ready, ready, stream))
                    held.add(stream)
                    break
                commit(index, ready)
                at += 1
                if index in waiters:
                    todo += waiters.pop(index)
            self.heads[stream] = at
