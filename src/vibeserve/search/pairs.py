"""Paired windows: both servers on the same prompts, in balanced order; each pair is one step of the journal."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from vibeserve.measure import KilledError, RunError, order_of
from vibeserve.search.baseline import up
from vibeserve.search.context import Run
from vibeserve.search.journal import Step
from vibeserve.search.loads import Load, measurement
from vibeserve.search.verdict import Comparison, compare, futile

#: Disturbed windows of a match that are run once more; on a machine that is never quiet, more would only cost time.
RETRIES = 2
#: How much longer the windows of a pair are where nothing came of the first.
LONGER = 3.0


@dataclass(frozen=True)
class Match:
    """Two candidates to be compared: `kind` is pair (a round's) or final."""

    round: int
    kind: str
    candidate: str
    against: str
    pairs: int
    window_s: float

    def key(self, pair: int) -> str:
        """The journal's key of one pair."""
        return f"{'final' if self.kind == 'final' else f'r{self.round}'}/{self.kind}/{pair}"


def measure_pairs(run: Run, match: Match) -> Comparison:
    """All pairs of a match; given up early only where it is plain that the candidate is not better.

    Raises RunError where a request fails or a value cannot be had: a side that fails has no ratio.
    """
    values: list[float] = []
    others: list[float] = []

    def before() -> None:
        up(run, match.candidate)
        up(run, match.against)

    retries = 0
    for pair in range(match.pairs):
        work = functools.partial(_pair, run, match, pair, again=retries < RETRIES)
        outcome = run.journal.once(match.key(pair), work, before=before)
        retries += outcome["retried"]
        if outcome["problem"]:
            raise RunError(outcome["problem"])
        values.append(outcome["value"])
        others.append(outcome["against"])
        if match.kind == "pair" and futile(values, others, run.goal.direction):
            break
    return compare(values, others, run.goal.direction)


def order(run: Run, match: Match, pair: int) -> tuple[str, str]:
    """Which side of a pair goes first: balanced, in blocks drawn by chance from the run's seed."""
    sides = order_of(match.pairs, run.seed_of("order", match.kind, match.round))[pair]
    names = {"a": match.against, "b": match.candidate}
    return names[sides[0]], names[sides[1]]


def _pair(run: Run, match: Match, pair: int, step: Step, *, again: bool) -> dict[str, Any]:
    """One pair. Where nothing came of the window of the one that is compared against, both have a longer one: a slow
    server in a bad moment is no fault of the candidate's."""
    try:
        return _windows(run, match, pair, step, match.window_s, again=again)
    except _SilentOtherError as failure:
        run.servers.drop_dead(besides=match.candidate)
        step.event("pair", f"{match.kind} {pair + 1} of {match.pairs}: again with longer windows: {failure}")
    try:
        return _windows(run, match, pair, step, LONGER * match.window_s, again=False)
    except _SilentOtherError as failure:
        problem = f"{match.against}, which {match.candidate} is compared against, could not be measured: {failure}"
        return {"problem": problem, "retried": 0, "value": None, "against": None}


class _SilentOtherError(Exception):
    """A window of the server that is compared against brought no value."""


def _windows(run: Run, match: Match, pair: int, step: Step, window_s: float, *, again: bool) -> dict[str, Any]:
    seed = run.seed_of(match.kind, match.round, pair)
    values: dict[str, float] = {}
    rows: list[Any] = []
    problem, retried = "", 0
    for place, name in enumerate(order(run, match, pair)):
        server = run.servers.get(name, run.candidate(name).commit)
        log = run.log(match.candidate, f"{match.kind}-{pair}-{name}.json")
        others = run.servers.running(besides=name)
        try:
            window = run.lab.window(server, others, seed=seed, window_s=window_s, log=log, again=again and not retried)
        except RunError as failure:
            if name != match.against or isinstance(failure, KilledError):
                raise
            raise _SilentOtherError(str(failure)) from failure
        retried += window.retried
        load = Load(match.round, match.kind, pair, seed, window_s, place)
        rows.append(measurement(run, load, name, window))
        if window.failed:
            problem = problem or f"{window.failed} requests to {name} failed under load"
        elif window.value is None or window.value <= 0:
            problem = problem or f"{name} has no value: {window.reason or window.value}"
        else:
            values[name] = window.value
    for row in rows:
        step.add(row)
    if not problem:
        mine, theirs = values[match.candidate], values[match.against]
        ratio = compare([mine], [theirs], run.goal.direction).ratio
        text = f"{match.candidate} {mine:.4g}, {match.against} {theirs:.4g} ({ratio:.3g}×)"
        step.event("pair", f"{match.kind} {pair + 1} of {match.pairs}: {text}")
    return {
        "problem": problem,
        "retried": retried,
        "value": values.get(match.candidate),
        "against": values.get(match.against),
    }
