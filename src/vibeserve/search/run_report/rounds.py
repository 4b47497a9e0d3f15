"""The middle of the report: the floor, the rounds over time, and each round explained."""

from __future__ import annotations

from typing import Any

from vibeserve.base.provenance import Provenance
from vibeserve.report import (
    Block,
    Column,
    Definitions,
    Details,
    Diff,
    Link,
    Mono,
    Pill,
    Plot,
    Section,
    Table,
    Text,
    svg,
)
from vibeserve.report.numbers import show
from vibeserve.report.sections import Tone
from vibeserve.search.run_report.materials import Materials
from vibeserve.search.run_report.words import (
    anchor,
    as_text,
    measured,
    metric_words,
    quantity,
    short_of,
    title_of,
    verdict_pill,
)

_FLOOR_TONES: dict[str, Tone] = {
    "in place": "good",
    "missing": "bad",
    "excused": "plain",
    "not verified on hardware": "warn",
}
_KINDS = ("build", "start", "check", "probes", "integrity", "measure")


def floor(document: dict[str, Any]) -> Section:
    """The techniques that every server on this kind of hardware has, and where the best one stands."""
    rows = []
    for entry in document.get("floor") or []:
        state = str(entry.get("state") or entry.get("status") or "").replace("-", " ")
        tone: Tone = next((tone for word, tone in _FLOOR_TONES.items() if state.startswith(word)), "info")
        name = entry.get("title") or entry.get("technique") or ""
        rows.append(
            [
                str(name).replace("_", " "),
                Pill(state or "unknown", tone),
                entry.get("reason") or entry.get("detail") or "",
            ]
        )
    lead = "What every serving system on this kind of hardware must have, before anything is tried for the workload."
    table = Table(
        ["Technique", "State", Column("Why", wrap=True)], rows, empty="the agent of this run has listed none"
    )
    return Section("The floor", [table], lead=lead, anchor="floor")


def history(document: dict[str, Any]) -> Section:
    """The rounds over time: values, ratios with intervals, and where the time went."""
    blocks: list[Block] = []
    if ratios := _ratios(document):
        blocks.append(Plot(ratios, provenance=Provenance.MEASURED, source="paired windows", data=False))
    if lanes := _lanes(document):
        blocks.append(
            Plot(
                lanes,
                caption="Thin boxes are quick steps; hover to see how long each took.",
                provenance=Provenance.MEASURED,
                source="the run's journal",
                data=False,
            )
        )
    blocks.append(_table(document))
    stopped = document.get("stopped")
    if stopped:
        blocks.append(Text(f"**Why it stopped** ({as_text(stopped.get('kind'))}): {stopped.get('reason', '')}"))
        if stopped.get("not_others"):
            blocks.append(Details("What was not tried at the end, and why", [_others(stopped["not_others"])]))
    return Section("The rounds", blocks, anchor="rounds")


def values(document: dict[str, Any]) -> Plot | None:
    """The value of each round, the kept ones joined by a line."""
    if not any(entry.get("value") is not None for entry in document["rounds"]):
        return None
    return Plot(_values(document), provenance=Provenance.MEASURED, source="each round's own windows")


def _values(document: dict[str, Any]) -> svg.Chart:
    metric = document["metric"]
    rounds = [entry for entry in document["rounds"] if entry.get("value") is not None]
    kept = [entry for entry in rounds if entry.get("verdict") == "kept"]
    others = [entry for entry in rounds if entry.get("verdict") != "kept"]
    best, steps = [], []
    for entry in kept:
        steps.append((float(entry["round"]), float(entry["value"])))
        best.append(short_of(entry))
    series = [
        svg.Series("kept", steps, labels=best, tips=[_tip(entry, metric) for entry in kept], color=2, shape="circle")
    ]
    if others:
        points = [(float(entry["round"]), float(entry["value"])) for entry in others]
        series.append(
            svg.Series(
                "measured, not kept", points, tips=[_tip(e, metric) for e in others], line=False, color=5, shape="cross"
            )
        )
    limit = document["limit"].get("value")
    values = [entry["value"] for entry in rounds]
    rules = (
        [svg.Rule(limit, "physical limit")]
        if limit and values and limit < 8 * max(values) and limit > min(values) / 8
        else []
    )
    wide = bool(values) and min(values) > 0 and max(values) / min(values) > 100
    return svg.line_chart(
        f"{metric_words(metric)} by round".capitalize(),
        series,
        x=svg.Axis("round"),
        y=svg.Axis(metric_words(metric).removesuffix(" per second"), metric["unit"], kind="log" if wide else "linear"),
        rules=rules,
        height=320,
    )


