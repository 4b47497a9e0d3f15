"""Which technique next: by expected gain from evidence, with every technique's reason written beside the choice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vibeserve.agents.agent import Fact, SearchState, Tried
from vibeserve.agents.conditions import UnknownFactError, evaluate, holds
from vibeserve.agents.playbook.builder import parts
from vibeserve.agents.playbook.technique import Technique, techniques

#: A proposal is not worth a round where less than this is expected.
WORTH_A_ROUND = 1.01
#: Rounds in a row that were not kept, after which the search has reached a plateau.
PLATEAU_ROUNDS = 4
#: What is known only from an assumption counts for less than what follows from evidence.
ASSUMED_DISCOUNT = 0.7


@dataclass(frozen=True)
class Option:
    """One technique seen from a state. `state` is open, in place, tried, or closed; `why` says which and why.

    `expected` is the ratio that its formula gives; `assumed` where the formula lacked a fact; `score` orders the open
    ones: the logarithm of the expected ratio, discounted where it is assumed.
    """

    technique: Technique
    state: str
    why: str
    expected: float | None = None
    assumed: bool = False
    score: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """For the record and the report."""
        return {
            "technique": self.technique.name,
            "state": self.state,
            "why": self.why,
            "expected_ratio": self.expected,
            "assumed": self.assumed,
        }


def options(state: SearchState, engine_models: Mapping[str, bool]) -> list[Option]:
    """Every technique with its state, the open ones first, best first. Deterministic.

    `engine_models` says of this goal's architecture whether the engine builds it itself: {"engine": bool}.
    """
    found = [_option(technique, state, engine_models["engine"]) for technique in techniques()]
    return sorted(found, key=lambda option: (option.state != "open", -option.score, option.technique.name))


def _option(technique: Technique, state: SearchState, engine: bool) -> Option:
    if technique.kind != "tuning" and technique.name in state.in_place:
        return Option(technique, "in place", f"since {_since(technique.name, state)}")
    if closed := _closed(technique, state, engine):
        return Option(technique, "closed", closed)
    if tried := _tried(technique, state):
        return Option(technique, "tried", f"round {tried.round}: {tried.verdict}: {tried.reason}")
    expected, assumed, how = expectation(technique, state.evidence)
    if expected < WORTH_A_ROUND:
        return Option(technique, "closed", f"only {expected:.3f}× is expected ({how})", expected, assumed)
    score = math.log(expected) * (ASSUMED_DISCOUNT if assumed else 1.0)
    return Option(technique, "open", f"{expected:.2f}× is expected ({how})", expected, assumed, score)


def _since(name: str, state: SearchState) -> str:
    rounds = [tried.round for tried in state.history if name in tried.added and tried.verdict == "kept"]
    return f"round {rounds[0]}" if rounds else "the start"


def _closed(technique: Technique, state: SearchState, engine: bool) -> str:
    """Why a technique cannot be tried here; empty where it can."""
    applies, goal = technique.applies, state.goal
    if applies.modality and goal.modality not in applies.modality:
        return f"for {', '.join(applies.modality)}; this is {goal.modality}"
    if applies.api and goal.api not in applies.api:
        return f"for the API {', '.join(applies.api)}; this is {goal.api}"
    if applies.hardware and goal.hardware_kind not in applies.hardware:
        return f"for {', '.join(applies.hardware)}; this machine is {goal.hardware_kind}"
    if applies.models == "engine" and not engine:
        return f"the engine has no model code for {goal.architecture}"
    if applies.models == "other" and engine:
        return f"the engine has its own model code for {goal.architecture}"
    if missing := [part for part in technique.changes.parts if part not in parts()]:
        return f"this version's engine has no part {', '.join(missing)}"
    if missing := [dtype for dtype in applies.dtypes if dtype not in goal.dtypes]:
        return f"the bundle allows {', '.join(goal.dtypes)} only, not {', '.join(missing)}"
    if technique.expects.metrics and goal.metric not in technique.expects.metrics:
        return f"does nothing for {goal.metric}"
    if missing := [name for name in applies.requires if name not in state.in_place]:
        return f"needs {', '.join(missing)} in place"
    if applies.requires_any and not set(applies.requires_any) & set(state.in_place):
        return f"needs one of {', '.join(applies.requires_any)} in place"
    if present := [name for name in applies.excludes if name in state.in_place]:
        return f"not beside {', '.join(present)}"
    for when in applies.when:
        held = holds(when.condition(), state.evidence)
        if held is False:
            return f"{when.why} ({when.fact} is {state.evidence[when.fact].value:g})"
        if held is None and when.known:
            return f"{when.why} (its benchmark tells no {when.fact})"
    return ""


def _tried(technique: Technique, state: SearchState) -> Tried | None:
    """The round that already settled it: it was tried alone and not kept, or all its tries are used."""
    rounds = [tried for tried in state.history if technique.name in tried.added]
    if technique.kind == "tuning":
        return rounds[-1] if len(rounds) >= technique.trials else None
    alone = [tried for tried in rounds if tried.added == (technique.name,) and tried.verdict != "kept"]
    return alone[-1] if alone else None


def expectation(technique: Technique, evidence: Mapping[str, Fact]) -> tuple[float, bool, str]:
    """(expected ratio, whether it is assumed, how it was had)."""
    expects = technique.expects
    try:
        value = evaluate(expects.ratio, evidence)
    except UnknownFactError as error:
        return expects.otherwise, True, f"assumed: {error} is not known"
    except (ZeroDivisionError, OverflowError):
        return expects.otherwise, True, "assumed: its formula has no value here"
    if not math.isfinite(value) or value <= 0:
        return expects.otherwise, True, "assumed: its formula has no value here"
    return value, not any(char.isalpha() for char in expects.ratio), f"{expects.ratio}; {expects.source}"


def plateau(state: SearchState) -> str:
    """Why the search should end, where the last rounds brought nothing; empty otherwise."""
    last = state.history[-PLATEAU_ROUNDS:]
    if len(last) == PLATEAU_ROUNDS and all(tried.verdict != "kept" for tried in last):
        return f"the last {PLATEAU_ROUNDS} rounds brought nothing better"
    return ""


def rounds_affordable(state: SearchState) -> float:
    """How many more rounds time and number allow (infinite where neither is limited)."""
    by_time = math.inf
    if state.budget_left_s is not None and state.round_cost_s:
        by_time = state.budget_left_s / state.round_cost_s
    return min(by_time, math.inf if state.rounds_left is None else state.rounds_left)


def earlier(state: SearchState) -> list[SearchState]:
    """The state as it would be from each earlier kept candidate, newest first: where to go back to.

    Evidence stays the incumbent's: it is what is known last.
    """
    kept = [tried for tried in state.history if tried.verdict == "kept" and tried.candidate != state.incumbent]
    return [
        dataclasses.replace(
            state,
            incumbent=tried.candidate,
            incumbent_value=tried.value,
            in_place=tried.techniques,
            settings=tried.settings,
        )
        for tried in reversed(kept)
    ]


def promises_more(option: Option, there: SearchState, state: SearchState) -> bool:
    """Whether a technique on an earlier candidate is expected to beat the incumbent."""
    if option.expected is None or not there.incumbent_value or not state.incumbent_value:
        return False
    quotient = there.incumbent_value / state.incumbent_value
    return option.expected * (quotient if state.goal.direction == "higher" else 1 / quotient) >= WORTH_A_ROUND
