"""Whoever has won its pairs begins anew and is measured again: what is fast only in its first life is no gain.

The life that is measured here is the one that later rounds and the final pairs are run against. One window beside no other
may only reject, and only what is far behind; it is looked at twice, with other prompts, before it does. A window that other
work disturbed rejects nothing: there are two looks more for a quiet one, and without one the gate says that it did not run.
"""

from __future__ import annotations

from vibeserve.search.baseline import up
from vibeserve.search.context import Run
from vibeserve.search.journal import Step
from vibeserve.search.lab import Window
from vibeserve.search.loads import Load, measurement
from vibeserve.search.store import GateRow
from vibeserve.search.verdict import SCREEN_REJECTS_BELOW, improvement
from vibeserve.targets.types import Direction

GATE = "restart"
LOOKS = 2


def lost(value: float, before: float, direction: Direction) -> bool:
    """Whether a value in a new life is far behind the one of the life before (both above 0, in the metric's unit)."""
    return improvement(value, before, direction) < SCREEN_REJECTS_BELOW


def outlasts(run: Run, number: int, candidate: str, value: float) -> str:
    """Restart a winner whose pairs showed `value`, and measure it: why its gain is none; empty where it stays.

    Raises RunError where it does not start again, or has no value then.
    """

    def work(step: Step) -> str:
        run.servers.close(candidate)
        up(run, candidate)
        server = run.servers.get(candidate, run.candidate(candidate).commit)
        others, window_s = run.servers.running(besides=candidate), run.stretched_s(run.plan.screen_s)
        problem, share, quiet, noise = "", None, 0, ""
        for look in range(2 * LOOKS):
            load = Load(number, GATE, look, run.seed_of(GATE, number, look), window_s)
            log = run.log(candidate, f"restart-{look}.json")
            window = run.lab.window(server, others, seed=load.seed, window_s=window_s, log=log, again=False)
            step.add(measurement(run, load, candidate, window))
            problem, share = _problem(run, window, value)
            slow = share is not None and bool(window.noisy)
            quiet, noise = quiet + (not slow), window.noisy if slow else noise
            if not problem or quiet == LOOKS:
                break
        detail = problem or f"started again after {server.ready_s:.1f} s, it has {share:.3g}× of the value of its pairs"
        ok: bool | None = not problem
        if problem and not quiet:
            ok, detail = None, f"not run: every window after the restart was disturbed ({noise})"
            problem = ""
        step.add(GateRow(number, candidate, GATE, ok, detail, {"ready_s": server.ready_s, "share": share}))
        step.event(GATE, f"round {number}: {detail}")
        return problem

    return run.journal.once(f"r{number}/{GATE}", work)


def _problem(run: Run, window: Window, value: float) -> tuple[str, float | None]:
    """(what is wrong with a window of the new life, its share of the value before)."""
    if window.failed:
        return f"after a restart {window.failed} requests failed under load", None
    if window.value is None or window.value <= 0:
        return f"after a restart it has no value: {window.reason or window.value}", None
    share = improvement(window.value, value, run.goal.direction)
    if lost(window.value, value, run.goal.direction):
        return f"its gain does not outlast a restart: {share:.2g}× of the value of its pairs", share
    return "", share
