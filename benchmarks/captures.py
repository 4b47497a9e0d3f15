"""Captures of three attention kernels on a trn2 against the model: engine by engine, and instruction by instruction.

python -m benchmarks.captures [--rows]

The captures are read from the folder that VIBESERVE_DEVICE_PROFILES names; the kernels are those of
`timing_kernels/attention.py`, written as they were compiled. Each instruction of the capture is laid beside the one of the
same place on the same engine; where the two differ in kind the comparison is refused. What is compared:

- cost: the end less the later of the start and the end of the one before on the engine. (A queued row of a capture starts
  earlier than its work, so its duration is no cost.)
- begin and end, from the first instruction of the kernel.

Three runs of each: as it is; with the capture's own phase of the Tensor Engine's activity windows, which a program cannot
know; and with the completion times of the capture's transfers as well, which leaves the model of instructions and waits alone.
`--rows` prints every instruction.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.rows import Row
from benchmarks.timing import CASES, Case, made_inputs
from vibeserve.nki.timing.schedule import Machine

FOLDER = "VIBESERVE_DEVICE_PROFILES"
CAPTURES = {
    "attention-fused-bf16-s512": "attention, fused, bf16 (trn2 capture)",
    "attention-fused-fp32-s512": "attention, fused, fp32 (trn2 capture)",
    "attention-baseline-bf16-s512": "attention, by phases, bf16 (trn2 capture)",
}
COMPUTE = ("tensor", "vector", "scalar")
SOFTWARE = ("gpsimd",)  # its DMA rows stand where the descriptors are ready, not for the time that making them takes
MODES = ("as it is", "own phase", "own phase and transfers")
_WAIT, _LAST, _TABLE, _DMA = "EVENT_SEMAPHORE", "NOP", "ACT_TABLE_LOAD", "DMA_DIRECT2D"
_SEMAPHORE_BYTES = 4
_ENGINES_OF_A_TRANSFER = 16


@dataclass(frozen=True)
class Event:
    """One instruction, or one transfer: ns from the kernel's first instruction."""

    engine: str
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Run:
    """A kernel's events by engine in program order, its transfers by queue, and ns from the first instruction to the end."""

    events: Mapping[str, Sequence[Event]]
    transfers: Mapping[str, Sequence[Event]]
    body: float


@dataclass(frozen=True)
class Capture:
    """A capture: its events; when each queue's transfers were complete; an edge of the activity windows; total ns."""

    run: Run
    complete: Mapping[str, Sequence[float]]
    phase: float
    total: float


@dataclass(frozen=True)
class Pair:
    """The same instruction measured and simulated, with its cost (see the module); ns."""

    measured: Event
    simulated: Event
    measured_cost: float
    simulated_cost: float


def folder() -> Path | None:
    """Where the captures are."""
    named = os.environ.get(FOLDER)
    return Path(named) if named and Path(named).is_dir() else None


def capture(path: Path) -> Capture:
    """Read a capture."""
    from vibeserve.profiles.ingest import read

    profile = read(path, path.name)
    rows = [row for row in profile.table("Instruction").to_pylist() if row["bir_id"] and row["pcore_idx"] == 0]
    zero = min(row["start_ts"] for row in rows)
    events: dict[str, dict[str, Event]] = {}
    body = 0.0
    for row in sorted(rows, key=lambda row: row["pc"]):
        engine, kind = row["engine"].lower(), row["opcode"]
        start, end = float(row["start_ts"] - zero), float(row["end_ts"] - zero)
        if kind == _LAST:
            body = end
        if kind in (_WAIT, _LAST):
            continue
        if engine == "tensor":  # weight loads and passes of one product have one name
            kind = row["tensor_instruction_type"]
        mine = events.setdefault(_group(engine, kind), {})
        before = mine.get(row["bir_id"])
        if before is not None:
            start, end = min(before.start, start), max(before.end, end)
        if kind == _DMA and engine in SOFTWARE:
            end = start
        mine[row["bir_id"]] = Event(engine, kind, start, end)
    transfers, complete = _transfers(profile, zero)
    switch = min(row["timestamp"] for row in profile.table("Throttle").to_pylist() if row["k"] == row["n"])
    total = profile.table("Metadata").to_pylist()[0]["last_hw_timestamp"]
    run = Run({name: list(found.values()) for name, found in events.items()}, transfers, body)
    return Capture(run, complete, float(switch - zero), float(total))


