"""The calls of agents, kept in the run store; and the desk at which a coding agent works on a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vibeserve.agents.desk import Desk, Limits, Remembered, Sandbox, Spent, Usage
from vibeserve.base.clock import Clock
from vibeserve.base.processes import ProcessRunner
from vibeserve.search.context import Run, group_of, state_of
from vibeserve.search.store import CallRow, RunStore


class Ledger:
    """Every call is a row before it begins. Times are seconds of the run's clock."""

    def __init__(self, store: RunStore, clock: Clock):
        self._store = store
        self._clock = clock
        self._began_s: dict[int, float] = {}

    def open(self, *, number: int, task: str, role: str, agent: str, sandbox: str, transcript: Path) -> int:
        """A new call of round `number`; returns the call's own id."""
        place = transcript
        if place.is_relative_to(self._store.directory):
            place = place.relative_to(self._store.directory)
        values = {"round": number, "task": task, "role": role, "agent": agent, "sandbox": sandbox}
        started = self._clock.now().isoformat()
        call = self._store.open_call({**values, "transcript": str(place), "started": started})
        self._began_s[call] = self._clock.monotonic_s()
        return call

    def close(self, call: int, state: str, usage: Usage, *, detail: str = "", reply: Mapping[str, Any] | None) -> None:
        """How it ended."""
        took_s = self._clock.monotonic_s() - self._began_s.pop(call)
        values = {**vars(usage), "state": state, "detail": detail, "took_s": took_s}
        self._store.close_call(call, values, reply)

    def answered(self, number: int, task: str) -> Mapping[str, Any] | None:
        """The reply of this task of this round, where there was one."""
        return next((row.reply for row in self._of(number, task) if row.state == "answered"), None)

    def tries(self, number: int, task: str) -> int:
        """How many calls this task has had."""
        return len(self._of(number, task))

    def spent(self) -> Spent:
        """What the run has used so far."""
        return spent(self._store.calls())

    def _of(self, number: int, task: str) -> list[CallRow]:
        return [row for row in self._store.calls() if (row.round, row.task) == (number, task)]


def spent(calls: list[CallRow]) -> Spent:
    """What these calls used, by their own word."""
    return Spent(
        calls=len(calls),
        tokens=sum((row.input_tokens or 0) + (row.output_tokens or 0) for row in calls),
        cost_usd=sum(row.cost_usd or 0.0 for row in calls),
        silent=sum(row.input_tokens is None and row.output_tokens is None for row in calls),
        unpriced=sum(row.cost_usd is None for row in calls),
    )


def desk_of(
    run: Run, limits: Limits, runner: ProcessRunner, sandbox: Sandbox | None, readable: tuple[Path, ...]
) -> Desk:
    """The desk of this run."""
    return Desk(
        records=Ledger(run.store, run.clock),
        runner=runner,
        sandbox=sandbox,
        folder=run.directory / "agents",
        group=group_of(run.directory),
        state=lambda number: state_of(run, number),
        memory=lambda: [_remembered(row) for row in run.store.hypotheses()],
        time_left_s=lambda: time_left_s(run),
        limits=limits,
        readable=readable,
    )


def _remembered(row: Any) -> Remembered:
    return Remembered(row.round, row.title, row.hypothesis, row.state, row.parent, row.mechanism)


def time_left_s(run: Run) -> float:
    """Seconds that agents may still take: the final comparison's share is kept back."""
    if run.plan.budget_s is None:
        return float("inf")
    return run.plan.budget_s - run.journal.now_s - run.plan.final_cost_s
