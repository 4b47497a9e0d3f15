"""The built-in agent: it needs no language model. It proposes from data and evidence, and edits by copying parts."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vibeserve.agents.agent import Edit, Fact, Proposal, SearchState, Stop
from vibeserve.agents.conditions import evaluate
from vibeserve.agents.playbook.builder import build, engine_builds
from vibeserve.agents.playbook.floor import floor_of
from vibeserve.agents.playbook.knobs import suggest
from vibeserve.agents.playbook.policy import (
    Option,
    earlier,
    expectation,
    options,
    plateau,
    promises_more,
    rounds_affordable,
)
from vibeserve.agents.playbook.technique import Technique

#: Rounds that the budget must buy beside those of the floor, for each of the floor to have one of its own. What a round
#: costs is a guess before the first: slow references make it several times as dear.
SPARE_ROUNDS = 4


class Playbook:
    """Techniques as data, a policy over them, and a builder of candidates. Deterministic."""

    name = "playbook"

    def propose(self, state: SearchState) -> Proposal | Stop:
        """The open technique with the largest expected gain; merged with the rest of the floor where rounds are few."""
        found = options(state, {"engine": engine_builds(state.goal.architecture)})
        if reason := plateau(state):
            return Stop("plateau", reason, tuple(option.to_dict() for option in found))
        for option in found:
            if option.state == "open" and (proposal := self._proposal(option, found, state)):
                return proposal
        return self._back(found, state) or Stop(
            "nothing applies", _nothing(found, state), tuple(option.to_dict() for option in found)
        )

    def edit(self, proposal: Proposal, worktree: Path) -> Edit:
        """Write the candidate of `proposal.parts` and `proposal.settings` into the worktree."""
        return build(worktree, proposal)

    def floor(self, state: SearchState) -> list[dict[str, Any]]:
        """The floor of this hardware, as it stands."""
        return floor_of(state)

    def _back(self, found: list[Option], state: SearchState) -> Proposal | None:
        """Nothing is open here: a technique that the incumbent excludes, on an earlier candidate that promises more."""
        for there in earlier(state):
            for option in options(there, {"engine": engine_builds(state.goal.architecture)}):
                if option.technique.name in state.in_place:
                    continue
                if option.state == "open" and option.technique.kind != "tuning" and promises_more(option, there, state):
                    proposal = self._proposal(option, found, there)
                    if proposal is not None:
                        back = f"nothing is open on {state.incumbent}; back to {there.incumbent}: {proposal.why}"
                        return dataclasses.replace(proposal, why=back)
        return None

    def _proposal(self, option: Option, found: list[Option], state: SearchState) -> Proposal | None:
        chosen, settings = [option.technique], _settings(option.technique, state, state.settings)
        if settings is None:
            return None
        expected, why = option.expected or 1.0, f"largest expected gain of what is open: {option.why}"
        for extra in _merged(option, state):
            added = _settings(extra.technique, state, settings)
            if added is None:
                continue
            chosen.append(extra.technique)
            settings, expected = added, expected * (extra.expected or 1.0)
            why += f"; with {extra.technique.name}, also of the floor, since the budget buys few rounds ({extra.why})"
        parts = dict.fromkeys(part for technique in chosen for part in technique.changes.parts)
        return Proposal(
            techniques=tuple(technique.name for technique in chosen),
            title=" + ".join(technique.title for technique in chosen) + _changed(chosen, settings, state),
            parent=state.incumbent,
            hypothesis=" ".join(_fill(technique, state.evidence) for technique in chosen),
            expected_effect="; ".join(dict.fromkeys(technique.expects.effect for technique in chosen)),
            expected_ratio=expected,
            falsification=chosen[-1].falsification,
            activation=tuple(
                dataclasses.asdict(when.condition()) for technique in chosen for when in technique.activation
            ),
            settings=settings,
            parts=tuple(parts),
            why=why,
            not_others=tuple(other.to_dict() for other in found if other.technique not in chosen),
        )


def _merged(first: Option, state: SearchState) -> list[Option]:
    """The rest of the floor, where the first is of the floor and there are not rounds enough for one each."""
    if first.technique.kind != "floor" or any(
        set(tried.techniques) & {first.technique.name} for tried in state.history
    ):
        return []
    after = dataclasses.replace(state, in_place=(*state.in_place, first.technique.name))
    rest = [
        option
        for option in options(after, {"engine": engine_builds(state.goal.architecture)})
        if option.state == "open" and option.technique.kind == "floor"
    ]
    return rest if rounds_affordable(state) < SPARE_ROUNDS + len(rest) else []


def _settings(technique: Technique, state: SearchState, before: Mapping[str, Any]) -> dict[str, Any] | None:
    """The engine's whole configuration with this technique; None where its knobs have no values left."""
    settings = {**before, **technique.changes.settings}
    for name, formula in technique.changes.computed.items():
        try:
            settings[name] = round(evaluate(formula, state.evidence))
        except LookupError:
            continue  # the fact is not known: the engine's own default stands
    if technique.knobs:
        values = suggest(technique, state)
        if values is None:
            return None
        settings |= values
    if settings.get("max_batch_tokens", 512) < settings.get("max_batch", 16):
        settings["max_batch_tokens"] = settings["max_batch"]
    return settings


def _changed(chosen: list[Technique], settings: Mapping[str, Any], state: SearchState) -> str:
    knobs = [knob.setting for technique in chosen for knob in technique.knobs]
    shown = ", ".join(f"{name} {settings[name]}" for name in knobs if settings.get(name) != state.settings.get(name))
    return f": {shown}" if shown else ""


def _nothing(found: list[Option], state: SearchState) -> str:
    if not engine_builds(state.goal.architecture) and not state.in_place:
        return f"no technique can build a server for {state.goal.architecture}"
    tried = sum(option.state == "tried" for option in found)
    closed = sum(option.state == "closed" for option in found)
    return f"no technique is open: {tried} were tried, {closed} do not apply or promise nothing here"


def _fill(technique: Technique, evidence: Mapping[str, Fact]) -> str:
    """The technique's hypothesis with its numbers; where one is not known yet, its mechanism and what it should do."""
    expected = expectation(technique, evidence)[0]
    facts = {**evidence, "expected": Fact(expected, "", "assumed")}
    names = [name for _, name, _, _ in string.Formatter().parse(technique.hypothesis) if name]
    if all(name in facts for name in names):
        text = _Facts().vformat(technique.hypothesis, (), {"facts": facts})
    else:
        text = f"{technique.why} It should be about {expected:.1f} times as fast: {technique.expects.effect}."
    return " ".join(text.split())


class _Facts(string.Formatter):
    """`{fact:format}` with dots in names."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        return kwargs["facts"][field_name].value, field_name
