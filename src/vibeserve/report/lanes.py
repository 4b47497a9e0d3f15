"""The timeline: lanes of boxes over time (engines, queues, rounds), however many boxes there are.

Boxes that are too thin to see are added up by pixel column, and drawn as the share of time that the column is busy.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vibeserve.report.chart import Chart, Pen, both, shorten, text_width
from vibeserve.report.frame import Entry, color, legend, named
from vibeserve.report.numbers import show
from vibeserve.report.scales import Axis, Scale, scale, tick_texts

MOST_BOXES = 400
TIME = Axis("time", "s")
_SHADES = 5


@dataclass(frozen=True, slots=True)
class Lane:
    """Boxes of one lane: starts and ends in the axis's unit (lists or arrays), and for each a name and a kind.

    `kinds` index `timeline`'s `kinds`; one int colours the whole lane.
    """

    name: str
    starts: Sequence[float] | np.ndarray
    ends: Sequence[float] | np.ndarray
    labels: Sequence[str] = ()
    kinds: Sequence[int] | np.ndarray | int = 0
    tips: Sequence[str] = ()


def timeline(
    title: str,
    lanes: Sequence[Lane],
    *,
    axis: Axis = TIME,
    kinds: Sequence[str] = (),
    description: str = "",
    lane_height: float = 22.0,
) -> Chart:
    """Lanes over time. Writes a box's name in it where it fits; `kinds` make the legend."""
    spans = [_sorted(lane) for lane in lanes]
    ends = [float(end.max()) for _, end, _ in spans if len(end)]
    starts = [float(start.min()) for start, _, _ in spans if len(start)]
    said = description or "; ".join(_describe(lane, span, axis) for lane, span in zip(lanes, spans, strict=True))

    def draw(width: float) -> Pen:
        names = width < 500
        step = lane_height + (20 if names else 6)
        entries = [Entry(kind, i, "box") for i, kind in enumerate(kinds)]
        used = legend(Pen(width, 10), entries, 4, 4, width - 8)
        top = used + 8
        floor = top + step * len(lanes)
        pen = Pen(width, floor + 42)
        legend(pen, entries, 4, 4, width - 8)
        left = 6.0 if names else min(max((text_width(lane.name) for lane in lanes), default=0.0) + 16, width * 0.3)
        fixed = Axis(axis.label, axis.unit, "linear", axis.zero, axis.low, axis.high if axis.high is not None else None)
        across = scale(fixed, [*starts, *ends], left, width - 12, 4 if names else 8)
        texts, unit = tick_texts(across.ticks, axis.unit, "linear")
        for tick, text in zip(across.ticks, texts, strict=True):
            pen.line(across(tick), top, across(tick), floor, "grid")
            pen.text(across(tick), floor + 16, text, "tk", "middle" if across(tick) < width - 20 else "end")
        pen.text(width - 12, floor + 34, named(axis.label, unit), "ax", "end")
        for i, (lane, span) in enumerate(zip(lanes, spans, strict=True)):
            y = top + i * step
            if names:
                pen.text(left, y + 12, lane.name, "ct")
                y += 16
            else:
                pen.text(left - 8, y + lane_height / 2 + 7, shorten(lane.name, left - 12), "ct", "end")
                y += 3
            pen.rect(left, y, width - 12 - left, lane_height, "lane")
            _lane(pen, across, lane, span, y, lane_height, axis)
        return pen

    rows = [
        (lane.name, len(span[0]), float((span[1] - span[0]).sum())) for lane, span in zip(lanes, spans, strict=True)
    ]
    return both(draw, title, said, ("lane", "boxes", named("sum of lengths", axis.unit)), rows)


_Span = tuple[np.ndarray, np.ndarray, np.ndarray]


def _sorted(lane: Lane) -> _Span:
    starts = np.asarray(lane.starts, dtype=float)
    ends = np.asarray(lane.ends, dtype=float)
    if isinstance(lane.kinds, int):
        kinds = np.full(len(starts), lane.kinds, dtype=int)
    else:
        kinds = np.asarray(lane.kinds, dtype=int)
    return starts, ends, kinds


def _describe(lane: Lane, span: _Span, axis: Axis) -> str:
    starts, ends, _ = span
    if not len(starts):
        return f"{lane.name}: nothing"
    return f"{lane.name}: {len(starts)} boxes, {show(float((ends - starts).sum()), axis.unit)} in all"


def _lane(pen: Pen, across: Scale, lane: Lane, span: _Span, y: float, height: float, axis: Axis) -> None:
    starts, ends, kinds = span
    if not len(starts):
        return
    per_unit = (across.end - across.start) / (across.high - across.low)
    widths = (ends - starts) * per_unit
    seen = widths >= 2.0
    if int(seen.sum()) > MOST_BOXES:
        seen &= widths >= np.sort(widths)[-MOST_BOXES]
    if int((~seen).sum()) and len(starts) <= MOST_BOXES:
        seen[:] = True
    hidden = ~seen
    if hidden.any():
        _binned(pen, across, (starts[hidden], ends[hidden], kinds[hidden]), y, height, lane.name)
    for i in np.flatnonzero(seen).tolist():
        x = across.clip(float(starts[i]))
        width = max(across.clip(float(ends[i])) - x, 1.0)
        name = lane.labels[i] if i < len(lane.labels) else lane.name
        tip = lane.tips[i] if i < len(lane.tips) else f"{name}: {show(float(ends[i] - starts[i]), axis.unit)}"
        pen.rect(x, y, max(width - 0.4, 0.8), height, f"b {color(int(kinds[i]))}", tip)
        if i < len(lane.labels) and text_width(lane.labels[i], 11) + 8 < width:
            pen.text(x + width / 2, y + height / 2 + 4, lane.labels[i], "on", "middle")


def _binned(pen: Pen, across: Scale, span: _Span, y: float, height: float, name: str) -> None:
    """Thin boxes as busy share a pixel column: runs of columns of equal shade become one box."""
    starts, ends, kinds = span
    columns = int(across.end - across.start)
    edges = np.linspace(across.low, across.high, columns + 1)
    for kind in np.unique(kinds):
        chosen = kinds == kind
        busy = _busy(starts[chosen], ends[chosen], edges)
        shade = np.ceil(np.clip(busy, 0, 1) * _SHADES).astype(int)
        changes = np.flatnonzero(np.diff(np.concatenate(([0], shade, [0]))))
        for first, last in itertools.pairwise(changes):
            if shade[first]:
                tip = f"{name}: busy {show(float(busy[first:last].mean()) * 100, '%', 3)} here"
                x = across.start + float(first)
                pen.rect(x, y, float(last - first), height, f"b {color(int(kind))} s{shade[first]}", tip)


def _busy(starts: np.ndarray, ends: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Share of each column [edges[i], edges[i+1]] that boxes cover, boxes that overlap counted once.

    From the union of the boxes, by the covered length up to each edge: exact, in one sort.
    """
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    first = np.flatnonzero(opens)
    low = starts[first]
    high = reach[np.concatenate((first[1:] - 1, [len(starts) - 1]))]
    before = np.concatenate(([0.0], np.cumsum(high - low)))
    index = np.searchsorted(low, edges, side="right")
    inside = np.where(index > 0, np.minimum(edges, high[np.maximum(index - 1, 0)]) - low[np.maximum(index - 1, 0)], 0.0)
    covered = np.where(index > 0, before[np.maximum(index - 1, 0)] + inside, 0.0)
    widths = np.diff(edges)
    return np.diff(covered) / np.where(widths > 0, widths, 1.0)
