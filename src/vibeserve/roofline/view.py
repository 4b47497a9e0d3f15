"""The analysis as a page: the same sections give the terminal's tables, Markdown and HTML."""

from __future__ import annotations

from pathlib import Path

from vibeserve.base.provenance import Provenance
from vibeserve.base.units import duration, si
from vibeserve.report import (
    Block,
    Bullets,
    Callout,
    Card,
    Cards,
    Code,
    Column,
    Details,
    Pill,
    Plot,
    Section,
    Table,
    Text,
)
from vibeserve.report import markdown as render_markdown
from vibeserve.report import page as render_page
from vibeserve.roofline.analysis import Analysis, VariantAnalysis
from vibeserve.roofline.measured import Comparison
from vibeserve.roofline.numbers import flop_rate, number, short
from vibeserve.roofline.plot import roofline_chart, sweep_charts
from vibeserve.roofline.poly import group
from vibeserve.roofline.steps import Step

_SHOWN = 5
_TIMES = ("total_time", "latency_s")
_PARTS = {
    "sizes": "Sizes",
    "answer": "The answer",
    "work": "Where the work comes from",
    "cores": "Where the bytes come from",
    "shape": "What the shape decides",
    "machine": "The machine",
}


def title(analysis: Analysis) -> str:
    """The page's title."""
    return f"Roofline of {analysis.operation.title}"


def subtitle(analysis: Analysis) -> str:
    """Machine, cores, data type, sizes, in one line."""
    sizes = ", ".join(f"{name} = {size}" for name, size in analysis.sizes.items())
    lnc = f", LNC={analysis.lnc}" if analysis.lnc else ""
    return f"{analysis.machine.title}{lnc}, {analysis.dtype}; {sizes}"


def html(analysis: Analysis) -> str:
    """The page as one HTML file."""
    return render_page(title(analysis), sections(analysis, charts=True), subtitle=subtitle(analysis), sources=False)


def markdown(analysis: Analysis) -> str:
    """The page as Markdown."""
    return render_markdown(title(analysis), sections(analysis), subtitle=subtitle(analysis), sources=False)


def sections(analysis: Analysis, charts: bool = False) -> list[Section]:
    """All sections; `charts` adds the drawings and what only a page has room for."""
    found = [_summary(analysis, charts)]
    if charts:
        chart = roofline_chart(analysis)
        said = "Rings are counted and lie on their roof; filled points are measured. Hover for the figures."
        found.append(Section("Under the roof", [Plot(chart, said, Provenance.COUNTED)]))
    found += [_steps(variant) for variant in analysis.variants]
    found.append(Section("What would have to change", [b for variant in analysis.variants for b in _changes(variant)]))
    if analysis.measured:
        found.append(_measured(analysis))
    if analysis.sweep is not None:
        found.append(_sweep(analysis, charts))
    if charts:
        found.append(_machine(analysis))
        found += _source(analysis)
    return found


def _summary(analysis: Analysis, charts: bool) -> Section:
    measured = {(item.variant, item.metric): item for item in analysis.measured}
    with_measured = bool(measured)
    columns: list[Column | str] = [Column("variant"), Column("Hand count", align="right")]
    columns += [Column("Measured", align="right"), Column("Difference", align="right")] if with_measured else []
    rows: list[list[str]] = []
    for variant in analysis.variants:
        found = variant.bounds
        lines = [
            ("FLOPs", group(found.work), ("hardware_flops", "flops")),
            ("bytes", group(found.bytes), ("hbm_bytes", "bytes")),
            ("intensity (FLOPs/byte)", number(found.intensity), ("mm_arithmetic_intensity", "intensity")),
            (
                "time",
                f"{duration(float(found.t_lower))} to {duration(float(found.t_upper))}",
                ("total_time", "latency_s"),
            ),
            ("bound by", found.bound, ()),
        ]
        for label, counted, names in lines:
            row = [f"{variant.name}: {label}", counted]
            if with_measured:
                item = next((measured[variant.name, name] for name in names if (variant.name, name) in measured), None)
                row += _measured_cells(item)
            rows.append(row)
    blocks: list[Block] = [Text(analysis.operation.about.replace("\n", " "))] if analysis.operation.about else []
    if charts:
        blocks.append(_cards(analysis))
    blocks.append(Table(columns, rows, sortable=False))
    return Section("In short", blocks)


def _measured_cells(item: Comparison | None) -> list[str]:
    if item is None:
        return ["", ""]
    if item.metric in _TIMES:
        return [duration(item.measured), f"{item.measured / item.counted:.3g} × the lower bound"]
    return [_figure(item.measured), "agrees to the last digit" if item.agrees else f"{item.relative_difference:+.2%}"]


def _figure(value: float) -> str:
    return si(value, "", 5).strip() if abs(value) >= 1e9 else number(int(value) if value == int(value) else value)


def _cards(analysis: Analysis) -> Cards:
    items = []
    for variant in analysis.variants:
        found = variant.bounds
        low, high = duration(float(found.t_lower)), duration(float(found.t_upper))
        note = f"I = {number(found.intensity)} FLOPs/byte, ridge {number(found.ridge)}"
        tone = "good" if found.bound == "compute" else "warn"
        items.append(Card(variant.name, f"{low} ≤ T ≤ {high}", f"{found.bound}-bound: {note}", tone=tone))  # type: ignore[arg-type]
    return Cards(items)


