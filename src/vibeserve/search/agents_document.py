"""What agents did in a run, and at which cost: the part of a run's document that is about calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vibeserve.search.ledger import spent
from vibeserve.search.store import CallRow, RunView


def agents_document(view: RunView) -> dict[str, Any]:
    """`calls`, the sums by role and by round, the total, and the `claims`. Tokens and cost are the agents' own word."""
    calls = view.calls()
    names = {call.id: call for call in calls}
    return {
        "total": _sum(calls),
        "roles": [{"role": role, **_sum(rows)} for role, rows in _by(calls, lambda call: call.role)],
        "rounds": [{"round": number, **_sum(rows)} for number, rows in _by(calls, lambda call: call.round)],
        "calls": [_call(call) for call in calls],
        "claims": [
            {
                "round": names[claim.call].round,
                "role": names[claim.call].role,
                "name": claim.name,
                "value": claim.value,
                "provenance": claim.provenance,
            }
            for claim in view.claims()
        ],
    }


def _by(calls: list[CallRow], key: Callable[[CallRow], Any]) -> list[tuple[Any, list[CallRow]]]:
    groups: dict[Any, list[CallRow]] = {}
    for call in calls:
        groups.setdefault(key(call), []).append(call)
    return list(groups.items())


def _sum(calls: list[CallRow]) -> dict[str, Any]:
    """`at_least` where some call said nothing of its tokens: then the sum is a lower bound; likewise for the cost."""
    used = spent(calls)
    entry: dict[str, Any] = {
        "calls": used.calls,
        "answered": sum(call.state == "answered" for call in calls),
        "took_s": sum(call.took_s or 0.0 for call in calls),
        "tokens": used.tokens,
        "tokens_at_least": used.silent > 0,
        "cost_usd": None if used.unpriced == used.calls else used.cost_usd,
        "cost_at_least": 0 < used.unpriced < used.calls,
    }
    if entry["cost_usd"] is None:
        entry["cost_usd_reason"] = "no call said what it cost"
    return entry


def _call(call: CallRow) -> dict[str, Any]:
    entry = {name: value for name, value in vars(call).items() if name != "reply"}
    return entry | {"tokens_provenance": "claimed", "took_s_provenance": "measured"}


def account(total: Mapping[str, Any]) -> str:
    """What a sum of calls came to, in words."""
    tokens = f"{'at least ' if total['tokens_at_least'] else ''}{total['tokens']:,} tokens"
    cost = "cost not told"
    if total["cost_usd"] is not None:
        cost = f"{'at least ' if total['cost_at_least'] else ''}{total['cost_usd']:.2f} dollars"
    return f"{total['calls']} calls, {total['answered']} of them answered, {total['took_s']:.0f} s, {tokens}, {cost}"
