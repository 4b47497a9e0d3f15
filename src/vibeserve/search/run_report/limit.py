"""How fast it could be: the physical limit, each candidate's share of it, and the roofline."""

from __future__ import annotations

from typing import Any

from vibeserve.base.provenance import Provenance, Quantity
from vibeserve.report import Block, Column, Definitions, Plot, Section, Table, Text, svg
from vibeserve.report.numbers import show
from vibeserve.search.run_report.words import provenance, quantity, short_of, verdict_pill

_PEAK = "machine.peak."
_BANDWIDTH = "machine.bandwidth_bytes_per_s"
_BYTES_OF = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
_MOST_ROOFS = 3
_TERMS = {
    "limit.flops_per_request": "Arithmetic of a request",
    "limit.weight_bytes_per_pass": "Weights that a pass reads",
    "limit.kv_bytes_per_request": "Keys and values of a request",
    "limit.peak_flops_per_s": "Peak that counts",
    "limit.bandwidth_bytes_per_s": "Memory bandwidth",
    "machine.cores": "Cores",
    "model.parameters": "Parameters",
    "model.flops_per_token": "Arithmetic of one token's products",
    "model.kv_bytes_per_token": "Keys and values of one token",
}


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
        blocks.append(Text(_sentence(str(known.get("argument") or ""))))
        if known.get("note"):
            blocks.append(Text(_sentence(str(known["note"]))))
        blocks.append(Definitions([("The limit", value), *_terms(document)]))
        blocks.append(_shares(document, float(known["value"])))
    blocks.extend(_roofline(document))
    return Section("The physical limit", blocks, anchor="limit")


def _sentence(text: str) -> str:
    """With a capital at its head and a full stop at its end."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def _terms(document: dict[str, Any]) -> list[tuple[str, Quantity]]:
    """What the limit is made of: its own terms, and the machine's and model's figures beside them."""
    facts = document.get("facts") or {}
    terms = [(name, quantity(facts[key])) for key, name in _TERMS.items() if key in facts]
    terms += [
        (f"Peak in {key.removeprefix(_PEAK)}", quantity(facts[key]))
        for dtype in _dtypes(document)
        for key in (f"{_PEAK}{dtype}",)
        if key in facts
    ]
    return [(name, found) for name, found in terms if found is not None]


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
    source = {"higher": "its measured value ÷ the limit", "lower": "the limit ÷ its measured value"}
    return Plot(chart, provenance=Provenance.COUNTED, source=source[document["metric"]["direction"]], data=False)


def roofs_of(document: dict[str, Any]) -> list[svg.Roof]:
    """Roofs from the facts of the machine: the peak of each dtype that candidates may compute in, over the bandwidth."""
    facts = document.get("facts") or {}
    bandwidth = _value(facts, _BANDWIDTH)
    if not bandwidth:
        return []
    allowed = _dtypes(document)
    peaks = {name.removeprefix(_PEAK): fact["value"] for name, fact in facts.items() if name.startswith(_PEAK)}
    if not peaks and (single := _value(facts, "machine.flops_per_s")):
        peaks = {allowed[0]: single}
    first = peaks.get(allowed[0]) or 0.0
    higher = sorted(
        (name for name in peaks if name not in allowed and "float" in name and peaks[name] > first),
        key=lambda name: peaks[name],
    )
    order = [*(name for name in allowed if name in peaks), *higher]
    return [svg.Roof(name, float(peaks[name]), bandwidth) for name in order if peaks[name]][:_MOST_ROOFS]


def _dtypes(document: dict[str, Any]) -> list[str]:
    goal = (document.get("request") or {}).get("goal") or {}
    return list(goal.get("dtypes") or ["float32"])


def _token_cost(document: dict[str, Any]) -> tuple[float, float] | None:
    """(FLOPs, bytes beside the weights) of one output token, its share of the prompt included.

    From what the limit counts for a request; without it, decoding alone: the model's FLOPs a token and nothing beside
    the weights.
    """
    facts = document.get("facts") or {}
    flops, beside = _value(facts, "limit.flops_per_request"), _value(facts, "limit.kv_bytes_per_request")
    tokens = _value(facts, "workload.output_tokens")
    if flops and tokens:
        return flops / tokens, (beside or 0.0) / tokens
    alone = _value(facts, "model.flops_per_token")
    return (alone, 0.0) if alone else None


def _scale(document: dict[str, Any], dtype: str) -> float:
    """Bytes of a weight in `dtype`, against those that `model.weight_bytes` counts."""
    return _BYTES_OF.get(dtype, 4) / _BYTES_OF.get(_dtypes(document)[0], 4)


def points_of(document: dict[str, Any]) -> list[svg.RoofPoint]:
    """A point for each candidate that is known well enough, and the limit itself on the roof.

    Intensity = FLOPs of an output token ÷ (weight bytes ÷ rows a step + the bytes beside them); speed = output
    tokens/s × FLOPs of an output token. The reference serves one request at a time: one row a step.
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
    facts = document.get("facts") or {}
    if points and (at_once := _value(facts, "workload.concurrency")) and _value(facts, "limit.flops_per_request"):
        intensity = _intensity(document, at_once, _dtypes(document)[0])
        if intensity:
            points.append(
                svg.RoofPoint(
                    f"limit at {at_once:g} at once", intensity, None, "counted", "every row shares the weights"
                )
            )
    return points


def _intensity(document: dict[str, Any], rows: float, dtype: str) -> float | None:
    cost = _token_cost(document)
    weights = _value(document.get("facts") or {}, "model.weight_bytes")
    if cost is None or not weights:
        return None
    return cost[0] / (weights * _scale(document, dtype) / rows + cost[1])


def _place(document: dict[str, Any], entry: dict[str, Any]) -> tuple[float, float] | None:
    """(intensity, FLOP/s) of a candidate."""
    known = entry.get("evidence") or {}
    cost = _token_cost(document)
    rows = _value(known, "batch.rows_per_step") or (1.0 if entry["round"] == 0 else None)
    rate = entry.get("value") if document["metric"]["name"] == "output_tokens_per_s" else None
    rate = rate or _value(known, "output_tokens_per_s")
    if cost is None or not rows or not rate:
        return None
    dtype = str((entry.get("settings") or {}).get("dtype") or _dtypes(document)[0])
    intensity = _intensity(document, rows, dtype)
    return None if intensity is None else (intensity, float(rate) * cost[0])


def _value(evidence: dict[str, Any], name: str) -> float | None:
    return float(evidence[name]["value"]) if name in evidence and evidence[name].get("value") else None


def _roofline(document: dict[str, Any]) -> list[Block]:
    roofs, points = roofs_of(document), points_of(document)
    if not roofs:
        return [Text("No roofline: the bandwidth and the peak of this machine were not recorded.", muted=True)]
    if not points:
        return [Text("No roofline: no candidate's FLOPs, bytes and rows a step were recorded.", muted=True)]
    chart = svg.log_log_roofline("Roofline of this machine, with every candidate", roofs, points)
    caption = (
        "Further right: more rows share each reading of the weights. "
        "Nearer to the roof: less time is lost between the arithmetic."
    )
    source = (
        "roofs: measured on this machine; across: counted FLOPs and bytes of an output token, its share of the prompt "
        "included, at the rows a step that the server's counters show; up: those FLOPs × measured tokens/s"
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
