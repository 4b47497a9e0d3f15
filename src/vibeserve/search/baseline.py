"""Round 0: the reference server is started, checked and measured. Without it there is nothing to be better than."""

from __future__ import annotations

from typing import Any

from vibeserve.base.errors import CheckError
from vibeserve.measure import KilledError, RunError, StartError
from vibeserve.search.context import BASELINE, WHOLE_RUN, Run
from vibeserve.search.journal import Step
from vibeserve.search.killed import once_more
from vibeserve.search.lab import Window
from vibeserve.search.loads import Load, measurement
from vibeserve.search.store import CandidateRow, DecisionRow, EvidenceRow, GateRow

#: How much longer the window is each time that nothing came of the one before.
STRETCHES = (1, 4)


def baseline(run: Run) -> None:
    """Facts of machine and model, then the reference through start, checker and one window of load."""
    run.servers.source(BASELINE, run.reference)
    run.journal.once("facts", lambda step: _facts(run, step))
    run.journal.once("integrity", lambda step: run.lab.integrity())
    run.journal.once("r0/build", lambda step: _build(run, step))
    started = once_more(run, lambda: run.journal.once("r0/start", lambda step: _start(run, step)))
    if not started["ok"]:
        raise CheckError(f"the reference server did not start: {started['detail']}", hint=_logs(run))
    checked = once_more(
        run, lambda: run.journal.once("r0/check", lambda step: _check(run, step), before=lambda: up(run))
    )
    if checked["ok"] is not True:
        word = "could not be checked" if checked["ok"] is None else "does not pass its own checker"
        raise CheckError(f"the reference server {word}: {checked['detail']}", hint=_logs(run))
    measured = once_more(
        run, lambda: run.journal.once("r0/measure", lambda step: _measure(run, step), before=lambda: up(run))
    )
    if not measured["value"]:
        why = measured["reason"] or "its value is 0"
        raise CheckError(f"the reference server could not be measured: {why}", hint=_logs(run))


def up(run: Run, candidate: str = BASELINE) -> None:
    """See that a candidate's server is up (after a resume it is not). Raises RunError where it is not to be had."""
    row = run.candidate(candidate)
    try:
        run.servers.get(candidate, row.commit)
    except StartError as failure:
        raise RunError(f"{candidate} started once, but not again: {failure}") from failure


def _logs(run: Run) -> str:
    return f"its log is under {run.directory / 'logs' / BASELINE}; 'vibeserve validate' checks the bundle"


def _facts(run: Run, step: Step) -> None:
    for name, fact in run.lab.facts().items():
        step.add(EvidenceRow(WHOLE_RUN, name, fact.value, fact.unit, fact.provenance, fact.source))


def _build(run: Run, step: Step) -> dict[str, Any]:
    worktree = run.workspace.checkout(None)
    for path in sorted(run.reference.iterdir()):
        if path.is_file():
            (worktree / path.name).write_bytes(path.read_bytes())
    commit = run.workspace.commit(BASELINE, "Round 0: the reference server", run.when(), parent=None)
    step.add(CandidateRow(BASELINE, 0, None, commit.commit, commit.tree, (), {}, "the bundle's reference server", 0.0))
    step.event("build", "round 0: the bundle's reference server")
    return {"commit": commit.commit}


def _start(run: Run, step: Step) -> dict[str, Any]:
    try:
        server = run.servers.get(BASELINE, None)
    except StartError as failure:
        if failure.killed:
            raise KilledError(
                failure.message, hint=failure.hint
            ) from failure  # nothing is recorded: resume tries again
        step.add(GateRow(0, BASELINE, "start", False, str(failure)))
        return {"ok": False, "detail": str(failure)}
    detail = f"ready after {server.ready_s:.1f} s"
    step.add(GateRow(0, BASELINE, "start", True, detail, {"ready_s": server.ready_s}))
    step.event("start", f"round 0: {detail}")
    return {"ok": True, "detail": detail}


def _check(run: Run, step: Step) -> dict[str, Any]:
    server = run.servers.get(BASELINE, None)
    gate = run.lab.check(server, seed=run.seed_of("check", 0), log=run.log(BASELINE, "check.json"), reference=True)
    step.add(GateRow(0, BASELINE, gate.name, gate.ok, gate.detail, gate.document))
    step.event("check", f"round 0: {gate.detail}")
    return {"ok": gate.ok, "detail": gate.detail}


def _measure(run: Run, step: Step) -> dict[str, Any]:
    """One window; a longer one where the reference is so slow that nothing came of it: all later windows are then so."""
    server = run.servers.get(BASELINE, None)
    window, load = Window(None), Load(0, "baseline", 0, 0, 0.0)
    for attempt, stretch in enumerate(STRETCHES):
        load = Load(0, "baseline", attempt, run.seed_of("baseline", attempt), run.plan.final_window_s * stretch)
        log = run.log(BASELINE, "baseline.json" if attempt == 0 else f"baseline-{attempt + 1}.json")
        try:
            window = run.lab.observe(server, seed=load.seed, window_s=load.window_s, log=log)
        except KilledError:
            raise
        except RunError as failure:
            window = Window(None, reason=str(failure))
        step.add(measurement(run, load, BASELINE, window))
        if window.value:
            break
    for name, fact in window.facts.items():
        step.add(EvidenceRow(BASELINE, name, fact.value, fact.unit, fact.provenance, fact.source))
    if window.value is not None:
        reason = "the reference server is where every run starts"
        step.add(DecisionRow(0, "round", BASELINE, BASELINE, "kept", reason, window.value, None, None, None, 0, 0.0))
        step.event("measure", f"round 0: {window.value:.4g} {run.goal.unit} {run.goal.metric}")
    return {"value": window.value, "reason": window.reason, "stretch": load.window_s / run.plan.final_window_s}
