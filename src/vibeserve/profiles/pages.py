"""What people read of a profile: its analysis as report sections (HTML, Markdown and terminal come from the same)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vibeserve.base.provenance import Provenance, Quantity
from vibeserve.profiles import window
from vibeserve.profiles.analysis import Analysis
from vibeserve.profiles.investigations import Finding
from vibeserve.profiles.investigations.finding import Line
from vibeserve.profiles.profile import Profile
from vibeserve.report import (
    Block,
    Bullets,
    Callout,
    Card,
    Cards,
    Column,
    Details,
    Mono,
    Pill,
    Plot,
    Section,
    Source,
    SourceLine,
    Table,
    Text,
    page,
    svg,
)

_MOST_LANE_ROWS = 200_000


def provenance_of(analysis: Analysis) -> Provenance:
    """Measured on a device, or simulated."""
    return Provenance.SIMULATED if analysis.info.get("provenance") == "simulated" else Provenance.MEASURED


def sections(profile: Profile, analysis: Analysis) -> list[Section]:
    """The report: headline, bounds and gaps, engines, findings, source, timeline, quality."""
    found = [_headline(analysis), _bounds(analysis), _engines(analysis), _findings(analysis)]
    found += _source(analysis)
    lanes = _timeline(profile, analysis)
    return [*found, *([lanes] if lanes else []), _quality(analysis)]


def html(profile: Profile, analysis: Analysis) -> str:
    """The report as one self-contained page."""
    return page(
        f"Profile {profile.name}",
        sections(profile, analysis),
        eyebrow="profile",
        subtitle=str(analysis.info.get("source", "")),
        pill=Pill(provenance_of(analysis).value, "plain"),
    )


def _headline(analysis: Analysis) -> Section:
    held, how = analysis.bounds, provenance_of(analysis)
    source = f"window: {held.window.source}"
    busiest = held.bottleneck[0] if held.bottleneck else None
    cards = [
        Card("time in the window", Quantity(held.total_time_s, "s", how, source)),
        Card(
            "bottleneck",
            busiest or "none",
            note=", ".join(held.bottleneck[1:]) and f"near: {', '.join(held.bottleneck[1:])}",
        ),
    ]
    for key, label, unit in (
        ("latency", "whole run", "ms"),
        ("mfu_estimated_percent", "useful Tensor Engine use", "share"),
        ("mm_arithmetic_intensity", "FLOPs per HBM byte", "FLOP/B"),
    ):
        value = analysis.metrics.get(key)
        if isinstance(value, int | float):
            scaled, shown = (value / 1e3, "s") if unit == "ms" else (value, unit)
            cards.append(
                Card(label, Quantity(float(scaled), shown if shown != "share" else "", how, f"summary key {key}"))
            )
    return Section("What it did", [Cards(cards, headline=True), Bullets(analysis.wording)])


def _bounds(analysis: Analysis) -> Section:
    held = analysis.bounds
    gaps = {gap.lower: gap for gap in held.gaps}
    rows: list[list[Any]] = []
    for bound in held.bounds:
        gap = gaps[bound.name]
        rows.append(
            [
                bound.family,
                Mono(bound.name),
                None if bound.value_s is None else bound.value_s * 1e6,
                None if gap.gap_s is None else gap.gap_s * 1e6,
                None if gap.share is None else f"{gap.share:.1%}",
                gap.meaning,
                bound.reason or bound.formula,
            ]
        )
    how = provenance_of(analysis)
    known = [bound for bound in held.bounds if bound.value_s is not None]
    chart = svg.bars(
        "Bounds on the time",
        ["total time", *(bound.name for bound in known)],
        [svg.Bars("time", [held.total_time_s, *(bound.value_s for bound in known)])],
        axis=svg.Axis("time", "s"),
        horizontal=True,
    )
    columns: list[Column | str] = [
        "family",
        "bound",
        Column("value", "µs", provenance=how),
        Column("gap before it", "µs", provenance=how),
        "of the total",
        "what the gap is",
        "formula",
    ]
    blocks: list[Block] = [Table(columns, rows), Plot(chart, provenance=how)]
    if held.notes:
        blocks.append(Callout("; ".join(held.notes), title="Note"))
    return Section("Bounds and gaps", blocks, lead="How long it would take if one kind of overhead were gone.")


def _engines(analysis: Analysis) -> Section:
    held, how = analysis.bounds, provenance_of(analysis)
    rows: list[list[Any]] = [
        [
            name,
            active * 1e6,
            f"{active / held.total_time_s:.1%}" if held.total_time_s else None,
            Pill("bottleneck", "warn") if name in held.bottleneck else "",
        ]
        for name, active in sorted(held.engines.items(), key=lambda pair: -pair[1])
    ]
    return Section("Engines", [Table(["engine", Column("active", "µs", provenance=how), "of the total", ""], rows)])


def _findings(analysis: Analysis) -> Section:
    blocks: list[Block] = []
    for finding in analysis.findings:
        blocks += _finding(finding, provenance_of(analysis))
    return Section(
        "Investigations",
        blocks,
        lead="Ordered by relevance to the bottleneck; those that found nothing, or could not run, are listed too.",
    )


def _finding(finding: Finding, how: Provenance) -> list[Block]:
    state = "could not run" if not finding.ran else "found" if finding.found else "nothing found"
    inner: list[Block] = []
    if finding.lines:
        extra = shown_details(finding.lines)
        rows: list[list[Any]] = [
            [
                f"{Path(line.file).name}:{line.line}" if line.file else "no source line",
                None if line.cost_s is None else line.cost_s * 1e6,
                line.count,
                *(shown_detail(line.details.get(key)) for key in extra),
            ]
            for line in finding.lines[:50]
        ]
        inner.append(Table(["source line", Column("cost", "µs", provenance=how), "rows", *extra], rows))
    if finding.notes:
        inner.append(Bullets(finding.notes))
    if not inner:
        inner.append(Text(finding.reason))
    title = f"{finding.name}: {finding.reason}"
    return [Details(title, inner, open=finding.found, pill=Pill(state, "warn" if finding.found else "plain"))]


def shown_details(lines: Sequence[Line]) -> list[str]:
    """The names of all that is said of some line, in the order in which it is said first; raw counts are left out."""
    return [
        key for key in dict.fromkeys(key for line in lines for key in line.details) if key not in ("flops", "bytes")
    ]


def shown_detail(value: Any) -> Any:
    """One of a line's details as a cell of a table."""
    if isinstance(value, bool):
        return "yes" if value else ""
    return round(value, 4) if isinstance(value, float) else value


