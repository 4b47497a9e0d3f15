"""Points and lines: line chart, scatter, latency against throughput, requests of a load, sparkline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vibeserve.report import labels as labelling
from vibeserve.report.chart import Chart, Pen, both, number
from vibeserve.report.frame import Entry, Frame, color, frame, mark
from vibeserve.report.numbers import show
from vibeserve.report.scales import Axis


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one name. `tips` are what hovering a point says (made from its values where empty).

    `intervals` are (low, high) on the y axis, one a point; `labels` are written beside points.
    """

    name: str
    points: Sequence[tuple[float, float]]
    tips: Sequence[str] = ()
    labels: Sequence[str] = ()
    intervals: Sequence[tuple[float, float] | None] = ()
    line: bool = True
    marks: bool = True
    dashed: bool = False
    shape: str = ""
    color: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A line across a plot at a value, with its name: a limit, a target, the baseline."""

    value: float
    label: str


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    description: str = "",
    rules: Sequence[Rule] = (),
    upright: Sequence[Rule] = (),
    height: float = 300.0,
) -> Chart:
    """Series over common axes; `rules` lie at y values, `upright` ones at x values."""
    said = description or _describe(series, x, y)

    def draw(width: float) -> Pen:
        pen = Pen(width, height if width > 500 else max(240.0, height * 0.85))
        entries = [
            Entry(item.name, _index(item, i), "dash" if item.dashed else "line" if item.line else "mark", item.shape)
            for i, item in enumerate(series)
        ]
        xs = [point[0] for item in series for point in item.points] + [rule.value for rule in upright]
        ys = [point[1] for item in series for point in item.points] + [rule.value for rule in rules]
        ys += [end for item in series for pair in item.intervals if pair for end in pair]
        box = frame(pen, x, y, xs, ys, entries=entries if len(series) > 1 else ())
        _rules(pen, box, rules, upright)
        for i, item in enumerate(series):
            _draw_series(pen, box, item, _index(item, i), x, y)
        _point_labels(pen, box, series)
        return pen

    columns = ("series", _column(x), _column(y))
    rows = [(item.name, *point) for item in series for point in item.points]
    return both(draw, title, said, columns, rows)


def scatter(
    title: str,
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    description: str = "",
    rules: Sequence[Rule] = (),
    height: float = 320.0,
) -> Chart:
    """Points without lines."""
    bare = [_without_line(item) for item in series]
    return line_chart(title, bare, x=x, y=y, description=description, rules=rules, height=height)


def latency_throughput(
    title: str,
    series: Sequence[Series],
    *,
    unit: str = "tokens/s",
    latency: str = "p95 latency",
    description: str = "",
    height: float = 340.0,
) -> Chart:
    """Latency (s, logarithmic) over throughput, a line a server; label each point with its load level.

    Down and to the right is better.
    """
    ys = [point[1] for item in series for point in item.points if point[1] > 0]
    wide_range = bool(ys) and max(ys) / min(ys) > 8
    return line_chart(
        title,
        series,
        x=Axis("throughput", unit),
        y=Axis(latency, "s", kind="log" if wide_range else "linear"),
        description=description or _describe(series, Axis("throughput", unit), Axis(latency, "s")),
        height=height,
    )


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a load: when it was due (s from the start), time to first token, latency (None where it failed)."""

    start_s: float
    ttft_s: float | None
    latency_s: float | None
    tip: str = ""


def latency_strip(
    title: str, groups: Sequence[tuple[str, Sequence[Request]]], *, description: str = "", height: float = 300.0
) -> Chart:
    """Each request's latency over the time it was due, a colour a server; failed ones are crosses at the top."""
    series = []
    for index, (name, requests) in enumerate(groups):
        done = [request for request in requests if request.latency_s is not None]
        points = [(request.start_s, float(request.latency_s or 0.0)) for request in done]
        tips = [request.tip or _request_tip(name, request) for request in done]
        series.append(Series(name, points, tips=tips, line=False, color=index))
    highest = max((point[1] for item in series for point in item.points), default=1.0)
    lowest = min((point[1] for item in series for point in item.points if point[1] > 0), default=1.0)
    for index, (name, requests) in enumerate(groups):
        failed = [request for request in requests if request.latency_s is None]
        if failed:
            points = [(request.start_s, highest) for request in failed]
            tips = [request.tip or f"{name}: failed" for request in failed]
            series.append(Series(f"{name}: failed", points, tips=tips, line=False, shape="cross", color=index))
    kind = "log" if highest / lowest > 8 else "linear"
    return line_chart(
        title,
        series,
        x=Axis("due after the start of the window", "s"),
        y=Axis("latency of each request", "s", kind=kind),  # type: ignore[arg-type]
        description=description,
        height=height,
    )


