"""How the servers behave under load: latency against throughput, and every request of the final windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vibeserve.base.provenance import Provenance
from vibeserve.report import Block, Column, Plot, Section, Table, Text, svg
from vibeserve.report.svg import Request
from vibeserve.search.run_report.materials import Materials
from vibeserve.search.run_report.words import metric_words

_THROUGHPUT = ("output_tokens_per_s", "requests_per_s", "request_throughput", "images_per_s", "samples_per_s")
_LATENCY = ("p95_latency_s", "latency_p95_s", "p50_latency_s", "latency_p50_s", "mean_latency_s")
_WORDS = {"output_tokens_per_s": "tokens/s", "requests_per_s": "requests/s", "request_throughput": "requests/s"}


def under_load(document: dict[str, Any], materials: Materials) -> Section | None:
    """The curve and the requests; None where the run measured neither."""
    blocks: list[Block] = []
    plots: list[Block] = []
    if strip := _strip(document, materials):
        plots.append(strip)
    blocks.extend(plots)
    if table := _levels(document):
        blocks.append(table)
    if not blocks:
        return None
    if curve(document) is None and document.get("curve"):
        blocks.append(Text("The windows at other loads recorded no latency, so there is no curve to draw.", muted=True))
    return Section("Under load", blocks, anchor="load")


def _names(document: dict[str, Any]) -> dict[str, str]:
    best, base = document["best"].get("candidate"), document["baseline"]["candidate"]
    return {base: "reference"} | ({best: f"best ({best})"} if best and best != base else {})


def _metric_of(point: dict[str, Any], names: Sequence[str], metric: str) -> tuple[str, float] | None:
    facts = point.get("facts") or {}
    for name in names:
        if name in facts:
            return name, float(facts[name]["value"])
        if name == metric and point.get("value") is not None:
            return name, float(point["value"])
    return None


def curve(document: dict[str, Any]) -> Plot | None:
    """Latency against throughput of baseline and best; None where no window at other loads recorded both."""
    names, metric = _names(document), document["metric"]["name"]
    series = []
    shown: tuple[str, str] | None = None
    for index, (candidate, name) in enumerate(names.items()):
        points, labels, tips = [], [], []
        rows = [row for row in document.get("curve") or [] if row["candidate"] == candidate]
        for row in sorted(rows, key=lambda item: item["concurrency"]):
            across, up = _metric_of(row, _THROUGHPUT, metric), _metric_of(row, _LATENCY, metric)
            if across is None or up is None:
                continue
            shown = shown or (across[0], up[0])
            points.append((across[1], up[1]))
            labels.append(str(row["concurrency"]))
            tips.append(
                f"{name}, {row['concurrency']} at once: {across[1]:.4g} {_WORDS.get(across[0], '')}, {up[1]:.4g} s"
            )
        if points:
            series.append(svg.Series(name, points, labels=labels, tips=tips, color=index))
    if not series or shown is None:
        return None
    unit = _WORDS.get(shown[0], shown[0].replace("_per_s", "/s").replace("_", " "))
    chart = svg.latency_throughput(
        "Latency against throughput", series, unit=unit, latency=shown[1].replace("_s", "").replace("_", " ")
    )
    caption = "Numbers at the points are requests at once. Down and to the right is better."
    return Plot(chart, caption, provenance=Provenance.MEASURED, source="closed loop, one window a level")


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
    return Plot(
        chart,
        caption,
        provenance=Provenance.MEASURED,
        source="the benchmark's records of the first final pair",
        data=False,
    )


def _levels(document: dict[str, Any]) -> Table | None:
    names = _names(document)
    unit = document["metric"]["unit"]
    rows = []
    keys: list[str] = []
    points = [row for row in document.get("curve") or [] if row["candidate"] in names]
    for row in points:
        for key in row.get("facts") or {}:
            if key not in keys and key != document["metric"]["name"]:
                keys.append(key)
    keys = keys[:6]
    for row in points:
        facts = row.get("facts") or {}
        cells = [facts[key]["value"] if key in facts else None for key in keys]
        rows.append(
            [
                names[row["candidate"]],
                row["concurrency"],
                row.get("value"),
                *cells,
                row.get("noisy") or row.get("reason") or "",
            ]
        )
    if not rows:
        return None
    units = {
        key: next(
            ((row.get("facts") or {})[key].get("unit") or "" for row in points if key in (row.get("facts") or {})), ""
        )
        for key in keys
    }
    known = Provenance.MEASURED
    columns = [
        Column("Server"),
        Column("At once"),
        Column(
            metric_words(document["metric"]).removesuffix(" per second"),
            unit,
            provenance=known,
            source="the bundle's benchmark",
        ),
        *(Column(key, units[key]) for key in keys),
        Column("Remark", wrap=False),
    ]
    return Table(columns, rows, caption="The same servers at other loads")