def _source(analysis: Analysis) -> list[Section]:
    """Each source file that the profile keeps, with cost beside its lines; else the dearest lines as a table."""
    texts = analysis.texts
    cost: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for item in analysis.sources:
        path, _, number = item.location.rpartition(":")
        if number.isdecimal():
            cost[path][int(number)][0] += item.duration_s * 1e6
            cost[path][int(number)][1] += item.wait_s * 1e6
    if not cost:
        return []
    blocks: list[Block] = []
    for path, lines in cost.items():
        text = texts.get(path)
        if text is None:
            continue
        shown = [
            SourceLine(number, line, tuple(lines[number]) if number in lines else (None, None))
            for number, line in enumerate(text.splitlines(), 1)
        ]
        blocks.append(Source(path, shown, [("duration", "µs"), ("wait", "µs")], provenance=provenance_of(analysis)))
    rows: list[list[Any]] = [
        [item.location, item.engine, item.instructions, item.duration_s * 1e6, item.wait_s * 1e6, item.hbm_bytes]
        for item in analysis.sources[:40]
    ]
    columns: list[Column | str] = [
        "source line",
        "engine",
        "instructions",
        Column("duration", "µs"),
        Column("wait", "µs"),
        Column("HBM", "B"),
    ]
    blocks.append(Table(columns, rows, caption="Durations of one engine overlap: a sum is no wall-clock time."))
    return [Section("Source lines", blocks)]


def _timeline(profile: Profile, analysis: Analysis) -> Section | None:
    held = analysis.bounds.window
    lanes = []
    if profile.rows("Instruction"):
        with profile.connect(["Instruction"]) as db:
            rows = db.execute(
                f"""SELECT coalesce(timeline_track, engine), start_ts, end_ts, opcode FROM Instruction
                WHERE opcode <> 'EVENT_SEMAPHORE' AND {held.starts_in()} ORDER BY 1, 2 LIMIT {_MOST_LANE_ROWS}"""
            ).fetchall()
        tracks: dict[str, list[Any]] = defaultdict(list)
        for track, start, end, opcode in rows:
            tracks[track].append((start / 1e9, end / 1e9, opcode))
        lanes += [
            svg.Lane(track, [item[0] for item in items], [item[1] for item in items], [item[2] for item in items])
            for track, items in tracks.items()
        ]
    if profile.rows("DmaPacket"):
        starts, ends = window.dma_spans(profile, held)
        lanes.append(svg.Lane("DMA", starts / 1e9, ends / 1e9))
    if not lanes:
        return None
    return Section(
        "Timeline", [Plot(svg.timeline("Engines over time", lanes), provenance=provenance_of(analysis), data=False)]
    )


def _quality(analysis: Analysis) -> Section:
    rows: list[list[Any]] = []
    for item in analysis.quality:
        state = (
            Pill("not looked at", "plain")
            if item.ok is None
            else Pill("good", "good")
            if item.ok
            else Pill("mind this", "warn")
        )
        rows.append([item.name, state, item.detail, item.fix])
    return Section("How good the profile is", [Table(["check", "", "what was seen", "what to do"], rows)])