def sparkline(values: Sequence[float | None], *, title: str = "", width: float = 96.0, height: float = 22.0) -> Chart:
    """A small line in the text; the last value is marked."""
    pen = Pen(width, height)
    known = [(i, float(v)) for i, v in enumerate(values) if v is not None and math.isfinite(v)]
    name = title or "trend"
    if known:
        low, high = min(v for _, v in known), max(v for _, v in known)
        span, steps = (high - low) or 1.0, max(len(values) - 1, 1)
        points = [(3 + i / steps * (width - 6), height - 4 - (v - low) / span * (height - 8)) for i, v in known]
        pen.polyline(points, "l c0 thin")
        pen.add("circle", cx=points[-1][0], cy=points[-1][1], r=2.4, cls="m c0")
    said = ", ".join(number(value) for _, value in known[-12:]) or "no values"
    drawn = pen.svg(name, said, "vs-spark")
    rows = tuple((i, value) for i, value in known)
    return Chart(name, said, drawn, "", ("index", "value"), rows, kind="spark")


def _index(item: Series, position: int) -> int:
    return position if item.color is None else item.color


def _without_line(item: Series) -> Series:
    return Series(
        item.name, item.points, item.tips, item.labels, item.intervals, line=False, shape=item.shape, color=item.color
    )


def _column(axis: Axis) -> str:
    return f"{axis.label} ({axis.unit})" if axis.unit else axis.label


def _describe(series: Sequence[Series], x: Axis, y: Axis) -> str:
    parts = []
    for item in series:
        ys = [point[1] for point in item.points]
        if ys:
            parts.append(f"{item.name}: {len(ys)} points, from {show(min(ys), y.unit)} to {show(max(ys), y.unit)}")
    return f"{y.label} over {x.label}. " + "; ".join(parts) + "."


def _request_tip(name: str, request: Request) -> str:
    first = f", first token after {show(request.ttft_s, 's')}" if request.ttft_s is not None else ""
    return f"{name}: {show(request.latency_s, 's')}{first}, due at {show(request.start_s, 's')}"


def _rules(pen: Pen, box: Frame, rules: Sequence[Rule], upright: Sequence[Rule]) -> None:
    for rule in rules:
        place = box.y.clip(rule.value)
        pen.line(box.left, place, box.right, place, "rule", f"{rule.label}: {show(rule.value)}")
        pen.text(box.right - 2, place - 5, rule.label, "rl", "end")
    for rule in upright:
        place = box.x.clip(rule.value)
        pen.line(place, box.top, place, box.bottom, "rule", f"{rule.label}: {show(rule.value)}")
        left = place > (box.left + box.right) / 2
        pen.text(place - 5 if left else place + 5, box.top + 11, rule.label, "rl", "end" if left else "start")


def _draw_series(pen: Pen, box: Frame, item: Series, index: int, x: Axis, y: Axis) -> None:
    usable = [(i, p) for i, p in enumerate(item.points) if math.isfinite(p[0]) and math.isfinite(p[1])]
    places = [(i, (box.x.clip(p[0]), box.y.clip(p[1])), p) for i, p in usable]
    if item.line:
        dash = " dash" if item.dashed else ""
        pen.polyline([place for _, place, _ in places], f"l {color(index)}{dash}")
    small = len(places) > 60
    for i, (px, py), (vx, vy) in places:
        if i < len(item.intervals) and (pair := item.intervals[i]):
            pen.line(px, box.y.clip(pair[0]), px, box.y.clip(pair[1]), f"iv {color(index)}")
        if not item.marks:
            continue
        default = f"{item.name}: {y.label} {show(vy, y.unit)} at {show(vx, x.unit)}"
        tip = item.tips[i] if i < len(item.tips) else default
        mark(pen, px, py, index, size=2.6 if small else 4.0, shape=item.shape, tip=tip, cls="dim" if small else "")


def _point_labels(pen: Pen, box: Frame, series: Sequence[Series]) -> None:
    wanted = []
    every: list[tuple[float, float, float, float]] = []
    for item in series:
        last: tuple[float, float] | None = None
        for i, point in enumerate(item.points):
            x, y = box.x.clip(point[0]), box.y.clip(point[1])
            every.append((x - 8, y - 5, x + 8, y + 5))
            if last is not None and item.line:
                every.extend(labelling.along(last, (x, y)))
            last = (x, y)
            if i < len(item.labels) and item.labels[i]:
                wanted.append(labelling.Label(x, y, item.labels[i], weight=i))
    if wanted:
        area = (box.left, box.top - 6, pen.width - 2, box.bottom - 2)
        labelling.draw(pen, labelling.place(wanted, area, every))
