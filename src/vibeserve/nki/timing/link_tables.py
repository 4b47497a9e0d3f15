"""What ties the rows of a profile together: the edges between instructions and transfers, and the semaphores that carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vibeserve.nki.timing.deps import BARRIERS
from vibeserve.nki.timing.ops import Op
from vibeserve.nki.timing.run import Timed
from vibeserve.nki.timing.schedule import Schedule
from vibeserve.nki.timing.transfers import QUEUES
from vibeserve.profiles import schema

if TYPE_CHECKING:
    import pyarrow as pa

DMA_ID = 1 << 40
_ENGINE_SEMAPHORES = {"sync": "S[3] (Sync)", "scalar": "S[4] (Scalar)", "tensor": "S[5] (Tensor)", "vector": "S[6] (Vector)", "gpsimd": "S[7] (GpSimd)"}  # fmt: skip
_FIRST_SEMAPHORE = 8
_STEPS = 16  # of a transfer's semaphore: one by each DMA engine
_MANY_STEPS = 2_000_000  # a profile with more shows each transfer's in one


def semaphores_of(timed: Timed) -> dict[int, tuple[str, int]]:
    """(semaphore, its value before) of each transfer: 16 to a queue, in turn, those of the queues one after another."""
    found: dict[int, tuple[str, int]] = {}
    counts: dict[tuple[int, str], int] = {}
    for index in sorted(timed.schedule.moved):
        queue = QUEUES[timed.schedule.moved[index].plan.trigger]
        key = (timed.schedule.recorder.cores[index], queue)
        count = counts[key] = counts.get(key, -1) + 1
        number = _FIRST_SEMAPHORE + 16 * list(QUEUES.values()).index(queue) + count % 16
        found[index] = (f"S[{number}] ({queue})", count // 16 * _STEPS)
    return found


def semaphores(timed: Timed, start_ns: int) -> pa.Table:
    """Each change of a semaphore: an engine's goes up where an instruction ends that others wait for, a transfer's by one
    for each DMA engine that is done, until the transfer counts as complete."""
    made = timed.schedule
    rows: list[tuple[int, str, int, str, str, int]] = []
    awaited = {earlier for waits in made.deps for earlier in waits}
    values: dict[tuple[int, str], int] = {}
    recorder = made.recorder
    for index in sorted(awaited, key=lambda index: (made.done[index], index)):
        engine, core = recorder.plans[index].engine, recorder.cores[index]
        if index in made.moved or engine not in _ENGINE_SEMAPHORES:
            continue
        value = values[core, engine] = values.get((core, engine), 0) + 1
        rows.append((made.done[index], _ENGINE_SEMAPHORES[engine], value, engine, "sem_inc", core))
    single = len(made.moved) * _STEPS > _MANY_STEPS
    for index, (name, before) in semaphores_of(timed).items():
        spans, done, core = made.moved[index].spans, made.done[index], recorder.cores[index]
        if single or not spans:
            rows.append((done, name, before + _STEPS, "AXI", "sem_add_imm", core))
            continue
        late = done - max(end for _, _, end, _ in spans)
        ends = sorted(end + late for _, _, end, _ in spans)
        ends = [ends[step * len(ends) // _STEPS] for step in range(_STEPS - 1)] + [done]
        rows += [(end, name, before + step + 1, "AXI", "sem_inc", core) for step, end in enumerate(ends)]
    rows.sort()
    names = ("timestamp", "id", "value", "update_source", "update_operation_type", "pcore_idx")
    columns: dict[str, list[Any]] = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    columns["timestamp"] = [when // 1000 + start_ns for when in columns["timestamp"]]
    columns["update_trigger_timing"] = ["complete"] * len(rows)
    return schema.build("SemaphoreUpdate", columns, rows=len(rows))


def flow(timed: Timed) -> pa.Table:
    """Edges: from each instruction or transfer to those that wait for it, by kind, and from a trigger to its transfer."""
    made = timed.schedule
    edges: list[tuple[int, int, str, str, str]] = []
    for op in timed.ops:
        for index in sorted(set(op.deps)):
            from_dma = index in made.moved
            table = "DmaPacketAggregated" if from_dma else "Instruction"
            source = DMA_ID + index if from_dma else index * 2 + 1
            edges.append((source, op.index * 2 + 1, table, "Instruction", kind(timed.ops[index], op)))
        for index in sorted(set(made.program.orders.get(op.index, ()))):
            edges.append((index * 2 + 1, op.index * 2 + 1, "Instruction", "Instruction", "ORDERED"))
        if op.index in made.moved:
            edges.append((op.index * 2 + 1, DMA_ID + op.index, "Instruction", "DmaPacketAggregated", "DGE_TRIGGER"))
    names = ("in_id", "out_id", "in_table", "out_table", "dependency_type")
    columns: dict[str, list[Any]] = {n: [edge[i] for edge in edges] for i, n in enumerate(names)}
    columns["gap_time"] = [_gap(made, *edge[:2]) for edge in edges]
    return schema.build("Flow", columns, rows=len(edges))


def _gap(made: Schedule, source: int, target: int) -> int:
    """ns from the end of an edge's first row to the start of its second; 0 where they overlap."""
    ends = made.moved[source - DMA_ID].last if source >= DMA_ID else made.end[source // 2]
    begins = made.moved[target - DMA_ID].first if target >= DMA_ID else made.start[target // 2]
    return max(0, begins - ends) // 1000


def kind(earlier: Op, later: Op) -> str:
    """Why `later` waits for `earlier`: FLOW (it reads what that wrote), OUTPUT (both write), ANTI (it writes what that
    read), or ORDERED (a barrier, memory that had to be free again, an order that was asked for)."""
    if earlier.opcode in BARRIERS or later.opcode in BARRIERS:
        return "ORDERED"
    first, second = _used(earlier), _used(later)
    if first[True] & second[False]:
        return "FLOW"
    if first[True] & second[True]:
        return "OUTPUT"
    return "ANTI" if first[False] & second[True] else "ORDERED"


def _used(op: Op) -> dict[bool, set[int]]:
    """The storages that an instruction reads (False) and writes (True)."""
    places = op.recorder.locations[op.index]
    found: dict[bool, set[int]] = {False: set(), True: set()}
    for at, operand in enumerate(op.plan.operands):
        found[operand.write].add(places[2 * at])
    return found
