"""The middle of the report: the floor, and the rounds over time."""

from __future__ import annotations

from typing import Any

from vibeserve.base.provenance import Provenance
from vibeserve.report import (
    Block,
    Column,
    Details,
    Link,
    Pill,
    Plot,
    Section,
    Table,
    Text,
    svg,
)
from vibeserve.report.numbers import show
from vibeserve.report.sections import Tone
from vibeserve.search.run_report.explained import others
from vibeserve.search.run_report.words import (
    anchor,
    as_text,
    metric_words,
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
    table = Table(["Technique", "State", Column("Why", wrap=True)], rows, empty="the agent of this run has listed none")
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
            blocks.append(Details("What was not tried at the end, and why", [others(stopped["not_others"])]))
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
        x=svg.Axis("round", whole=True),
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
