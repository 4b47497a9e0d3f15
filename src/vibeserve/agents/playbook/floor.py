"""The floor of a kind of hardware, seen from a state: in place, missing, excused, or not verified on hardware."""

from __future__ import annotations

from typing import Any

from vibeserve.agents.agent import SearchState
from vibeserve.agents.conditions import holds
from vibeserve.agents.playbook.technique import FloorItem, floor_items

#: The kinds of machine that this version has measured itself on.
VERIFIED = ("cpu",)


def floor_of(state: SearchState) -> list[dict[str, Any]]:
    """One entry an item: `technique`, `title`, `state`, `reason`, `hardware`."""
    kind = state.goal.hardware_kind
    return [_entry(item, state) for item in floor_items() if item.hardware == kind]


def _entry(item: FloorItem, state: SearchState) -> dict[str, Any]:
    word, reason = _state(item, state)
    return {
        "technique": ", ".join(item.techniques) or item.name,
        "title": item.name,
        "state": word,
        "reason": f"{reason}; {item.note}" if item.note else reason,
        "hardware": item.hardware,
    }


def _state(item: FloorItem, state: SearchState) -> tuple[str, str]:
    for when in item.excused:
        if holds(when.condition(), state.evidence) is True:
            return "excused", when.why
    if item.hardware not in VERIFIED:
        return "not verified on hardware", f"this version was never measured on {item.hardware}"
    present = [name for name in item.techniques if name in state.in_place]
    if present:
        fact = state.evidence.get(item.fact) if item.fact else None
        if fact is not None and fact.value < 1:
            return (
                "missing",
                f"{present[0]} is in place, but {item.fact} is {fact.value:g} on the server's own counters",
            )
        seen = f", {item.fact} is {fact.value:g}" if fact is not None else ""
        return "in place", f"by {present[0]}{seen}"
    tried = [entry for entry in state.history if set(item.techniques) & set(entry.techniques)]
    if tried:
        last = tried[-1]
        return "excused", f"tried in round {last.round}: {last.verdict}: {last.reason}"
    return "missing", "not tried yet" if item.techniques else "the playbook has no technique for it"
