"""What plots have around them: axes, grid, ticks, the name of each axis, and the legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vibeserve.report.chart import Pen, text_width
from vibeserve.report.scales import Axis, Scale, scale, tick_texts

COLORS = 8
TEXT_PX = 12.0
SHAPES = ("circle", "square", "triangle", "diamond", "down", "cross", "plus", "ring")


def color(index: int) -> str:
    """The class of the series' colour."""
    return f"c{index % COLORS}"


def mark(
    pen: Pen, x: float, y: float, index: int, *, size: float = 4.0, shape: str = "", tip: str = "", cls: str = ""
) -> None:
    """A mark at a point: colour and shape both tell series apart."""
    kind = shape or SHAPES[index % len(SHAPES)]
    classes = f"m {color(index)} {cls}".strip()
    s = size
    if kind in ("circle", "ring"):
        pen.add("circle", tip, cx=x, cy=y, r=s, cls=f"{classes} {'ring' if kind == 'ring' else ''}".strip())
        return
    paths = {
        "square": f"M{x - s:.1f} {y - s:.1f}h{2 * s:.1f}v{2 * s:.1f}h{-2 * s:.1f}z",
        "triangle": f"M{x:.1f} {y - s * 1.25:.1f}l{s * 1.2:.1f} {s * 2.1:.1f}h{-s * 2.4:.1f}z",
        "diamond": f"M{x:.1f} {y - s * 1.35:.1f}l{s * 1.35:.1f} {s * 1.35:.1f}l{-s * 1.35:.1f} {s * 1.35:.1f}l{-s * 1.35:.1f} {-s * 1.35:.1f}z",
        "down": f"M{x:.1f} {y + s * 1.25:.1f}l{s * 1.2:.1f} {-s * 2.1:.1f}h{-s * 2.4:.1f}z",
        "cross": f"M{x - s:.1f} {y - s:.1f}l{2 * s:.1f} {2 * s:.1f}m0 {-2 * s:.1f}l{-2 * s:.1f} {2 * s:.1f}",
        "plus": f"M{x - s * 1.2:.1f} {y:.1f}h{2.4 * s:.1f}M{x:.1f} {y - s * 1.2:.1f}v{2.4 * s:.1f}",
        "star": f"M{x:.1f} {y - s * 1.6:.1f}l{s * 0.45:.1f} {s * 1.1:.1f}l{s * 1.15:.1f} {s * 0.12:.1f}l{-s * 0.88:.1f} {s * 0.78:.1f}"
        f"l{s * 0.27:.1f} {s * 1.15:.1f}l{-s * 0.99:.1f} {-s * 0.62:.1f}l{-s * 0.99:.1f} {s * 0.62:.1f}l{s * 0.27:.1f} {-s * 1.15:.1f}"
        f"l{-s * 0.88:.1f} {-s * 0.78:.1f}l{s * 1.15:.1f} {-s * 0.12:.1f}z",
    }
    open_shape = " open" if kind in ("cross", "plus") else ""
    pen.add("path", tip, d=paths[kind], cls=classes + open_shape)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a legend. `sample` is mark, line, dash or box."""

    name: str
    index: int
    sample: str = "mark"
    shape: str = ""


def legend(pen: Pen, entries: Sequence[Entry], x: float, y: float, width: float) -> float:
    """Draw a legend from (x, y) on, wrapping at `width`; returns the height that it took."""
    if not entries:
        return 0.0
    left, top, row = x, y, 18.0
    for entry in entries:
        needed = text_width(entry.name, TEXT_PX) + 32
        if left > x and left + needed > x + width:
            left, top = x, top + row
        middle = top + 6
        match entry.sample:
            case "box":
                pen.rect(left, middle - 5, 12, 10, f"b {color(entry.index)}")
            case "line" | "dash":
                dash = " dash" if entry.sample == "dash" else ""
                pen.line(left - 1, middle, left + 15, middle, f"l {color(entry.index)}{dash}")
                if entry.sample == "line":
                    mark(pen, left + 7, middle, entry.index, size=3.5, shape=entry.shape)
            case _:
                mark(pen, left + 7, middle, entry.index, size=4, shape=entry.shape)
        pen.text(left + 20, middle + 4, entry.name, "lg")
        left += needed
    return top - y + row


@dataclass(frozen=True, slots=True)
class Frame:
    """The inside of a plot: where it lies, and its two scales."""

    left: float
    top: float
    right: float
    bottom: float
    x: Scale
    y: Scale


def frame(
    pen: Pen,
    x_axis: Axis,
    y_axis: Axis,
    xs: Iterable[float],
    ys: Iterable[float],
    *,
    entries: Sequence[Entry] = (),
    bottom: float | None = None,
    right_pad: float = 14.0,
) -> Frame:
    """Draw legend, grid, ticks and axis names on `pen`; what is left is the frame."""
    narrow = pen.width < 500
    used = legend(pen, entries, 4, 4, pen.width - 8)
    top = used + (32 if y_axis.label else 10)
    floor = (bottom or pen.height) - (40 if x_axis.label else 24)
    y_scale = scale(y_axis, ys, floor, top, 5 if floor - top > 120 else 3)
    y_texts, y_unit = tick_texts(y_scale.ticks, y_axis.unit, y_axis.kind)
    left = max([text_width(text, 11.5) for text in y_texts], default=20.0) + 12
    right = pen.width - right_pad
    x_scale = scale(x_axis, xs, left, right, 4 if narrow else 7)
    x_texts, x_unit = tick_texts(x_scale.ticks, x_axis.unit, x_axis.kind)
    for tick, text in zip(y_scale.ticks, y_texts, strict=True):
        place = y_scale(tick)
        pen.line(left, place, right, place, "grid")
        pen.text(left - 7, place + 4, text, "tk", "end")
    _x_ticks(pen, x_scale, x_texts, floor, top)
    pen.line(left, floor, right, floor, "axis")
    if y_axis.label:
        pen.text(4, top - 15, named(y_axis.label, y_unit), "ax")
    if x_axis.label:
        pen.text(right, floor + 36, named(x_axis.label, x_unit), "ax", "end")
    return Frame(left, top, right, floor, x_scale, y_scale)


def _x_ticks(pen: Pen, x_scale: Scale, texts: Sequence[str], floor: float, top: float) -> None:
    last_end = -1e9
    for tick, text in zip(x_scale.ticks, texts, strict=True):
        place = x_scale(tick)
        half = text_width(text, 11.5) / 2
        pen.line(place, top, place, floor, "grid faint")
        pen.line(place, floor, place, floor + 4, "axis")
        centre = min(max(place, half + 1), pen.width - half - 1)
        if centre - half > last_end + 6:
            pen.text(centre, floor + 17, text, "tk", "middle")
            last_end = centre + half


def named(label: str, unit: str) -> str:
    """An axis name with its unit in brackets."""
    return f"{label} ({unit})" if unit else label
