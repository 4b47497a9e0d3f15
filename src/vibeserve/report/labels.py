"""Labels that do not lie on each other: each point's name goes to the freest place around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vibeserve.report.chart import Pen, shorten, text_width

_Box = tuple[float, float, float, float]
_HEIGHT = 13.0


@dataclass(frozen=True, slots=True)
class Label:
    """A point and its name; the more important (higher) ones are placed first."""

    x: float
    y: float
    text: str
    weight: float = 0.0
    cls: str = "pl"


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a label's text stands; `far` where a thin line must lead to its point."""

    label: Label
    x: float
    y: float
    anchor: Literal["start", "end", "middle"]
    far: bool


def _overlap(a: _Box, b: _Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0


def _places(label: Label, width: float) -> list[tuple[float, float, Literal["start", "end", "middle"], bool]]:
    x, y = label.x, label.y
    near: list[tuple[float, float, Literal["start", "end", "middle"], bool]] = [
        (x + 9, y + 4, "start", False),
        (x - 9, y + 4, "end", False),
        (x, y - 9, "middle", False),
        (x, y + 19, "middle", False),
    ]
    for distance in (16, 30, 46, 64, 84, 108):
        for dx, anchor in ((10, "start"), (-10, "end")):
            near.append((x + dx, y - distance, anchor, True))  # type: ignore[arg-type]
            near.append((x + dx, y + distance + 4, anchor, True))  # type: ignore[arg-type]
    return near


def _box(x: float, y: float, anchor: str, width: float) -> _Box:
    left = x - width if anchor == "end" else x - width / 2 if anchor == "middle" else x
    return (left - 1, y - _HEIGHT + 2, left + width + 1, y + 3)


def place(
    labels: Sequence[Label], area: _Box, obstacles: Sequence[_Box] = (), *, size: float = 11.5, longest: float = 190.0
) -> list[Placed]:
    """Find a place for each label inside `area`, clear of the points, of `obstacles` and of each other.

    A label that finds no clear place at all is left out: hovering its point still names it.
    """
    taken: list[_Box] = [(label.x - 5, label.y - 5, label.x + 5, label.y + 5) for label in labels]
    taken.extend(obstacles)
    placed = []
    for label in sorted(labels, key=lambda item: -item.weight):
        text = shorten(label.text, longest, size)
        width = text_width(text, size)
        best: tuple[float, Placed, _Box] | None = None
        for x, y, anchor, far in _places(label, width):
            box = _box(x, y, anchor, width)
            if box[0] < area[0] or box[1] < area[1] or box[2] > area[2] or box[3] > area[3]:
                continue
            cost = sum(_overlap(box, other) for other in taken)
            if best is None or cost < best[0] - 1e-6:
                named = Label(label.x, label.y, text, label.weight, label.cls)
                best = (cost, Placed(named, x, y, anchor, far), box)
            if cost == 0:
                break
        if best is not None and best[0] < 30:
            placed.append(best[1])
            taken.append(best[2])
    return placed


def along(start: tuple[float, float], end: tuple[float, float], pieces: int = 14) -> list[_Box]:
    """Small boxes along a line, for labels to keep clear of."""
    places = []
    for i in range(1, pieces):
        x = start[0] + (end[0] - start[0]) * i / pieces
        y = start[1] + (end[1] - start[1]) * i / pieces
        places.append((x - 2, y - 2, x + 2, y + 2))
    return places


def draw(pen: Pen, placed: Sequence[Placed]) -> None:
    """Draw the labels, and a thin line from each far one to its point."""
    for item in placed:
        if item.far:
            edge = item.x - 2 if item.anchor == "start" else item.x + 2
            pen.line(item.label.x, item.label.y, edge, item.y - 4, "lead")
    for item in placed:
        pen.text(item.x, item.y, item.label.text, item.label.cls, item.anchor)