def _steps(variant: VariantAnalysis) -> Section:
    blocks: list[Block] = [Text(variant.about)] if variant.about else []
    pill = Pill(f"{variant.bounds.bound}-bound", "good" if variant.bounds.bound == "compute" else "warn")
    for part, name in _PARTS.items():
        rows = [_row(step) for step in variant.steps if step.part == part]
        if rows:
            columns: list[Column | str] = [
                name,
                Column("derivation", wrap=True),
                Column("value", align="right"),
                "note",
            ]
            blocks.append(Table(columns, rows, sortable=False))
    return Section(f"{variant.name.capitalize()}, step by step", blocks, aside=pill)


def _row(step: Step) -> list[str]:
    """Title, `formula = numbers`, value, note; a formula or numbers that only repeat the value are left out."""
    text = f"{step.text} FLOPs/byte" if step.unit == "FLOPs/byte" else step.text
    numbers = step.numbers if step.numbers not in (step.text, "") else ""
    relation = any(sign in step.formula for sign in "<>≤") or step.formula.startswith("I × BW")
    joint = ": " if relation and numbers else " = "
    return [step.title, joint.join(part for part in (step.formula, numbers) if part), text, step.note]


def _changes(variant: VariantAnalysis) -> list[Block]:
    if variant.bounds.bound == "memory":
        head = f"**{variant.name}** is memory-bound. To be compute-bound it takes one of:"
    else:
        head = f"**{variant.name}** is compute-bound. How far away the ridge is:"
    return [Text(head), Bullets([change.text for change in variant.changes])]


def _measured(analysis: Analysis) -> Section:
    blocks: list[Block] = []
    for item in analysis.measured:
        show = duration if item.metric in _TIMES else _figure
        if item.agrees:
            said = item.note or "the printed digits agree"
            blocks.append(
                Text(
                    f"{item.variant}, {item.metric}: counted {show(item.counted)}, measured {show(item.measured)}: {said}."
                )
            )
            continue
        head = f"{item.variant}, {item.metric}: counted {show(item.counted)}, measured {show(item.measured)} ({item.relative_difference:+.2%})"
        if not item.explanations:
            blocks.append(Callout(f"{item.note}.", head, "warn"))
            continue
        rows = [
            [one.what, one.formula, f"{number(int(one.value))} {item.excess_unit}", "; ".join(one.also)]
            for one in item.explanations[:_SHOWN]
        ]
        columns: list[Column | str] = [
            Column("what fits, most natural first", wrap=True),
            "formula",
            Column("adds", align="right"),
            "the same amount",
        ]
        blocks.append(Table(columns, rows, caption=f"{head}: {item.note}.", sortable=False))
    return Section("Measured beside counted", blocks)


def _sweep(analysis: Analysis, charts: bool) -> Section:
    sweep = analysis.sweep
    columns: list[Column | str] = [Column(sweep.dim, align="right")]
    for name in sweep.points:
        columns += [
            Column(f"{name}: I", align="right"),
            "bound",
            Column("T from", align="right"),
            Column("to", align="right"),
        ]
    rows = []
    for place, size in enumerate(sweep.sizes):
        row: list[str | int] = [size]
        for points in sweep.points.values():
            point = points[place]
            row += [number(point.intensity), point.bound, duration(point.t_lower_s), duration(point.t_upper_s)]
        rows.append(row)
    blocks: list[Block] = [Plot(chart) for chart in sweep_charts(analysis)] if charts else []
    table = Table(columns, rows, sortable=False)
    blocks.append(Details(f"{len(rows)} sizes", [table]) if charts and len(rows) > 24 else table)
    return Section(f"Sweep over {sweep.dim}", blocks)


def _machine(analysis: Analysis) -> Section:
    machine = analysis.machine
    wanted = [
        "bandwidth_bytes_per_s",
        *(key for key in machine.figures if key.startswith(("peaks.", "vector_peaks.", "dma.", "on_chip."))),
    ]
    rows = [
        [
            quantity,
            short(one.value),
            one.unit,
            "used" if place == 0 else one.name,
            str(one.provenance),
            "; ".join(p for p in (one.source, one.note) if p),
        ]
        for quantity in wanted
        for place, one in enumerate(machine.figures[quantity])
    ]
    columns: list[Column | str] = [
        "figure",
        Column("value", align="right"),
        "unit",
        "",
        "how known",
        Column("source", wrap=True),
    ]
    said = "Figures of the whole device. Where sources differ all are listed and the first is used; `--bandwidth` and `--peak` take another by name, or a number."
    overrides = [f"{key} given: {flop_rate(value)}" for key, value in analysis.overrides.items()]
    table = Table(columns, rows)
    return Section(
        f"The machine: {machine.title}",
        [Text(said), *(Text(text) for text in overrides), Details("All figures", [table])],
    )


def _source(analysis: Analysis) -> list[Section]:
    path = Path(analysis.operation.source)
    if not path.is_file():
        return []
    command = f"vibeserve roofline {path.name} --target {analysis.machine.name}" + (
        f" --lnc {analysis.lnc}" if analysis.lnc else ""
    )
    command += "".join(f" --set {name}={value}" for name, value in analysis.changes.items())
    text = path.read_text(encoding="utf-8")
    return [Section("The operation", [Code(command, "sh"), Details(path.name, [Code(text, "toml")])])]


def svg_file(analysis: Analysis) -> str:
    """The roofline plot as an SVG file of its own."""
    return roofline_chart(analysis).standalone()
