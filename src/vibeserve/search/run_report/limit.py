"""How fast it could be: the physical limit, each candidate's share of it, and the roofline."""

from __future__ import annotations

from typing import Any

from vibeserve.base.provenance import Provenance, Quantity
from vibeserve.report import Block, Column, Definitions, Plot, Section, Table, Text, svg
from vibeserve.report.numbers import show
from vibeserve.search.run_report.words import provenance, quantity, short_of, verdict_pill

_PEAK = "machine.flops_per_s"
_BANDWIDTH = "machine.bandwidth_bytes_per_s"
_BYTES_OF = {"bfloat16": 2, "float16": 2, "float32": 4}


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
        blocks.append(Definitions([("The limit", value), *_terms(document)]))
        blocks.append(_shares(document, float(known["value"])))
    blocks.extend(_roofline(document))
    return Section("The physical limit", blocks, anchor="limit")


def _terms(document: dict[str, Any]) -> list[tuple[str, Quantity]]:
    """What the limit is made of: its own terms, and the machine's and model's figures."""
    terms = []
    for name, fact in sorted((document.get("facts") or {}).items()):
        found = quantity(fact)
        if found is not None and name != "limit.value" and name.startswith(("limit.", "machine.", "model.")):
            terms.append((name.replace("limit.", "").replace(".", ": ").replace("_", " "), found))
    return terms


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
    title = "Share of the limit that each candidate reaches"
    axis = svg.Axis("share of the limit", "%")
    chart = svg.bars(title, names, [svg.Bars("share", percent)], axis=axis, horizontal=True)
    return Plot(chart, provenance=Provenance.COUNTED, source="its measured value ÷ the limit", data=False)


def roofs_of(facts: dict[str, Any]) -> list[svg.Roof]:
    """Roofs from the facts of the machine: a peak (for each dtype, where several are known) over the bandwidth."""
    bandwidth = facts.get(_BANDWIDTH, {}).get("value")
    if not bandwidth:
        return []
    roofs = []
    for name, fact in sorted(facts.items()):
        if (name == _PEAK or name.startswith(f"{_PEAK}.")) and fact["value"]:
            dtype = name.removeprefix(_PEAK).removeprefix(".") or "float32"
            roofs.append(svg.Roof(dtype, float(fact["value"]), float(bandwidth)))
    unique = {roof.name: roof for roof in roofs}
    return sorted(unique.values(), key=lambda roof: (roof.name != "float32", roof.name))


def points_of(document: dict[str, Any]) -> list[svg.RoofPoint]:
    """A point for each candidate that is known well enough, decoding only.

    Intensity = rows a step × FLOPs a token ÷ bytes of the weights; speed = output tokens/s × FLOPs a token. The
    reference serves one request at a time: one row a step.
    """
    points = []
    for entry in document["rounds"]:
        place = _place(document, entry)
        if place is None:
            continue
        best = entry["round"] > 0 and entry["candidate"] == document["best"].get("candidate")
        kind = "best" if best else "measured" if entry["round"] == 0 else "candidate"
        note = f"{entry.get('verdict')}, {show(entry.get('value'), document['metric']['unit'])}"
        name = f"{entry['round']} {short_of(entry)}"
        points.append(svg.RoofPoint(name, place[0], place[1], kind, note))  # type: ignore[arg-type]
    return points


def _place(document: dict[str, Any], entry: dict[str, Any]) -> tuple[float, float] | None:
    """(intensity, FLOP/s) of a candidate."""
    known = (document.get("facts") or {}) | (entry.get("evidence") or {})
    flops, weights = _value(known, "model.flops_per_token"), _value(known, "model.weight_bytes")
    rows = _value(known, "batch.rows_per_step") or (1.0 if entry["round"] == 0 else None)
    rate = entry.get("value") if document["metric"]["name"] == "output_tokens_per_s" else None
    rate = rate or _value(known, "output_tokens_per_s")
    if not flops or not weights or not rows or not rate:
        return None
    dtype = str((entry.get("settings") or {}).get("dtype") or "float32")
    weights *= _BYTES_OF.get(dtype, 4) / _BYTES_OF["float32"]
    return rows * flops / weights, float(rate) * flops


def _value(evidence: dict[str, Any], name: str) -> float | None:
    return float(evidence[name]["value"]) if name in evidence and evidence[name].get("value") else None


def _roofline(document: dict[str, Any]) -> list[Block]:
    facts = document.get("facts") or {}
    roofs, points = roofs_of(facts), points_of(document)
    if not roofs:
        return [Text("No roofline: the bandwidth and the peak of this machine were not recorded.", muted=True)]
    if not points:
        return [Text("No roofline: no candidate's FLOPs, bytes and rows a step were recorded.", muted=True)]
    chart = svg.log_log_roofline("Roofline of this machine, with every candidate", roofs, points)
    caption = (
        "Decoding only. Further right: more rows share each reading of the weights. "
        "Nearer to the roof: less time is lost between the arithmetic."
    )
    source = (
        "roofs: measured on this machine; points: rows a step × FLOPs a token ÷ weight bytes (counted), and measured "
        "tokens/s × FLOPs a token"
    )
    plot = Plot(chart, caption, provenance=Provenance.MEASURED, source=source)
    rows = []
    for entry in document["rounds"]:
        place = _place(document, entry)
        if place is not None:
            roof = roofs[0].attainable(place[0])
            verdict = verdict_pill(entry.get("verdict"))
            rows.append([entry["round"], short_of(entry), verdict, place[0], place[1], place[1] / roof * 100])
    columns: list[Column | str] = [
        "Round",
        "Candidate",
        "Verdict",
        Column("Intensity", "FLOPs/byte"),
        Column("Speed", "FLOP/s"),
        Column(f"Of the {roofs[0].name} roof", "%"),
    ]
    return [plot, Table(columns, rows, caption="Under the roof")]
