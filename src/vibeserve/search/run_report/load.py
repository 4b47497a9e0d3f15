"""How the servers behave under load: latency against throughput, and every request of the final windows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from vibeserve.base.provenance import Provenance
from vibeserve.report import Block, Column, Plot, Section, Table, Text, svg
from vibeserve.report.numbers import show
from vibeserve.report.sections import Cell
from vibeserve.report.svg import Request
from vibeserve.search.run_report.materials import Materials

_THROUGHPUT = ("output_tokens_per_s", "requests_per_s", "request_throughput", "images_per_s", "samples_per_s")
_LATENCY = ("p95_latency_s", "latency_p95_s", "p50_latency_s", "mean_latency_s")
_UNITS = {"output_tokens_per_s": "tokens/s", "requests_per_s": "requests/s", "request_throughput": "requests/s"}
_SHOWN = {
    "output_tokens_per_s": "tokens/s",
    "request_throughput": "requests/s",
    "p50_latency_s": "s",
    "p95_latency_s": "s",
    "p50_ttft_s": "s",
    "p95_ttft_s": "s",
    "p50_tpot_s": "s",
    "goodput": "requests/s",
}
_Figures = dict[str, float]


def _bounds(materials: Materials, candidate: str, at_once: int) -> frozenset[str]:
    """Figures that are lower bounds in any of the windows at this level."""
    levels = [item for item in materials.levels if item.candidate == candidate and item.concurrency == at_once]
    return frozenset().union(*(level.at_least for level in levels))


def under_load(document: dict[str, Any], materials: Materials) -> Section | None:
    """The requests and the levels; None where the run measured neither."""
    blocks: list[Block] = []
    if strip := _strip(document, materials):
        blocks.append(strip)
    if table := _levels(document, materials):
        blocks.append(table)
    if not blocks:
        return None
    if curve(document, materials) is None and document.get("curve"):
        blocks.append(
            Text("No window recorded both a throughput and a latency: there is no curve to draw.", muted=True)
        )
    return Section("Under load", blocks, anchor="load")


def _names(document: dict[str, Any]) -> dict[str, str]:
    best, base = document["best"].get("candidate"), document["baseline"]["candidate"]
    return {base: "reference"} | ({best: f"best ({best})"} if best and best != base else {})


def levels_of(document: dict[str, Any], materials: Materials, candidate: str) -> dict[int, _Figures]:
    """Figures of a candidate by requests at once: medians over the windows at that level (final pairs and curve)."""
    seen: dict[int, dict[str, list[float]]] = {}
    for level in materials.levels:
        if level.candidate == candidate:
            for name, value in level.figures.items():
                seen.setdefault(level.concurrency, {}).setdefault(name, []).append(value)
    for row in document.get("curve") or []:
        if row["candidate"] != candidate or row["concurrency"] in seen:
            continue
        figures = {name: [float(fact["value"])] for name, fact in (row.get("facts") or {}).items()}
        if row.get("value") is not None:
            figures[document["metric"]["name"]] = [float(row["value"])]
        if figures:
            seen[row["concurrency"]] = figures
    return {
        at_once: {name: statistics.median(values) for name, values in figures.items()}
        for at_once, figures in sorted(seen.items())
    }


def _first(figures: _Figures, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in figures), None)


def curve(document: dict[str, Any], materials: Materials) -> Plot | None:
    """Latency against throughput of baseline and best; None where no window recorded both."""
    series = []
    shown: tuple[str, str] | None = None
    for index, (candidate, name) in enumerate(_names(document).items()):
        points, labels, tips = [], [], []
        for at_once, figures in levels_of(document, materials, candidate).items():
            across, up = _first(figures, _THROUGHPUT), _first(figures, _LATENCY)
            if across is None or up is None or (shown is not None and shown != (across, up)):
                continue
            shown = (across, up)
            points.append((figures[across], figures[up]))
            bound = up in _bounds(materials, candidate, at_once)
            labels.append(f"{at_once}, at least" if bound else str(at_once))
            unit, least = _UNITS.get(across, ""), "at least " if bound else ""
            tips.append(f"{name}, {at_once} at once: {figures[across]:.4g} {unit}, {least}{figures[up]:.4g} s")
        if points:
            series.append(svg.Series(name, points, labels=labels, tips=tips, color=index))
    if not series or shown is None:
        return None
    unit = _UNITS.get(shown[0], shown[0].replace("_per_s", "/s").replace("_", " "))
    latency = shown[1].removesuffix("_s").replace("_", " ")
    chart = svg.latency_throughput("Latency against throughput", series, unit=unit, latency=latency, height=320)
    caption = "Numbers at the points are requests at once. Down and to the right is better."
    if any("at least" in label for item in series for label in item.labels):
        caption += " **At least**: the window ended before the slowest requests did."
    return Plot(
        chart, caption, provenance=Provenance.MEASURED, source="closed loop; medians over the windows of a level"
    )


def _strip(document: dict[str, Any], materials: Materials) -> Plot | None:
    groups: list[tuple[str, Sequence[Request]]] = []
    for candidate, name in _names(document).items():
        known = sorted(pair for owner, pair in materials.requests if owner == candidate)
        if known:
            groups.append((name, materials.requests[(candidate, known[0])]))
    if not groups:
        return None
    chart = svg.latency_strip("Every request of a final window", groups)
    caption = "One mark a request: when it was due, and how long until its last token."
    if materials.cut_off:
        caption += " Requests that the end of the window cut off are not drawn."
    source = "the benchmark's record of each request, first final pair"
    return Plot(chart, caption, provenance=Provenance.MEASURED, source=source, data=False)


def _levels(document: dict[str, Any], materials: Materials) -> Table | None:
    found = [
        (candidate, name, at_once, figures)
        for candidate, name in _names(document).items()
        for at_once, figures in levels_of(document, materials, candidate).items()
    ]
    keys = [key for key in _SHOWN if any(key in figures for *_, figures in found)]
    if "output_tokens_per_s" in keys and "request_throughput" in keys:
        keys.remove("request_throughput")
    if not found or not keys:
        return None
    rows: list[list[Cell]] = []
    for candidate, name, at_once, figures in found:
        bounds = _bounds(materials, candidate, at_once)
        shown = [_least(figures.get(key), _SHOWN[key], key in bounds) for key in keys]
        rows.append([name, at_once, *shown])
    heads = [key.removesuffix("_s") if _SHOWN[key] == "s" else key.replace("_per_s", "") for key in keys]
    columns: list[Column | str] = [
        "Server",
        Column("At once"),
        *(Column(head.replace("_", " "), _SHOWN[key], align="right") for head, key in zip(heads, keys, strict=True)),
    ]
    caption = "Reference and best at each number of requests at once, measured by the bundle's benchmark"
    return Table(columns, rows, caption=caption)


def _least(value: float | None, unit: str, bound: bool) -> Cell:
    """The value; marked where it is only a lower bound."""
    return value if value is None or not bound else f"≥ {show(value, unit)}"
