"""What an agent is to the search: it reads a state, proposes one falsifiable change, and edits a worktree.

An agent never starts the server that is scored and never writes a figure. All that it may know is in `SearchState`;
what it answers is a `Proposal` (plain values, so that it can be stored and read again) and, after editing, an `Edit`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Verdict = Literal["kept", "rejected-accuracy", "rejected-integrity", "not-better", "failed-start", "failed-run"]
VERDICTS: tuple[str, ...] = (
    "kept",
    "rejected-accuracy",
    "rejected-integrity",
    "not-better",
    "failed-start",
    "failed-run",
)


@dataclass(frozen=True)
class Fact:
    """One piece of evidence: a number with its unit, how it is known and where it came from."""

    value: float
    unit: str
    provenance: str
    source: str = ""


@dataclass(frozen=True)
class Goal:
    """What is asked: the bundle as far as an agent needs it."""

    slug: str
    modality: str
    api: str
    metric: str
    unit: str
    direction: Literal["higher", "lower"]
    hardware: str
    hardware_kind: str
    dtypes: tuple[str, ...]
    architecture: str
    workload_features: tuple[str, ...] = ()
    objective: str = ""


@dataclass(frozen=True)
class Tried:
    """One finished round: what was proposed and what became of it.

    `added` is what the round proposed; `techniques` is all that the candidate had in place.
    """

    round: int
    candidate: str
    parent: str
    added: tuple[str, ...]
    techniques: tuple[str, ...]
    settings: dict[str, Any]
    verdict: str
    reason: str
    value: float | None
    ratio: float | None
    ci95: tuple[float, float] | None
    expected_ratio: float | None = None


@dataclass(frozen=True)
class SearchState:
    """Everything that an agent may decide on. Plain values only: it is stored beside the decision made from it."""

    goal: Goal
    seed: int
    round: int
    rounds_left: int | None
    elapsed_s: float
    budget_left_s: float | None
    round_cost_s: float | None
    incumbent: str
    incumbent_value: float | None
    in_place: tuple[str, ...]
    settings: dict[str, Any]
    evidence: dict[str, Fact]
    history: tuple[Tried, ...] = ()


@dataclass(frozen=True)
class Proposal:
    """One falsifiable hypothesis and the change that tests it.

    `techniques` are the names that this change puts in place; `settings` is the engine's whole configuration after it;
    `expected_ratio` is improvement over the parent (above 1 is better); `activation` are conditions on the candidate's
    own counters that must hold for the measurement to mean anything; `why` and `not_others` make the choice readable; `task` is
    what a designer asks of the implementer.
    """

    techniques: tuple[str, ...]
    title: str
    parent: str
    hypothesis: str
    expected_effect: str
    expected_ratio: float | None
    falsification: str
    activation: tuple[dict[str, Any], ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    why: str = ""
    not_others: tuple[dict[str, Any], ...] = ()
    task: str = ""


@dataclass(frozen=True)
class Stop:
    """No further proposal, and why (`plateau`, `nothing applies`, `cannot build`, …)."""

    kind: str
    reason: str
    not_others: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Edit:
    """What an agent did to the worktree: a line for people, and the files that it says it wrote."""

    summary: str
    files: tuple[str, ...] = ()


class Agent(Protocol):
    """Who edits candidates. The same state gives the same proposal; neither method measures anything."""

    name: str

    def propose(self, state: SearchState) -> Proposal | tuple[Proposal, ...] | Stop:
        """One hypothesis to test next (or several, on the same parent, for this round and the next), or why there is none."""
        ...

    def edit(self, proposal: Proposal, worktree: Path) -> Edit:
        """Change `worktree` (the parent's exact tree) into the candidate. Raises VibeServeError where it cannot."""
        ...

    def floor(self, state: SearchState) -> list[dict[str, Any]]:
        """The techniques that every server on this kind of hardware has: in place, missing, or excused."""
        ...
