"""Each round behind a line: hypothesis, verdict, reason, knobs, gates, evidence, windows, diff."""

from __future__ import annotations

from typing import Any

from vibeserve.base.provenance import Provenance
from vibeserve.report import Block, Column, Definitions, Details, Mono, Pill, Section, Table, Text
from vibeserve.report.numbers import show
from vibeserve.search.run_report.changes import changes
from vibeserve.search.run_report.materials import Materials
from vibeserve.search.run_report.words import anchor, as_text, measured, noise_pill, quantity, title_of, verdict_pill

#: Evidence that belongs to the whole run or to its curve, and is shown there.
_OF_THE_RUN = ("curve.", "limit.", "workload.", "client.")


def explained(document: dict[str, Any], materials: Materials) -> Section:
    """Each round behind a line: hypothesis, verdict, reason, evidence, knobs, gates, measurements, diff."""
    blocks: list[Block] = []
    for entry in document["rounds"]:
        aside = entry.get("reason") or ""
        blocks.append(
            Details(
                f"Round {entry['round']}: {title_of(entry)}",
                _round(document, entry, materials),
                pill=verdict_pill(entry.get("verdict")),
                aside=aside if len(aside) < 90 else "",
                anchor=anchor(entry),
            )
        )
    return Section("Every round explained", blocks, anchor="explained")


def _round(document: dict[str, Any], entry: dict[str, Any], materials: Materials) -> list[Block]:
    blocks: list[Block] = []
    said = [
        ("Hypothesis", entry.get("hypothesis")),
        ("Why this one", entry.get("why")),
        ("Expected", _expected(entry)),
        ("It would be wrong if", entry.get("falsification")),
        ("Verdict", f"**{entry.get('verdict') or 'in progress'}**: {entry.get('reason') or ''}"),
    ]
    blocks.extend(Text(f"**{name}.** {text}") for name, text in said if text)
    facts: list[tuple[str, Any]] = [
        ("Candidate", Mono(entry["candidate"])),
        ("Made from", Mono(entry["parent"]) if entry.get("parent") else None),
        ("Measured against", Mono(entry["against"]) if entry.get("against") else None),
        ("Value", measured(entry.get("value"), document["metric"]["unit"], "the bundle's benchmark")),
        ("Commit", Mono(entry["commit"][:12]) if entry.get("commit") else None),
        ("Proposed by", entry.get("proposed_by")),
    ]
    blocks.append(Definitions([(name, value) for name, value in facts if value]))
    if entry.get("settings"):
        blocks.append(Details("Knobs: the whole configuration of this candidate", [_settings(document, entry)]))
    if entry.get("gates"):
        blocks.append(_gates(entry["gates"]))
    if entry.get("evidence"):
        rows = [
            [Mono(name), quantity(fact), fact.get("provenance"), fact.get("source") or ""]
            for name, fact in sorted(entry["evidence"].items())
            if not name.startswith(_OF_THE_RUN)
        ]
        table = Table(["Evidence", "Value", "Known as", Column("Source", wrap=True)], rows)
        blocks.append(Details(f"Evidence: {len(rows)} figures of this candidate under load", [table]))
    if entry.get("measurements"):
        blocks.append(_measurements(document, entry))
    if entry.get("not_others"):
        blocks.append(Details("Why not another technique", [others(entry["not_others"])]))
    blocks.append(changes(document["run"], entry, materials))
    return blocks


def _expected(entry: dict[str, Any]) -> str:
    effect = entry.get("expected_effect") or ""
    if entry.get("expected_ratio"):
        words = f"{show(entry['expected_ratio'], '×', 3)} or so"
        if entry.get("ratio"):
            words += f" (found: {show(entry['ratio'], '×', 3)})"
        return f"{effect.rstrip('.')}; {words}" if effect else words
    return effect


def _settings(document: dict[str, Any], entry: dict[str, Any]) -> Table:
    parent: dict[str, Any] = next(
        (other for other in document["rounds"] if other["candidate"] == entry.get("parent")), {}
    )
    before = parent.get("settings") or {}
    rows = [
        [
            Mono(name),
            Mono(as_text(value)),
            Mono(as_text(before[name]))
            if name in before and before[name] != value
            else ("same" if name in before else "new"),
        ]
        for name, value in entry["settings"].items()
    ]
    return Table(["Knob", "Value", "In its parent"], rows)


def _gates(gates: list[dict[str, Any]]) -> Table:
    words = {True: Pill("passed", "good"), False: Pill("failed", "bad"), None: Pill("not run", "warn")}
    rows = [[gate["name"], words[gate.get("ok")], gate.get("detail") or ""] for gate in gates]
    return Table(["Gate", "Result", Column("Detail", wrap=True)], rows, caption="Gates", sortable=False)


def _measurements(document: dict[str, Any], entry: dict[str, Any]) -> Details:
    rows = [
        [
            row["kind"],
            row["pair"] + 1,
            row["candidate"],
            row.get("value"),
            row.get("window_s"),
            row.get("failed"),
            noise_pill(row.get("noisy")),
            row.get("reason") or "",
        ]
        for row in entry["measurements"]
    ]
    columns = [
        Column("Kind"),
        Column("Pair"),
        Column("Candidate"),
        Column("Value", document["metric"]["unit"], provenance=Provenance.MEASURED, source="the bundle's benchmark"),
        Column("Window", "s"),
        Column("Failed"),
        Column("Machine"),
        Column("Remark", wrap=True),
    ]
    return Details(f"Measurements: {len(rows)} windows", [Table(columns, rows)])


def others(others: Any) -> Table:
    """Techniques that were not chosen: their state, what they were expected to gain, and why not now."""
    rows = []
    for other in others:
        name = str(other.get("technique") or "").replace("_", " ")
        reason = str(other.get("why") or other.get("reason") or "")
        if other.get("assumed"):
            reason = f"{reason} (expected without all the facts that its formula needs)".strip()
        rows.append([name, str(other.get("state") or "–"), other.get("expected_ratio"), reason])
    return Table(["Technique", "State", Column("Expected", "×"), Column("Why", wrap=True)], rows)