def _tip(entry: dict[str, Any], metric: dict[str, Any]) -> str:
    return f"Round {entry['round']}, {title_of(entry)}: {show(entry['value'], metric['unit'])}; {entry.get('verdict')}"


def _ratios(document: dict[str, Any]) -> svg.Chart | None:
    rows = []
    for entry in document["rounds"]:
        if entry.get("ratio") is None or entry["round"] == 0:
            continue
        low, high = entry.get("ci95") or (None, None)
        tone = "good" if entry.get("verdict") == "kept" else "bad" if high is not None and high < 1 else "plain"
        rows.append(
            svg.Interval(
                f"{entry['round']}  {short_of(entry)}",
                entry["ratio"],
                low,
                high,
                note=f"against {entry.get('against')}",
                tone=tone,
            )
        )
    if not rows:
        return None
    ends = [value for row in rows for value in (row.value, row.low, row.high) if value]
    axis = svg.Axis(
        "times better than the best before", "×", kind="log" if max(ends) / min(ends) > 4 else "linear", zero=False
    )
    return svg.intervals("Each candidate against the best before it, with 95 % intervals", rows, axis=axis)


def _kind(name: str) -> str:
    if name == "start":
        return "start"
    if name.startswith("integrity"):
        return "integrity"
    return "check" if name in ("check", "checker", "accuracy") else "probes"


def _lanes(document: dict[str, Any]) -> svg.Chart | None:
    lanes = []
    now = 0.0
    for entry in document["rounds"]:
        steps = [(float(entry["at_s"]), "build")] if entry.get("at_s") is not None else []
        steps += [(float(gate["at_s"]), _kind(gate["name"])) for gate in entry.get("gates", []) if gate.get("at_s")]
        steps += [(float(row["at_s"]), "measure") for row in entry.get("measurements", []) if row.get("at_s")]
        lane, now = _lane(f"{entry['round']}  {short_of(entry)}", sorted(steps), now, entry.get("decided_at_s"))
        lanes.append(lane)
    last = [
        (float(row["at_s"]), "measure")
        for row in [*(document.get("final_pairs") or []), *(document.get("curve") or [])]
        if row.get("at_s")
    ]
    if last:
        lane, now = _lane("final", sorted(last), now, None)
        lanes.append(lane)
    if not any(len(lane.starts) for lane in lanes):
        return None
    return svg.timeline("Where the time went", lanes, kinds=_KINDS, lane_height=16)


def _lane(name: str, steps: list[tuple[float, str]], start: float, end: float | None) -> tuple[svg.Lane, float]:
    """Boxes from the moments at which steps ended; neighbours of one kind are one box."""
    boxes: list[tuple[float, float, str]] = []
    now = start
    for at, kind in steps:
        if at <= now:
            continue
        if boxes and boxes[-1][2] == kind and boxes[-1][1] == now:
            boxes[-1] = (boxes[-1][0], at, kind)
        else:
            boxes.append((now, at, kind))
        now = at
    lane = svg.Lane(
        name,
        [box[0] for box in boxes],
        [box[1] for box in boxes],
        labels=[box[2] for box in boxes],
        kinds=[_KINDS.index(box[2]) for box in boxes],
        tips=[f"{name.rsplit('  ', maxsplit=1)[-1]}: {box[2]}, {show(box[1] - box[0], 's', 3)}" for box in boxes],
    )
    return lane, max(now, end or now)


