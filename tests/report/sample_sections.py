"""One section with every kind of block and every kind of chart."""

from __future__ import annotations

import numpy as np

from vibeserve.base.provenance import Provenance, Quantity
from vibeserve.report import (
    Bullets,
    Callout,
    Card,
    Cards,
    Code,
    Column,
    Columns,
    Definitions,
    Details,
    Diff,
    Field,
    Form,
    Link,
    Mono,
    Pill,
    Plot,
    Section,
    Source,
    SourceLine,
    Table,
    Text,
    svg,
)

MEASURED, COUNTED = Provenance.MEASURED, Provenance.COUNTED


def every_chart(name: str = "") -> list[svg.Chart]:
    """Each chart once, on figures that are easy to check; `name` is put into every label."""
    roofs = [svg.Roof(f"float32{name}", 300e9, 28e9), svg.Roof("bfloat16", 620e9, 28e9)]
    points = [
        svg.RoofPoint(f"reference{name}", 0.5, 5e9, "measured"),
        svg.RoofPoint("a", 7, 60e9, "candidate"),
        svg.RoofPoint("b", 7.1, 61e9, "candidate"),
        svg.RoofPoint("best of all", 7.2, 62e9, "best"),
        svg.RoofPoint("hand count", 8),
    ]
    many = np.arange(0, 1e-3, 1e-8)
    lanes = [
        svg.Lane(f"tensor{name}", many, many + 4e-9),
        svg.Lane("scalar", [0, 2e-4], [1e-4, 4e-4], labels=["load", f"gelu{name}"], kinds=[1, 2]),
        svg.Lane("empty", [], []),
    ]
    requests = [svg.Request(i * 0.5, 0.1, 1.0 + i % 3 if i != 5 else None) for i in range(20)]
    curve = [
        svg.Series(f"reference{name}", [(22, 2.9), (24, 43.0)], labels=["1", "16"]),
        svg.Series("best", [(50, 1.2), (300, 3.3)], labels=["1", "16"]),
    ]
    return [
        svg.line_chart(f"Line{name}", [svg.Series(f"s{name}", [(0, 1), (1, 4), (2, 2)], intervals=[(0.5, 1.5), None, (1.5, 2.5)])], x=svg.Axis("step"), y=svg.Axis("time", "s"), rules=[svg.Rule(3, f"limit{name}")], upright=[svg.Rule(1, "here")]),
        svg.scatter("Scatter", [svg.Series(str(i), [(i + 1, 10.0**i)], shape="") for i in range(9)], x=svg.Axis("x", kind="log"), y=svg.Axis("bytes", "B", kind="log")),
        svg.latency_throughput("Curve", curve),
        svg.latency_strip("Requests", [(f"reference{name}", requests)]),
        svg.bars("Lying", [f"one{name}", "two with a long name to it"], [svg.Bars("x", [1e-3, None], intervals=[(5e-4, 2e-3), None]), svg.Bars("y", [2e-3, 3e-3])], axis=svg.Axis("time", "s"), horizontal=True),
        svg.bars("Standing", ["a", "b"], [svg.Bars("x", [1, 4]), svg.Bars("y", [2, 3])], axis=svg.Axis("count")),
        svg.bars("Stacked", ["a", "b"], [svg.Bars("x", [1, 4]), svg.Bars("y", [2, 3])], axis=svg.Axis("share", "%"), stacked=True),
        svg.intervals("Intervals", [svg.Interval(f"c1{name}", 5.9, 5.5, 6.3, tone="good"), svg.Interval("c2", 1.1), svg.Interval("c3", 0.8, 0.7, 0.9, tone="bad")], axis=svg.Axis("gain", "×", zero=False)),
        svg.log_log_roofline(f"Roofline{name}", roofs, points),
        svg.timeline("Engines", lanes, kinds=["a", "b", f"c{name}"]),
    ]  # fmt: skip


def every_block(name: str = "") -> list[Section]:
    """Sections with every block; `name` is put into each text (to see that it is escaped)."""
    source_lines = [
        SourceLine(
            i, f"    nl.load(x[{i}])  # {name}", (None if i % 5 else i * 1e-6, i * 10.0), note="here" if i == 10 else ""
        )
        for i in range(1, 30)
    ]
    blocks = [
        Cards([Card(f"Ratio {name}", Quantity(12.43, "×", MEASURED, f"8 pairs {name}"), interval=(11.9, 12.97), tone="good"), Card("Limit", None, note=f"not known {name}"), Card("Words", f"`as` they are {name}", tone="warn")], headline=True),
        Text(f"Plain with `code {name}`, **strong**, [a link](#engines), [no link](javascript:alert(1)) {name}"),
        Text("in passing", muted=True),
        Bullets([f"one {name}", "two"]),
        Bullets(["first"], ordered=True),
        Table(
            ["name", Column("value", tip=f"tip {name}"), Column("time", "s", provenance=COUNTED, source=name), "what"],
            [[f"a {name}", 80, 0.002, Pill("kept", "good", tip=name)], [Mono(name or "b"), 9.5, 1e-6, Link("there", "#x")], ["c", 700, None, svg.sparkline([1, 3, None, 2], title=f"trend {name}")], ["d", None, Quantity(3.0, "s", Provenance.DOCUMENTED, name), True]],
            caption=f"Sorted by a click {name}",
            total=["sum", 789.5, None, ""],
        ),
        Table(["empty"], [], caption="Nothing"),
        Code(f"vibeserve serve {name}", "sh", title=f"Run {name}"),
        Diff(f"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-old {name}\n+new {name}\n same", title=f"`x` {name}"),
        Diff("\n".join(f"+{i}" for i in range(20)), max_lines=10),
        *(Callout(f"text {name}", title=f"title{name}", tone=tone) for tone in ("info", "good", "warn", "bad", "plain")),
        Definitions([("CPU", f"a CPU {name}"), ("bandwidth", Quantity(28e9, "B/s", MEASURED, f"triad {name}")), ("cores", 2)]),
        Source(f"kernel{name}.py", source_lines, [("time", "s"), ("bytes", "B")], provenance=Provenance.SIMULATED),
        Form("/sql", [Field("q", f"SQL {name}", f"SELECT 1 {name}", "area"), Field("t", "Table", "A", "choice", ["A", "B"]), Field("n", "Name", name), Field("h", "h", name, "hidden")]),
        Details(f"Folded {name}", [Text(f"inside {name}"), Details("deeper", [Code("x")])], pill=Pill("kept", "good"), aside=f"1.4× {name}", anchor="folded"),
        Columns([Text("left"), Text("right")]),
    ]  # fmt: skip
    plots = [
        Plot(chart, caption=f"caption {name}", provenance=MEASURED, source=f"source {name}")
        for chart in every_chart(name)
    ]
    return [
        Section(f"Blocks {name}", blocks, lead=f"lead {name}", anchor="blocks", aside=Pill("state", "info")),
        Section("Engines", plots),
        Section("A part of it", [Text("below")], level=3),
    ]
