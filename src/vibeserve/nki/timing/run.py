"""One timed run: record, schedule, sum up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.nki import capacity
from vibeserve.nki import kernel as kernels
from vibeserve.nki.context import Core, Session
from vibeserve.nki.errors import KernelError
from vibeserve.nki.observe import Observer
from vibeserve.nki.targets import Target
from vibeserve.nki.timing import deps, params
from vibeserve.nki.timing.ops import Op, Recorder
from vibeserve.nki.timing.schedule import LIST, PROGRAM, Schedule, Scheduler, stream_of

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
    def ops(self) -> Sequence[Op]:
        """The instructions in program order."""
        return self.schedule.ops

    @property
    def latency_s(self) -> float:
        """From the first kernel instruction to the last wait, seconds."""
        return self.schedule.latency_ps * 1e-12


class _Peaks(Observer):
    """The most that was alive at once, as capacity counts it."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {"sbuf": 0, "psum": 0}

    def finished(self, session: Session, cores: list[Core]) -> None:
        self.found = live_peaks(cores)


def live_peaks(cores: Sequence[Core]) -> dict[str, int]:
    """For sbuf and psum the most bytes of a partition alive at once, on the core that needs most."""
    found = {"sbuf": 0, "psum": 0}
    for core in cores:
        for region, (peak, _) in capacity.peaks(core).items():
            found[region.value] = max(found[region.value], peak)
    return found


def timed(
    kernel: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | None = None,
    lnc: int | None = None,
    mode: str = PROGRAM,
    shape_only: bool = False,
    override: Path | None = None,
    observers: Sequence[Observer] = (),
    **options: Any,
) -> tuple[Any, Timed]:
    """Run `kernel` once and schedule what it did: (its result, the timed run).

    `mode` is "program" (each engine in program order) or "list" (independent instructions may pass). With `shape_only`
    the arithmetic is left out and the result means nothing; a kernel whose control flow depends on data is then run in
    full, and `Timed.shape_only` is False. `override` is a file of constants (see `params.load`).
    """
    if mode not in (PROGRAM, LIST):
        raise InputError(f"schedule {mode!r}", hint=f"{PROGRAM} or {LIST}")
    recorder, peaks = Recorder(), _Peaks()
    made = kernels.as_kernel(kernel)

    def run(without_values: bool) -> Any:
        simulation = kernels.simulate(
            made, target=target, lnc=lnc, shape_only=without_values, observers=(recorder, peaks, *observers), **options
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
    schedule_params = params.load(session.target.number, override)
    made_schedule = schedule(recorder, schedule_params, mode)
    return result, Timed(
        getattr(made, "__name__", "kernel"), session.target, session.cores_per_rank, recorder, made_schedule,
        schedule_params, mode, shape_only, peaks.found,
    )  # fmt: skip


def schedule(recorder: Recorder, constants: params.Params, mode: str = PROGRAM) -> Schedule:
    """Schedule a recorded run (its ops are filled in anew)."""
    session = recorder.session
    assert session is not None
    for op in recorder.ops:
        op.deps = []
    capacity = {"sbuf": session.target.sbuf_usable_per_partition, "psum": session.target.psum_per_partition}
    deps.fill(recorder, [stream_of(op) for op in recorder.ops], capacity)
    return Scheduler(recorder.ops, constants, session.target.number, mode).run()


def peak_flops_per_s(timed_run: Timed) -> float:
    """The bf16 peak of the cores used: cores · 128 · 128 · 2 · clock, FLOP/s."""
    return timed_run.lnc * 128 * 128 * 2 * timed_run.params["clock_ghz.tensor"] * 1e9


def busy_s(timed_run: Timed) -> dict[str, float]:
    """Seconds in which each engine is busy on any core (merged spans), a mean over the cores."""
    spans: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for op in timed_run.ops:
        if op.engine == "dma":
            moved = timed_run.schedule.moved[op.index]
            spans.setdefault((op.core, "dma"), []).append((moved.first, moved.last))
            spans.setdefault((op.core, moved.plan.trigger), []).append((op.start, op.end))
        else:
            spans.setdefault((op.core, op.engine), []).append((op.start, op.end))
    found = dict.fromkeys(ENGINES, 0.0)
    for (_, engine), pieces in spans.items():
        found[engine] = found.get(engine, 0.0) + _union_ps(pieces) * 1e-12 / timed_run.lnc
    return found


def _union_ps(pieces: list[tuple[int, int]]) -> int:
    total, reach = 0, 0
    for start, end in sorted(pieces):
        if end > reach:
            total += end - max(start, reach)
            reach = end
    return total


def document(timed_run: Timed) -> dict[str, Any]:
    """The figures of `nki simulate --timing` (units in the names; FLOPs are matmuls that are no transposes)."""
    ops = timed_run.ops
    flops, transposes = sum(op.flops for op in ops), sum(op.transpose_flops for op in ops)
    read, written = sum(op.hbm_read for op in ops), sum(op.hbm_write for op in ops)
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
    if found["intensity"] is None:
        found["intensity_reason"] = "no byte crosses HBM"
    if found["mfu"] is None:
        found["mfu_reason"] = "nothing took time"
    return found