def _group(engine: str, kind: str) -> str:
    """What is compared in order: an engine's instructions, its DMA starts (beside its work), its loads of function tables
    (which may come long before the function)."""
    return f"{engine}, {kind}" if kind in (_TABLE, _DMA) else engine


def _transfers(profile: Any, zero: int) -> tuple[dict[str, list[Event]], dict[str, list[float]]]:
    """Transfers by trigger engine: on each (queue, engine) one ends with a packet of four bytes, which is its semaphore.
    Complete is when the last of its sixteen semaphore steps was seen."""
    names = {row["idx"]: row["name"] for row in profile.table("DmaQueuesInfo").to_pylist() if row["pcore_idx"] == 0}
    lanes: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in profile.table("DmaPacket").to_pylist():
        if row["pcore_idx"] == 0:
            lanes.setdefault((row["queue_idx"], row["engine_idx"]), []).append(row)
    spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for (queue, _), packets in lanes.items():
        trigger = _trigger(names.get(queue, ""))
        if trigger is None:
            continue
        number = 0
        for row in sorted(packets, key=lambda row: row["packet_idx"]):
            if row["transfer_bytes"] == _SEMAPHORE_BYTES:
                number += 1
            else:
                spans.setdefault((trigger, number), []).append((row["start_ts"] - zero, row["end_ts"] - zero))
    moved: dict[str, list[Event]] = {}
    for (trigger, _), found in sorted(spans.items()):
        first, last = float(min(a for a, _ in found)), float(max(b for _, b in found))
        moved.setdefault(trigger, []).append(Event(trigger, "transfer", first, last))
    steps: dict[str, list[int]] = {}
    for row in profile.table("SemaphoreUpdate").to_pylist():
        name = row["id"].partition("(")[2].rstrip(")")
        if _trigger(name) is not None and row["value"] == _ENGINES_OF_A_TRANSFER:
            steps.setdefault(str(_trigger(name)), []).append(row["timestamp"] - zero)
    return moved, {trigger: [float(when) for when in sorted(times)] for trigger, times in steps.items()}


def _trigger(queue: str) -> str | None:
    """The engine that starts a queue's transfers."""
    from vibeserve.nki.timing.transfers import QUEUES

    return next((engine for engine, name in QUEUES.items() if name == queue), None)


class Replaying(Machine):
    """A machine whose transfers end when they ended in a capture: `complete` are ps by instruction."""

    def __init__(self, complete: Mapping[int, int], *args: Any):
        self.complete = complete
        super().__init__(*args)

    def _move(self) -> Any:
        start = super()._move()

        def move(index: int, *rest: Any) -> None:
            start(index, *rest)
            if index in self.complete:
                self.schedule.done[index] = self.complete[index]

        return move


