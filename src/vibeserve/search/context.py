"""What a run is made of while it runs, and how it stands: all that the steps share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from vibeserve.agents.agent import Agent, Fact, Goal, SearchState, Tried
from vibeserve.agents.desk import Desk
from vibeserve.base.clock import Clock
from vibeserve.base.randomness import derive_seed
from vibeserve.search.journal import Journal
from vibeserve.search.lab import Lab
from vibeserve.search.plan import WINDOW_OVERHEAD_S, Plan
from vibeserve.search.servers import Servers
from vibeserve.search.store import CandidateRow, DecisionRow, RunStore
from vibeserve.search.workspace import Workspace

BASELINE = "c0"
#: Evidence of the machine, the model and the limit, which belongs to no candidate.
WHOLE_RUN = "run"
#: The same once more, where the machine's rates were measured again at the end: these count then.
RATES_AGAIN = "run again"


@dataclass
class Run:
    """One run in progress."""

    directory: Path
    store: RunStore
    journal: Journal
    workspace: Workspace
    lab: Lab
    agent: Agent
    servers: Servers
    clock: Clock
    plan: Plan
    goal: Goal
    seed: int
    reference: Path
    stop_requested: Callable[[], bool] = field(default=lambda: False)
    desk: Desk | None = None

    def seed_of(self, *names: object) -> int:
        """A seed that belongs to this run and these names; 31 bits, as every load client takes it."""
        return derive_seed(self.seed, *names) & 0x7FFFFFFF

    def when(self) -> datetime:
        """The run's start plus the time spent in steps: the same in a resumed run as in an unbroken one."""
        return datetime.fromisoformat(self.store.run().started) + timedelta(seconds=self.journal.elapsed_s)

    def candidate(self, name: str) -> CandidateRow:
        """A candidate's row. Raises KeyError."""
        return {row.id: row for row in self.store.candidates()}[name]

    def incumbent(self) -> str:
        """The candidate that was kept last."""
        kept = [row.candidate for row in self.store.decisions() if row.kind == "round" and row.verdict == "kept"]
        return kept[-1] if kept else BASELINE

    def stretched_s(self, window_s: float) -> float:
        """A planned window as long as the reference needs to yield anything."""
        return window_s * float(self.store.step("r0/measure").get("stretch", 1.0))

    def log(self, *parts: object) -> Path:
        """A path under logs/."""
        return self.directory.joinpath("logs", *(str(part) for part in parts))

    def relative(self, path: Path) -> str:
        """`path` as it is written in the store."""
        return str(path.relative_to(self.directory)) if path.is_relative_to(self.directory) else str(path)


def state_of(run: Run, number: int) -> SearchState:
    """What the agent may know before round `number`."""
    incumbent = run.candidate(run.incumbent())
    decisions = {row.candidate: row for row in run.store.decisions() if row.kind == "round"}
    plan = run.plan
    left_s = None
    if plan.budget_s is not None:
        left_s = plan.budget_s - run.journal.elapsed_s - plan.final_cost_s
    return SearchState(
        goal=run.goal,
        seed=run.seed_of("agent", number),
        round=number,
        rounds_left=None if plan.rounds is None else plan.rounds - number + 1,
        elapsed_s=run.journal.elapsed_s,
        budget_left_s=left_s,
        round_cost_s=round_cost_s(run),
        incumbent=incumbent.id,
        incumbent_value=decisions[incumbent.id].value if incumbent.id in decisions else None,
        in_place=incumbent.techniques,
        settings=incumbent.settings,
        evidence=facts_of(run, incumbent.id),
        history=history(run, decisions),
    )


def facts_of(run: Run, candidate: str) -> dict[str, Fact]:
    """What is known of a candidate and of the run; a candidate's own facts win."""
    rows = [*run.store.evidence(WHOLE_RUN), *run.store.evidence(candidate)]
    return {row.name: Fact(row.value, row.unit, row.provenance, row.source) for row in rows}


def history(run: Run, decisions: dict[str, DecisionRow]) -> tuple[Tried, ...]:
    """The finished rounds, round 0 left out."""
    proposed = {row.round: row for row in run.store.hypotheses()}
    tried = []
    for row in run.store.candidates():
        decision = decisions.get(row.id)
        if row.round == 0 or decision is None:
            continue
        low, high = decision.ci_low, decision.ci_high
        tried.append(
            Tried(
                round=row.round,
                candidate=row.id,
                parent=row.parent or BASELINE,
                added=proposed[row.round].techniques,
                techniques=row.techniques,
                settings=row.settings,
                verdict=decision.verdict,
                reason=decision.reason,
                value=decision.value,
                ratio=decision.ratio,
                ci95=None if low is None or high is None else (low, high),
                expected_ratio=proposed[row.round].expected_ratio,
            )
        )
    return tuple(tried)


def round_cost_s(run: Run) -> float:
    """What the next round is expected to cost: the dearest of those that came to their pairs, else the plan's figure.

    Pairs against the reference are dear, since it is slow to warm up: they say nothing of pairs against a better
    incumbent, for which the plan's figure stands until some have been measured.
    """
    whole = [row for row in run.store.decisions() if row.kind == "round" and row.pairs]
    if not whole:
        return run.plan.round_cost_s
    spent: dict[str, list[float]] = {}
    for step in run.store.steps():
        prefix, _, rest = step["key"].partition("/")
        parts = spent.setdefault(prefix, [0.0, 0.0])
        parts[rest.startswith("pair/")] += step["took_s"]
    fixed_s = max(spent[f"r{row.round}"][0] for row in whole)
    alike = [row for row in whole if (row.against == BASELINE) == (run.incumbent() == BASELINE)]
    pairs_s = max(
        (spent[f"r{row.round}"][1] / row.pairs * run.plan.pairs for row in alike),
        default=2 * run.plan.pairs * (run.stretched_s(run.plan.window_s) + WINDOW_OVERHEAD_S),
    )
    return fixed_s + pairs_s


def group_of(directory: Path) -> str:
    """The mark of all processes of the run in `directory`."""
    return f"{directory.name}-{digest_of(str(directory.resolve()))}"


def digest_of(value: Any) -> str:
    """A short name for a value, by its text."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
