"""The end of a run: the best candidate against round 0 on fresh pairs, which is what is reported."""

from __future__ import annotations

import functools
import math
from typing import Any

from vibeserve.measure import KilledError, RunError
from vibeserve.search.baseline import up
from vibeserve.search.context import BASELINE, RATES_AGAIN, Run, facts_of
from vibeserve.search.journal import Step
from vibeserve.search.killed import once_more
from vibeserve.search.lab import Window
from vibeserve.search.loads import Load, measurement
from vibeserve.search.pairs import Match, measure_pairs
from vibeserve.search.plan import SHORTEST_WINDOW_S, WINDOW_OVERHEAD_S
from vibeserve.search.store import DecisionRow, EvidenceRow
from vibeserve.search.verdict import Comparison, in_words


def confirm(run: Run) -> None:
    """Fresh pairs for a search that tried many candidates; then the curve of both over other loads.

    Where the best server comes out faster than the physical limit, the rates that the limit is made of are measured again.
    """
    _confirm(run)
    if beyond_limit(run):
        run.servers.close_all()
        run.journal.once("limit/again", lambda step: _limit_again(run, step))


def beyond_limit(run: Run) -> bool:
    """Whether the value that is reported is better than the limit: its rates were then taken while the machine was slow."""
    limit = next((row.value for row in run.store.evidence(BASELINE) if row.name == "limit.value"), None)
    value = next((row.value for row in run.store.decisions() if row.kind == "final"), None)
    if not limit or not value:
        return False
    return value > limit if run.goal.direction == "higher" else value < limit


def _limit_again(run: Run, step: Step) -> None:
    known = facts_of(run, BASELINE)
    found = run.lab.limit_again(known)
    for name, fact in found.items():
        step.add(EvidenceRow(RATES_AGAIN, name, fact.value, fact.unit, fact.provenance, fact.source))
    if found:
        words = f"{known['limit.value'].value:.4g} → {found['limit.value'].value:.4g} {run.goal.unit}"
        step.event("limit", f"the best server beats the limit: the machine's rates were measured again: {words}")


def _confirm(run: Run) -> None:
    best = run.incumbent()
    number = max(row.round for row in run.store.candidates())
    if best == BASELINE:
        run.journal.once("final/decide", lambda step: _none_better(run, step, number))
        return
    comparison, problem = None, ""
    try:
        window_s = run.journal.once("final/window", lambda step: window_left_s(run))
        match = Match(number, "final", best, BASELINE, run.plan.final_pairs, window_s)
        comparison = once_more(run, lambda: measure_pairs(run, match), trial=best)
    except RunError as failure:
        problem = str(failure)
    run.journal.once("final/decide", lambda step: _record(step, _decision(run, number, best, comparison or problem)))
    levels = run.journal.once("curve/levels", lambda step: list(run.plan.curve_levels) if time_left_s(run) > 0 else [])
    for name in (best, BASELINE):
        for level in levels:
            try:
                once_more(run, functools.partial(_curve_point, run, number, name, level))
            except KilledError as failure:
                run.journal.event("curve", f"{name} at {level} at once was not measured: {failure.message}")


def time_left_s(run: Run) -> float:
    """What is left of the budget; infinite where there is none."""
    return math.inf if run.plan.budget_s is None else run.plan.budget_s - run.journal.elapsed_s


def window_left_s(run: Run) -> float:
    """The final windows' length: the plan's, or shorter where rounds took longer than planned; never under the shortest.

    What a window costs beside itself is taken from the pairs that have been measured.
    """
    plan = run.plan
    pairs = [step["took_s"] / 2 for step in run.store.steps() if "/pair/" in step["key"]]
    overhead_s = sum(pairs) / len(pairs) - run.stretched_s(plan.window_s) if pairs else WINDOW_OVERHEAD_S
    left_s = time_left_s(run) / (2 * plan.final_pairs) - overhead_s
    shortest_s = min(SHORTEST_WINDOW_S, plan.final_window_s)
    return run.stretched_s(round(max(shortest_s, min(plan.final_window_s, left_s)), 1))


def _none_better(run: Run, step: Step, number: int) -> None:
    value = next(row.value for row in run.store.decisions() if row.candidate == BASELINE)
    reason = "no candidate was better than the reference"
    step.add(DecisionRow(number, "final", BASELINE, BASELINE, "kept", reason, value, 1.0, None, None, 0, 0.0))
    step.event("final", reason)


def _decision(run: Run, number: int, best: str, outcome: Comparison | str) -> DecisionRow:
    if isinstance(outcome, str):
        reason = f"{best} was kept, but failed in the final comparison: {outcome}"
        value = next(row.value for row in run.store.decisions() if row.candidate == BASELINE)
        return DecisionRow(number, "final", BASELINE, BASELINE, "failed-run", reason, value, 1.0, None, None, 0, 0.0)
    comparison = outcome
    if comparison.worse:
        reason = f"{best} was kept, but is slower than the reference on fresh pairs: {in_words(comparison)}"
        value = comparison.value_against
        return DecisionRow(number, "final", BASELINE, BASELINE, "not-better", reason, value, 1.0, None, None, 0, 0.0)
    low, high = comparison.ci95 or (None, None)
    shown = "confirmed on" if comparison.better else "not confirmed by the interval on"
    return DecisionRow(
        round=number,
        kind="final",
        candidate=best,
        against=BASELINE,
        verdict="kept" if comparison.better else "not-better",
        reason=f"{shown} fresh pairs: {in_words(comparison)} of the reference",
        value=comparison.value,
        ratio=comparison.ratio,
        ci_low=low,
        ci_high=high,
        pairs=comparison.pairs,
        at_s=0.0,
    )


def _record(step: Step, row: DecisionRow) -> None:
    step.add(row)
    step.event("final", row.reason)


def _curve_point(run: Run, number: int, name: str, level: int) -> None:
    def work(step: Step) -> dict[str, Any]:
        load = Load(number, "curve", level, run.seed_of("curve", level), run.stretched_s(run.plan.curve_window_s))
        server = run.servers.get(name, run.candidate(name).commit)
        log = run.log("curve", f"{name}-{level}.json")
        try:
            window = run.lab.curve(server, concurrency=level, seed=load.seed, window_s=load.window_s, log=log)
        except KilledError:
            raise
        except RunError as failure:
            window = Window(None, reason=str(failure))
        step.add(measurement(run, load, name, window))
        for key, fact in window.facts.items():
            step.add(EvidenceRow(name, f"curve.{level}.{key}", fact.value, fact.unit, fact.provenance, fact.source))
        shown = window.reason if window.value is None else f"{window.value:.4g} {run.goal.unit}"
        step.event("curve", f"{name} at {level} at once: {shown}")
        return {"value": window.value, "reason": window.reason}

    run.journal.once(f"curve/{name}/{level}", work, before=lambda: up(run, name))