def simulated(case: Case, measured: Capture, mode: str) -> tuple[Run, Any]:
    """(events, timed run) of the kernel in one of MODES."""
    from vibeserve.nki.timing import run
    from vibeserve.nki.timing.schedule import QUEUE, QUEUES, Scheduler

    kernel, inputs = made_inputs(case)
    _, timed = run.timed(kernel, kwargs=inputs, target=case.target, lnc=1, shape_only=True)
    made = timed.schedule
    if mode != MODES[0]:
        timed.params = timed.params.changed("tensor_warmup.phase_ns", measured.phase % _window_ns(timed.params))
        complete: dict[int, int] = {}
        if mode == MODES[2]:
            left = {trigger: list(times) for trigger, times in measured.complete.items()}
            for index, stream in enumerate(made.streams):
                if stream >= QUEUE:
                    complete[index] = round(left[QUEUES[stream - QUEUE]].pop(0) * 1000)
            del complete[max(complete)]  # the last store ends as the model says
        machine = Replaying(complete, made.program, timed.params, timed.target.number)
        made = timed.schedule = Scheduler(machine).run()
    tables = {index: (begin, end) for index, begin, end in made.tables}
    zero = min(made.start)
    events: dict[str, list[Event]] = {}
    transfers: dict[str, list[Event]] = {}
    for op in timed.ops:
        if op.index in made.moved:
            moved = made.moved[op.index]
            trigger = moved.plan.trigger
            start, end = (op.end, op.end) if trigger in SOFTWARE else (op.start, op.end)
            events.setdefault(_group(trigger, _DMA), []).append(_event(trigger, _DMA, start, end, zero))
            transfers.setdefault(trigger, []).append(_event(trigger, "transfer", moved.first, moved.last, zero))
            continue
        if op.index in tables:
            events.setdefault(_group(op.engine, _TABLE), []).append(_event(op.engine, _TABLE, *tables[op.index], zero))
        events.setdefault(op.engine, []).append(_event(op.engine, _kind(op), op.start, op.end, zero))
    return Run(events, transfers, (max(made.done) - zero) / 1000), timed


def _window_ns(params: Any) -> float:
    found: float = params["tensor_warmup.window_ns"]
    return found


def _kind(op: Any) -> str:
    from vibeserve.nki.timing.ops import is_transpose, opcode_of

    if op.engine == "tensor":
        return "TRANSPOSE" if is_transpose(op) else "REGULAR"
    return opcode_of(op)


def _event(engine: str, kind: str, start: int, end: int, zero: int) -> Event:
    return Event(engine, kind, (start - zero) / 1000, (end - zero) / 1000)


def pairs(measured: Run, found: Run) -> dict[str, list[Pair]]:
    """Instructions of the same place, by engine. Raises ValueError where the programs differ."""
    made: dict[str, list[Pair]] = {}
    if set(measured.events) != set(found.events):
        raise ValueError(f"engines differ: {sorted(measured.events)} and {sorted(found.events)}")
    for engine, mine in measured.events.items():
        other = found.events[engine]
        kinds, theirs = [event.kind for event in mine], [event.kind for event in other]
        if kinds != theirs:
            at = next((i for i, (a, b) in enumerate(zip(kinds, theirs, strict=False)) if a != b), -1)
            raise ValueError(f"{engine}: {len(kinds)} and {len(theirs)} instructions, the first that differs is {at}")
        before, earlier = 0.0, 0.0
        for one, two in zip(mine, other, strict=True):
            costs = (one.end - max(one.start, before), two.end - max(two.start, earlier))
            made.setdefault(engine, []).append(Pair(one, two, *costs))
            before, earlier = max(before, one.end), max(earlier, two.end)
    return made


def union(events: Sequence[Event]) -> float:
    """ns in which at least one is under way."""
    reach, busy = 0.0, 0.0
    for event in sorted(events, key=lambda event: event.start):
        busy += max(0.0, event.end - max(event.start, reach))
        reach = max(reach, event.end)
    return busy


def spread(values: Sequence[float]) -> str:
    """Of errors in ns: median, and median, 90th percentile and largest of their sizes."""
    sizes = sorted(abs(value) for value in values)
    ninth = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return f"{statistics.median(values):+8.0f}   {statistics.median(sizes):7.0f} {ninth:7.0f} {sizes[-1]:7.0f}"


