"""One timed run: record, schedule, sum up."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.nki import kernel as kernels
from vibeserve.nki.errors import KernelError
from vibeserve.nki.observe import Observer
from vibeserve.nki.targets import Target
from vibeserve.nki.timing import params
from vibeserve.nki.timing.deps import QUEUES_FROM, Dependencies
from vibeserve.nki.timing.listing import ListScheduler
from vibeserve.nki.timing.ops import Ops
from vibeserve.nki.timing.recorder import Recorder
from vibeserve.nki.timing.rewriting import either_engine, share_copies
from vibeserve.nki.timing.schedule import LIST, PROGRAM, QUEUES, Machine, Program, Schedule, Scheduler, streams_of
from vibeserve.nki.timing.spilling import RELOAD, SAVE, kind_of, spilled

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")


@dataclass(slots=True)
class Timed:
    """A run with its schedule. `shape_only` says that the values were not computed."""

    kernel: str
    target: Target
    lnc: int
    recorder: Recorder
    schedule: Schedule
    params: params.Params
    mode: str
    shape_only: bool
    peaks: Mapping[str, int]

    @property
    def ops(self) -> Ops:
        """The instructions in program order."""
        return Ops(self.schedule.recorder, self.schedule)

    @property
    def latency_s(self) -> float:
        """From the first kernel instruction to the last wait, seconds."""
        return self.schedule.latency_ps * 1e-12


def timed(
    kernel: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | None = None,
    lnc: int | None = None,
    mode: str = PROGRAM,
    shape_only: bool = False,
    allow_spill: bool = False,
    override: Path | None = None,
    observers: Sequence[Observer] = (),
    **options: Any,
) -> tuple[Any, Timed]:
    """Run `kernel` once and schedule what it did: (its result, the timed run).

    `mode` is "program" (each engine in program order) or "list" (independent instructions may pass). With `shape_only`
    the arithmetic is left out and the result means nothing; a kernel whose control flow depends on data is then run in
    full, and `Timed.shape_only` is False. With `allow_spill` tiles that do not fit into SBUF go to HBM and back (see `spilling`)
    where that is else an error. `override` is a file of constants (see `params.load`).
    """
    if mode not in (PROGRAM, LIST):
        raise InputError(f"schedule {mode!r}", hint=f"{PROGRAM} or {LIST}")
    with _no_collection():
        return _timed(kernel, args, kwargs, target, lnc, mode, shape_only, allow_spill, override, observers, options)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the collector of reference cycles: there are few, and it would look at each of a million tuples again. What
    was made meanwhile then counts as old, so that the first collection after it is no long one either."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # else that would undo a freeze of the program's own
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _timed(
    kernel: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    target: str | None,
    lnc: int | None,
    mode: str,
    shape_only: bool,
    allow_spill: bool,
    override: Path | None,
    observers: Sequence[Observer],
    options: dict[str, Any],
) -> tuple[Any, Timed]:
    recorder = Recorder(allow_spill)
    made = kernels.as_kernel(kernel)

    def run(without_values: bool) -> Any:
        simulation = kernels.simulate(
            made, target=target, lnc=lnc, shape_only=without_values, observers=(recorder, *observers), **options
        )
        return simulation(*args, **dict(kwargs or {}))

    if shape_only:
        try:
            result = run(True)
        except KernelError as error:
            if error.code != "NKI-SHAPE-ONLY":
                raise
            shape_only = False
            result = run(False)
    else:
        result = run(False)
    session = recorder.session
    assert session is not None
    _named_edges(recorder, made)
    schedule_params = params.load(session.target.number, override)
    made_schedule = schedule(recorder, schedule_params, mode)
    return result, Timed(
        getattr(made, "__name__", "kernel"), session.target, session.cores_per_rank, recorder, made_schedule,
        schedule_params, mode, shape_only, recorder.peaks,
    )  # fmt: skip


def _named_edges(recorder: Recorder, made: kernels.Kernel) -> None:
    """The edges (later, earlier) of `with_schedule`, whose instructions are told by their names."""
    if not made.schedule:
        return
    where: dict[str, list[int]] = {}
    for index, name in recorder.names.items():
        where.setdefault(name, []).append(index)
    for edge in made.schedule:
        for name in edge:
            if name not in where:
                raise InputError(
                    f"with_schedule names {name!r}", hint=f"instructions have {', '.join(sorted(where)) or 'no names'}"
                )
        later, earlier = edge
        recorder.edges += [
            (i, max(j for j in where[earlier] if j < i)) for i in where[later] if min(where[earlier]) < i
        ]


def schedule(recorder: Recorder, constants: params.Params, mode: str = PROGRAM) -> Schedule:
    """Schedule a recorded run. In list mode program order is tried as well, and kept where it is the quicker one
    (`Schedule.order` says which it is)."""
    session = recorder.session
    assert session is not None
    target = session.target
    with _no_collection():
        if recorder.allow_spill:
            recorder = spilled(recorder, target.sbuf_usable_per_partition)
        program = Scheduler(_machine(recorder, constants, target, in_order=True)).run()
        if mode == PROGRAM:
            return program
        made = listed(recorder, constants, target)
        return made if made.latency_ps <= program.latency_ps else program


def listed(recorder: Recorder, constants: params.Params, target: Target) -> Schedule:
    """The list schedule of a recorded run, be it quicker than program order or not."""
    return ListScheduler(_machine(share_copies(recorder), constants, target, in_order=False)).run()


def _machine(recorder: Recorder, constants: params.Params, target: Target, in_order: bool) -> Machine:
    streams = streams_of(recorder)
    found = Dependencies(recorder, streams, target, in_order, either_engine)
    found.run()
    return Machine(Program(recorder, streams, found.deps, found.orders, found.banks), constants, target.number)


def peak_flops_per_s(timed_run: Timed) -> float:
    """The bf16 peak of the cores used: cores · 128 · 128 · 2 · clock, FLOP/s."""
    return timed_run.lnc * 128 * 128 * 2 * timed_run.params["clock_ghz.tensor"] * 1e9


def busy_s(timed_run: Timed) -> dict[str, float]:
    """Seconds in which each engine is busy on any core (merged spans), a mean over the cores."""
    import numpy as np

    made = timed_run.schedule
    streams = np.array(made.streams, np.int64)
    start, end = np.array(made.start, np.int64), np.array(made.end, np.int64)
    kinds = streams & 15
    first, last = start.copy(), end.copy()
    for index, moved in made.moved.items():
        first[index], last[index] = moved.first, moved.last
    triggers = {name: [ENGINES.index(name)] for name in ENGINES[:5]}
    for at, name in enumerate(QUEUES):
        triggers[name].append(QUEUES_FROM + at)
    found = dict.fromkeys(ENGINES, 0.0)
    for core in range(timed_run.lnc):
        mine = streams >> 4 == core
        for name, numbers in triggers.items():
            chosen = mine & np.isin(kinds, numbers)
            loads = [(a, b) for index, a, b in made.tables if name == "scalar" and made.recorder.cores[index] == core]
            begins = np.concatenate([start[chosen], np.array([a for a, _ in loads], np.int64)])
            ends = np.concatenate([end[chosen], np.array([b for _, b in loads], np.int64)])
            found[name] += _union_ps(begins, ends) * 1e-12 / timed_run.lnc
        chosen = mine & (kinds >= QUEUES_FROM)
        found["dma"] += _union_ps(first[chosen], last[chosen]) * 1e-12 / timed_run.lnc
    return found


def _union_ps(start: Any, end: Any) -> int:
    """Length of the union of spans (arrays of int64)."""
    import numpy as np

    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    before = np.concatenate([start[:1], reach[:-1]])
    return int(np.maximum(0, reach - np.maximum(start, before)).sum())


def document(timed_run: Timed) -> dict[str, Any]:
    """The figures of `nki simulate --timing` (units in the names; FLOPs are matmuls that are no transposes)."""
    plans = timed_run.schedule.recorder.plans
    flops, transposes = sum(plan.flops for plan in plans), sum(plan.transpose_flops for plan in plans)
    read, written = sum(plan.hbm_read for plan in plans), sum(plan.hbm_write for plan in plans)
    latency = timed_run.latency_s
    bank = timed_run.target.psum_bank
    found: dict[str, Any] = {
        "latency_s": latency,
        "total_time_s": latency + (timed_run.params["overhead_ns.start"] + timed_run.params["overhead_ns.end"]) * 1e-9,
        "flops": flops,
        "transpose_flops": transposes,
        "hbm_read_bytes": read,
        "hbm_write_bytes": written,
        "intensity": flops / (read + written) if read + written else None,
        "engines": {
            engine: {"busy_s": busy, "utilization": busy / latency if latency else 0.0}
            for engine, busy in busy_s(timed_run).items()
        },
        "sbuf_peak_bytes_per_partition": timed_run.peaks["sbuf"],
        "psum_peak_banks": -(-timed_run.peaks["psum"] // bank),
        "mfu": flops / (peak_flops_per_s(timed_run) * latency) if latency else None,
        "schedule": timed_run.mode,
        "shape_only": timed_run.shape_only,
        "provenance": "simulated; not verified on hardware",
    }
    if timed_run.recorder.allow_spill:
        found["spill_save_bytes"] = sum(plan.hbm_write for plan in plans if kind_of(plan) == SAVE)
        found["spill_reload_bytes"] = sum(plan.hbm_read for plan in plans if kind_of(plan) == RELOAD)
    if found["intensity"] is None:
        found["intensity_reason"] = "no byte crosses HBM"
    if found["mfu"] is None:
        found["mfu_reason"] = "nothing took time"
    return found
