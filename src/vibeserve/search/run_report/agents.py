"""Who did what at which cost: the calls of coding agents in a run."""

from __future__ import annotations

from typing import Any

from vibeserve.report import Block, Column, Details, Pill, Section, Table, Text
from vibeserve.report.numbers import show
from vibeserve.report.sections import Tone
from vibeserve.search.agents_document import account

_TONES: dict[str, Tone] = {"answered": "good", "failed": "bad", "timed out": "bad", "malformed": "warn"}


def agents(document: dict[str, Any]) -> Section | None:
    """Sums by role, and each call; None for a run without coding agents."""
    found = document.get("agents") or {}
    if not found.get("calls"):
        return None
    total = found["total"]
    sandboxes = sorted({call["sandbox"] for call in found["calls"]})
    lead = f"{account(total)}. Confined by: {', '.join(sandboxes)}."
    note = (
        "Tokens and cost are what the agents' own programs said; times were measured here. What an agent claims about "
        "speed is kept as a claim, and no figure of this page comes from one."
    )
    by_role = [
        [entry["role"], entry["calls"], entry["answered"], show(entry["took_s"], "s"), _tokens(entry), _cost(entry)]
        for entry in found["roles"]
    ]
    roles = Table(["Role", "Calls", "Answered", "Time", "Tokens", "Cost"], by_role, empty="")
    rows = [
        [
            call["round"],
            call["task"],
            f"{call['agent']} {call['model']}".strip(),
            Pill(call["state"], _TONES.get(call["state"], "plain")),
            "–" if call["took_s"] is None else show(call["took_s"], "s"),
            _pair(call),
            "–" if call["cost_usd"] is None else f"{call['cost_usd']:.4f} $",
            call["detail"] or call["transcript"],
        ]
        for call in found["calls"]
    ]
    heads: list[Column | str] = [
        "Round",
        "Task",
        "Agent",
        "State",
        "Time",
        "Tokens in, out",
        "Cost",
        Column("What was wrong, or where it lies", wrap=True),
    ]
    blocks: list[Block] = [roles, Details("Each call", [Table(heads, rows, empty="")]), Text(note)]
    return Section("Who did what", blocks, lead=lead, anchor="agents")


def _tokens(entry: dict[str, Any]) -> str:
    return f"{'at least ' if entry['tokens_at_least'] else ''}{entry['tokens']:,}"


def _cost(entry: dict[str, Any]) -> str:
    if entry["cost_usd"] is None:
        return "cost not told"
    return f"{'at least ' if entry['cost_at_least'] else ''}{entry['cost_usd']:.2f} $"


def _pair(call: dict[str, Any]) -> str:
    known = (call["input_tokens"], call["output_tokens"])
    return ", ".join("–" if value is None else f"{value:,}" for value in known)
