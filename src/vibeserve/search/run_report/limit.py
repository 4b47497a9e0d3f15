"""How fast it could be: the physical limit, each candidate's share of it, and the roofline."""

from __future__ import annotations

from typing import Any

from vibeserve.base.provenance import Provenance, Quantity
from vibeserve.report import Block, Column, Definitions, Plot, Section, Table, Text, svg
from vibeserve.report.numbers import show
from vibeserve.search.run_report.words import provenance, quantity, short_of, verdict_pill


def limit(document: dict[str, Any]) -> Section:
    """The limit's argument, the share that each candidate reaches, and the roofline with every candidate."""
    known = document["limit"]
    blocks: list[Block] = []
    if known.get("value") is None:
        blocks.append(Text(f"No limit: {known.get('value_reason') or known.get('argument')}.", muted=True))
    else:
        value = Quantity(
            float(known["value"]),
            document["metric"]["unit"],
            provenance(known.get("provenance") or Provenance.COUNTED),
            known.get("argument") or "",
        )
        blocks.append(Text(str(known.get("argument") or "")))
        terms = [("The limit", value)] + [
            (name.removeprefix("limit.").replace("_", " "), quantity(fact))
            for name, fact in sorted((document.get("facts") or {}).items())
            if name.startswith("limit.") and name != "limit.value"
        ]
        blocks.append(Definitions([(name, item) for name, item in terms if item is not None]))
        blocks.append(_shares(document, float(known["value"])))
    blocks.extend(_roofline(document))
    return Section("The physical limit", blocks, anchor="limit")


def share(document: dict[str, Any], value: float | None, limit_value: float) -> float | None:
    """The part of the limit that `value` reaches, whatever the metric's direction."""
    if not value:
        return None
    return value / limit_value if document["metric"]["direction"] == "higher" else limit_value / value


def _shares(document: dict[str, Any], limit_value: float) -> Block:
    rounds = [entry for entry in document["rounds"] if entry.get("value") is not None]
    names = [f"{entry['round']}  {short_of(entry)}" for entry in rounds]
    shares = [share(document, entry["value"], limit_value) for entry in rounds]
    percent = [None if value is None else value * 100 for value in shares]
    chart = svg.bars(
        "Share of the limit that each candidate reaches",
        names,
        [svg.Bars("share", percent)],
        axis=svg.Axis("share of the limit", "%"),
        horizontal=True,
    )
    return Plot(chart, provenance=Provenance.COUNTED, source="its measured value ÷ the limit", data=False)


def roofs_of(facts: dict[str, Any]) -> list[svg.Roof]:
    """Roofs from the facts of the machine: a peak for each dtype over the measured bandwidth."""
    bandwidth = next(
        (
            facts[name]["value"]
            for name in ("machine.bandwidth_bytes_per_s", "hardware.bandwidth_bytes_per_s")
            if name in facts
        ),
        None,
    )
    if not bandwidth:
        return []
    roofs = []
    for name, fact in sorted(facts.items()):
        for prefix in ("machine.peak.", "machine.peaks.", "hardware.peak."):
            if name.startswith(prefix) and fact["value"]:
                roofs.append(svg.Roof(name.removeprefix(prefix), float(fact["value"]), float(bandwidth)))
    if not roofs and "machine.peak_flops_per_s" in facts:
        roofs.append(svg.Roof("peak", float(facts["machine.peak_flops_per_s"]["value"]), float(bandwidth)))
    return sorted(roofs, key=lambda roof: roof.name != "float32")


def points_of(document: dict[str, Any]) -> list[svg.RoofPoint]:
    """A point for each candidate whose FLOPs and bytes a token are known."""
    points = []
    facts = document.get("facts") or {}
    best = document["best"].get("candidate")
    for entry in document["rounds"]:
        evidence = facts | (entry.get("evidence") or {})
        intensity = _value(evidence, "roofline.intensity", "roofline.intensity_flops_per_byte")
        speed = _value(evidence, "roofline.flops_per_s")
        if intensity is None or speed is None:
            continue
        kind = (
            "best"
            if entry["candidate"] == best and entry["round"]
            else "measured"
            if entry["round"] == 0
            else "candidate"
        )
        note = f"{entry.get('verdict')}, {show(entry.get('value'), document['metric']['unit'])}"
        points.append(svg.RoofPoint(short_of(entry), intensity, speed, kind, note))  # type: ignore[arg-type]
    return points


def _value(evidence: dict[str, Any], *names: str) -> float | None:
    return next(
        (float(evidence[name]["value"]) for name in names if name in evidence and evidence[name]["value"]), None
    )


def _roofline(document: dict[str, Any]) -> list[Block]:
    facts = document.get("facts") or {}
    roofs, points = roofs_of(facts), points_of(document)
    if not roofs:
        return [Text("No roofline: the bandwidth and the peaks of this machine were not recorded.", muted=True)]
    if not points:
        return [Text("No roofline: no candidate's FLOPs and bytes were recorded.", muted=True)]
    chart = svg.log_log_roofline("Roofline of this machine, with every candidate", roofs, points)
    caption = "Further right: more arithmetic for each byte read (larger batches share the weights). Nearer to the roof: less time lost between the arithmetic."
    plot = Plot(
        chart,
        caption,
        provenance=Provenance.MEASURED,
        source="roofs: measured on this machine; points: counted FLOPs and bytes a token × measured tokens/s",
    )
    rows = []
    for entry in document["rounds"]:
        point = next((item for item in points if item.name == short_of(entry)), None)
        if point is not None and point.flops_per_s is not None:
            roof = roofs[0].attainable(point.intensity)
            rows.append(
                [
                    entry["round"],
                    point.name,
                    verdict_pill(entry.get("verdict")),
                    point.intensity,
                    point.flops_per_s,
                    point.flops_per_s / roof * 100,
                ]
            )
    columns: list[Column | str] = [
        "Round",
        "Candidate",
        "Verdict",
        Column("Intensity", "FLOPs/byte"),
        Column("Speed", "FLOP/s"),
        Column("Of the roof", "%"),
    ]
    return [plot, Table(columns, rows, caption="Under the roof")]
