"""Bars and intervals: grouped or stacked bars, standing or lying, and the interval (forest) plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vibeserve.report.chart import Chart, Pen, both, shorten, text_width
from vibeserve.report.frame import Entry, color, legend, mark, named
from vibeserve.report.numbers import show
from vibeserve.report.scales import Axis, Scale, scale, tick_texts


@dataclass(frozen=True, slots=True)
class Bars:
    """One series of bars, a value a category (None: nothing measured); `intervals` are (low, high)."""

    name: str
    values: Sequence[float | None]
    intervals: Sequence[tuple[float, float] | None] = ()
    tips: Sequence[str] = ()
    color: int | None = None


def bars(
    title: str,
    categories: Sequence[str],
    series: Sequence[Bars],
    *,
    axis: Axis,
    horizontal: bool = False,
    stacked: bool = False,
    description: str = "",
    height: float | None = None,
) -> Chart:
    """Bars by category. Lying bars write each value at its end; they suit long names and phones."""
    rows = [(category, *(item.values[i] for item in series)) for i, category in enumerate(categories)]
    said = description or f"{axis.label} of {', '.join(categories)}."

    def draw(width: float) -> Pen:
        if horizontal or width < 500:
            return _lying(width, categories, series, axis, stacked)
        return _standing(width, height or 280.0, categories, series, axis, stacked)

    head = tuple(named(item.name, axis.unit) for item in series)
    return both(draw, title, said, ("", *head), rows)


def _extent(series: Sequence[Bars], count: int, stacked: bool) -> list[float]:
    if stacked:
        return [0.0, *(sum((item.values[i] or 0.0) for item in series) for i in range(count))]
    values = [v for item in series for v in item.values if v is not None]
    return values + [end for item in series for pair in item.intervals if pair for end in pair]


def _entries(series: Sequence[Bars]) -> list[Entry]:
    if len(series) < 2:
        return []
    return [Entry(item.name, i if item.color is None else item.color, "box") for i, item in enumerate(series)]


def _tip(item: Bars, i: int, category: str, unit: str) -> str:
    return item.tips[i] if i < len(item.tips) else f"{category}, {item.name}: {show(item.values[i], unit)}"


def _lying(width: float, categories: Sequence[str], series: Sequence[Bars], axis: Axis, stacked: bool) -> Pen:
    thick = 16.0 if len(series) == 1 or stacked else 12.0
    group = (thick + 2) * (1 if stacked else len(series)) + 10
    names = width < 500
    step = group + (16 if names else 0)
    probe = Pen(width, 10)
    used = legend(probe, _entries(series), 4, 4, width - 8)
    top = used + 6
    pen = Pen(width, top + step * len(categories) + (44 if axis.label else 26))
    legend(pen, _entries(series), 4, 4, width - 8)
    left = 4.0 if names else min(max((text_width(c) for c in categories), default=0.0) + 14, width * 0.36)
    right = width - 66
    across = scale(axis, _extent(series, len(categories), stacked), left, right, 4 if names else 6)
    texts, unit = tick_texts(across.ticks, axis.unit, axis.kind)
    floor = top + step * len(categories)
    for tick, text in zip(across.ticks, texts, strict=True):
        pen.line(across(tick), top, across(tick), floor, "grid")
        pen.text(across(tick), floor + 16, text, "tk", "middle" if across(tick) > left + 8 else "start")
    if axis.label:
        pen.text(right, floor + 35, named(axis.label, unit), "ax", "end")
    zero = across.clip(0.0) if axis.kind == "linear" else left
    pen.line(zero, top, zero, floor, "axis")
    for i, category in enumerate(categories):
        y = top + i * step + 5
        if names:
            pen.text(left, y + 10, shorten(category, width - 8), "ct")
            y += 16
        else:
            pen.text(left - 8, y + (group - 10) / 2 + 4, shorten(category, left - 10), "ct", "end")
        _lying_group(pen, across, i, category, y, series, axis, thick, stacked)
    return pen


def _lying_group(
    pen: Pen,
    across: Scale,
    i: int,
    category: str,
    y: float,
    series: Sequence[Bars],
    axis: Axis,
    thick: float,
    stacked: bool,
) -> None:
    base = across.clip(0.0) if axis.kind == "linear" else across.start
    total = 0.0
    for j, item in enumerate(series):
        value = item.values[i]
        index = j if item.color is None else item.color
        if value is None or not math.isfinite(value):
            if not stacked:
                pen.text(base + 4, y + thick - 3, "–", "tk")
                y += thick + 2
            continue
        tip = _tip(item, i, category, axis.unit)
        if stacked:
            start, end = across(total), across(total + value)
            pen.rect(start, y, max(end - start - 0.5, 0.5), thick, f"b {color(index)}", tip)
            total += value
            continue
        end = across.clip(value)
        pen.rect(min(base, end), y, max(abs(end - base), 1.0), thick, f"b {color(index)}", tip, rx=1.5)
        far = end
        if i < len(item.intervals) and (pair := item.intervals[i]):
            middle = y + thick / 2
            pen.line(across.clip(pair[0]), middle, across.clip(pair[1]), middle, "iv ink")
            far = max(far, across.clip(pair[1]))
        pen.text(max(far, base) + 5, y + thick - 3, show(value, axis.unit, 3), "vl")
        y += thick + 2
    if stacked:
        pen.text(across(total) + 5, y + thick - 3, show(total, axis.unit, 3), "vl")


def _standing(
    width: float, height: float, categories: Sequence[str], series: Sequence[Bars], axis: Axis, stacked: bool
) -> Pen:
    pen = Pen(width, height)
    used = legend(pen, _entries(series), 4, 4, width - 8)
    top, floor = used + (32 if axis.label else 10), height - 28
    up = scale(axis, _extent(series, len(categories), stacked), floor, top)
    texts, unit = tick_texts(up.ticks, axis.unit, axis.kind)
    left = max((text_width(text) for text in texts), default=20.0) + 12
    right = width - 8
    for tick, text in zip(up.ticks, texts, strict=True):
        pen.line(left, up(tick), right, up(tick), "grid")
        pen.text(left - 7, up(tick) + 4, text, "tk", "end")
    if axis.label:
        pen.text(4, top - 15, named(axis.label, unit), "ax")
    step = (right - left) / max(len(categories), 1)
    lanes = 1 if stacked else max(len(series), 1)
    thick = min(46.0, step * 0.76 / lanes)
    base = up.clip(0.0) if axis.kind == "linear" else floor
    for i, category in enumerate(categories):
        x = left + step * (i + 0.5) - thick * lanes / 2
        pen.text(left + step * (i + 0.5), floor + 18, shorten(category, step - 4), "ct", "middle")
        total = 0.0
        for j, item in enumerate(series):
            value = item.values[i]
            index = j if item.color is None else item.color
            if value is None or not math.isfinite(value):
                x += 0 if stacked else thick
                continue
            tip = _tip(item, i, category, axis.unit)
            low, high = (up(total), up(total + value)) if stacked else (base, up.clip(value))
            pen.rect(x, min(low, high), thick - 1.5, max(abs(high - low), 1.0), f"b {color(index)}", tip, rx=1.5)
            if not stacked and i < len(item.intervals) and (pair := item.intervals[i]):
                middle = x + thick / 2
                pen.line(middle, up.clip(pair[0]), middle, up.clip(pair[1]), "iv ink")
            total += value
            x += 0 if stacked else thick
    pen.line(left, base, right, base, "axis")
    return pen


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its interval (either end may be None: no interval known); `tone` is good, bad or plain."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    tone: str = "plain"


_TONES = {"good": 2, "bad": 1, "plain": 0, "warn": 4}


def intervals(
    title: str, rows: Sequence[Interval], *, axis: Axis, reference: float | None = 1.0, description: str = ""
) -> Chart:
    """A forest plot: a line for each interval, a mark for its value, and the `reference` that it must clear."""
    said = description or f"{axis.label} with intervals, for {', '.join(row.label for row in rows)}."

    def draw(width: float) -> Pen:
        names = width < 500
        step = 40.0 if names else 28.0
        left = 8.0 if names else min(max((text_width(row.label) for row in rows), default=0.0) + 16, width * 0.38)
        right = width - (10 if names else 130)
        pen = Pen(width, step * len(rows) + 58)
        top, floor = 10.0, step * len(rows) + 14
        values = [v for row in rows for v in (row.value, row.low, row.high) if v is not None]
        across = scale(axis, values + ([reference] if reference is not None else []), left + 6, right, 5)
        texts, unit = tick_texts(across.ticks, axis.unit, axis.kind)
        for tick, text in zip(across.ticks, texts, strict=True):
            pen.line(across(tick), top, across(tick), floor, "grid")
            pen.text(across(tick), floor + 16, text, "tk", "middle")
        pen.text(right, floor + 35, named(axis.label, unit), "ax", "end")
        if reference is not None:
            pen.line(across(reference), top, across(reference), floor, "rule")
        for i, row in enumerate(rows):
            _interval_row(pen, across, row, top + i * step, step, left, names, axis.unit)
        return pen

    table = [(row.label, row.value, row.low, row.high, row.note) for row in rows]
    return both(draw, title, said, ("", named(axis.label, axis.unit), "low", "high", "note"), table)


def _interval_row(
    pen: Pen, across: Scale, row: Interval, y: float, step: float, left: float, names: bool, unit: str
) -> None:
    index = _TONES.get(row.tone, 0)
    middle = y + (28 if names else step / 2)
    spread = "" if row.low is None or row.high is None else f" ({show(row.low, unit, 3)} to {show(row.high, unit, 3)})"
    text = f"{show(row.value, unit, 3)}{spread}"
    if names:
        label = shorten(row.label, pen.width - text_width(text) - 24)
        for start, width in ((left, text_width(label)), (pen.width - 4 - text_width(text), text_width(text))):
            pen.rect(start - 2, y + 3, width + 4, 15, "back")  # no line shows between its letters
        pen.text(left, y + 14, label, "ct")
        pen.text(pen.width - 4, y + 14, text, "vl", "end")
    else:
        pen.text(left - 8, middle + 4, shorten(row.label, left - 12), "ct", "end")
        pen.text(pen.width - 124, middle + 4, text, "vl")
    if row.low is not None and row.high is not None:
        low, high = across.clip(row.low), across.clip(row.high)
        pen.line(low, middle, high, middle, f"iv {color(index)}")
        for end in (low, high):
            pen.line(end, middle - 4, end, middle + 4, f"iv {color(index)}")
    mark(pen, across.clip(row.value), middle, index, size=4.5, shape="square", tip=f"{row.label}: {text}. {row.note}")