def _table(document: dict[str, Any]) -> Table:
    unit = document["metric"]["unit"]
    columns = [
        Column("Round", align="right"),
        Column("Change", wrap=True),
        Column("Verdict"),
        Column(
            metric_words(document["metric"]).removesuffix(" per second").capitalize(),
            unit,
            source="the bundle's benchmark",
        ),
        Column("Gain", "×", tip="against the best before it"),
        Column("95 % interval", align="right"),
    ]
    rows = []
    for entry in document["rounds"]:
        interval = entry.get("ci95")
        shown = f"{show(interval[0], '×', 3)} to {show(interval[1], '×', 3)}" if interval else None
        rows.append(
            [
                Link(str(entry["round"]), f"#{anchor(entry)}"),
                title_of(entry),
                verdict_pill(entry.get("verdict")),
                entry.get("value"),
                entry.get("ratio"),
                shown,
            ]
        )
    return Table(
        columns,
        rows,
        caption="Every round: values are measured by the bundle's benchmark, gains against the best before",
    )


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
        ]
        table = Table(["Evidence", "Value", "Known as", Column("Source", wrap=True)], rows)
        blocks.append(Details(f"Evidence: {len(rows)} figures of this candidate under load", [table]))
    if entry.get("measurements"):
        blocks.append(_measurements(document, entry))
    if entry.get("not_others"):
        blocks.append(Details("Why not another technique", [_others(entry["not_others"])]))
    blocks.append(_changes(entry, materials))
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
            row.get("noisy") or "quiet",
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


def _others(others: Any) -> Table:
    """Techniques that were not chosen: their state, what they were expected to gain, and why not now."""
    rows = []
    for other in others:
        name = str(other.get("technique") or "").replace("_", " ")
        reason = str(other.get("why") or other.get("reason") or "")
        if other.get("assumed"):
            reason = f"{reason} (expected without all the facts that its formula needs)".strip()
        rows.append([name, str(other.get("state") or "–"), other.get("expected_ratio"), reason])
    return Table(["Technique", "State", Column("Expected", "×"), Column("Why", wrap=True)], rows)


def _changes(entry: dict[str, Any], materials: Materials) -> Block:
    name = entry["candidate"]
    if name not in materials.diffs:
        why = materials.missing.get(name)
        return Text(f"No diff: {why}." if why else "No diff was read.", muted=True)
    diff = materials.diffs[name]
    if not diff.strip():
        return Text("No file differs from its parent.", muted=True)
    parts = _files(diff)
    added = sum(_count(text, "+") for _, text in parts)
    removed = sum(_count(text, "-") for _, text in parts)
    inner: list[Block] = []
    for path, text in parts:
        inner.append(Diff(text, title=f"`{path}`", max_lines=160))
    if entry.get("summary"):
        inner.insert(0, Text(str(entry["summary"])))
    return Details(f"Diff: {len(parts)} files, +{added} −{removed} lines", inner)


def _count(text: str, sign: str) -> int:
    return sum(line.startswith(sign) and not line.startswith(sign * 3) for line in text.splitlines())


def _files(diff: str) -> list[tuple[str, str]]:
    """(path, diff) of each file; settings first, since they say what the change is."""
    parts: list[tuple[str, str]] = []
    for chunk in diff.split("\ndiff --git "):
        text = chunk if chunk.startswith("diff --git ") else f"diff --git {chunk}"
        path = text.splitlines()[0].rsplit(" b/", 1)[-1]
        parts.append((path, text))
    first = ("engine.toml", "candidate.toml", "server.py", "requirements.txt")
    return sorted(parts, key=lambda part: (first.index(part[0]) if part[0] in first else len(first), part[0]))