def show(name: str, measured: Capture, case: Case, *, every: bool) -> None:
    """Print the comparison of one capture in each mode."""
    for mode in MODES:
        found, timed = simulated(case, measured, mode)
        overhead = timed.params["overhead_ns.start"] + timed.params["overhead_ns.end"]
        print(
            f"\n{name}, {mode}: total {found.body + overhead:,.0f} ns, measured {measured.total:,.0f}: "
            f"{(found.body + overhead) / measured.total - 1:+.1%}; from first to last instruction {found.body:,.0f}, "
            f"measured {measured.run.body:,.0f}: {found.body / measured.run.body - 1:+.1%}"
        )
        matched = pairs(measured.run, found)
        print("  engine                    n  busy measured  simulated    cost: median  |median|     90 %     max    end: median  |median|     90 %     max")  # fmt: skip
        for engine, mine in matched.items():
            _line(engine, mine)
            kinds = sorted({pair.measured.kind for pair in mine})
            for kind in kinds if len(kinds) > 1 else ():
                _line(f"  {kind}", [pair for pair in mine if pair.measured.kind == kind])
        for trigger, mine_ in measured.run.transfers.items():
            theirs = found.transfers[trigger]
            first = [b.start - a.start for a, b in zip(mine_, theirs, strict=True)]
            lasted = [(b.end - b.start) - (a.end - a.start) for a, b in zip(mine_, theirs, strict=True)]
            print(f"  transfers of {trigger:12}{len(mine_):4}  duration {spread(lasted)}; first packet {spread(first)}")
        if every:
            for engine, mine in matched.items():
                for at, pair in enumerate(mine):
                    a, b = pair.measured, pair.simulated
                    print(
                        f"    {engine:7} {at:3} {a.kind:14} start {a.start:9,.0f} {b.start:9,.0f}  end {a.end:9,.0f} {b.end:9,.0f} "
                        f"{b.end - a.end:+7,.0f}  cost {pair.measured_cost:6,.0f} {pair.simulated_cost:6,.0f}"
                    )


def _line(title: str, mine: Sequence[Pair]) -> None:
    busy = union([pair.measured for pair in mine]), union([pair.simulated for pair in mine])
    cost = spread([pair.simulated_cost - pair.measured_cost for pair in mine])
    end = spread([pair.simulated.end - pair.measured.end for pair in mine])
    print(f"  {title:22} {len(mine):4} {busy[0]:14,.0f} {busy[1]:10,.0f}  {cost}  {end}")


def chosen() -> list[tuple[str, Path, Case]]:
    """The captures that there are: (name, file, case)."""
    where = folder()
    cases = {case.name: case for case in CASES}
    found = []
    for name, case in CAPTURES.items() if where is not None else ():
        path = where / f"{name}.json.gz"
        if path.is_file():
            found.append((name, path, cases[case]))
    return found


def rows() -> list[Row]:
    """Total error of each capture, and how far the instructions are off."""
    there = chosen()
    if not there:
        return [Row("captures", None, None, "", note=f"{FOLDER} names no folder of captures")]
    found = []
    totals = []
    for name, path, case in there:
        measured = capture(path)
        for mode in MODES:
            run, timed = simulated(case, measured, mode)
            overhead = timed.params["overhead_ns.start"] + timed.params["overhead_ns.end"]
            total = (run.body + overhead) / measured.total - 1
            matched = pairs(measured.run, run)
            compute = [pair for engine in COMPUTE for pair in matched[engine]]
            ends = statistics.median(abs(pair.simulated.end - pair.measured.end) for pair in compute)
            costs = statistics.median(abs(pair.simulated_cost - pair.measured_cost) for pair in compute)
            if mode == MODES[1]:
                totals.append(abs(total))
            found.append(
                Row(f"{name}, {mode}: total", None, total * 100, "%", note=f"{len(compute)} instructions: median |cost| {costs:.0f} ns, |end| {ends:.0f} ns")
            )  # fmt: skip
    mean = sum(totals) / len(totals) * 100
    return [Row("mean absolute error of the captures' totals, own phase", None, mean, "%"), *found]


def main() -> int:
    """Print every comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", action="store_true", help="every instruction")
    options = parser.parse_args()
    there = chosen()
    if not there:
        print(f"not run: {FOLDER} names no folder of captures", file=sys.stderr)
        return 3
    for name, path, case in there:
        show(name, capture(path), case, every=options.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
