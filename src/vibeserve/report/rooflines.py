"""The roofline: attainable speed over arithmetic intensity, both logarithmic, with every roof and every point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vibeserve.report import labels as labelling
from vibeserve.report.chart import Chart, Pen, both
from vibeserve.report.frame import Entry, Frame, color, frame, mark
from vibeserve.report.numbers import show
from vibeserve.report.scales import Axis


@dataclass(frozen=True, slots=True)
class Roof:
    """A flat top (peak) over a slope (bandwidth): a dtype's peak, a memory level. Both in base units a second."""

    name: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float

    @property
    def ridge(self) -> float:
        """The intensity (FLOPs/byte) where slope and top meet."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s

    def attainable(self, intensity: float) -> float:
        """FLOP/s that the roof allows at `intensity`."""
        return min(self.peak_flops_per_s, intensity * self.bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True)
class RoofPoint:
    """A point under the roof. Without `flops_per_s` it lies on the first roof: counted, not measured.

    `kind` tells how it is known: counted (ring), measured or simulated (filled), candidate (filled), best (star).
    """

    name: str
    intensity: float
    flops_per_s: float | None = None
    kind: Literal["counted", "measured", "simulated", "candidate", "best"] = "counted"
    note: str = ""
    group: str = ""


_SHAPES = {"counted": "ring", "measured": "circle", "simulated": "triangle", "candidate": "circle", "best": "star"}
_KINDS = {"counted": 0, "simulated": 3, "measured": 1, "candidate": 5, "best": 2}


def log_log_roofline(
    title: str, roofs: Sequence[Roof], points: Sequence[RoofPoint], *, description: str = "", height: float = 400.0
) -> Chart:
    """Roofs as lines, ridges marked, points named where there is room (hovering names all)."""
    said = description or _describe(roofs, points)
    placed = [(point, _speed(point, roofs)) for point in points]
    placed = [(p, s) for p, s in placed if p.intensity > 0 and s > 0 and math.isfinite(p.intensity * s)]

    def draw(width: float) -> Pen:
        pen = Pen(width, height if width > 500 else height * 0.9)
        ridges = [roof.ridge for roof in roofs]
        xs = [p.intensity for p, _ in placed] + ridges
        low_x, high_x = min(xs, default=1.0) / 3, max(xs, default=100.0) * 4
        speeds = [s for _, s in placed] + [roof.peak_flops_per_s for roof in roofs]
        at_low = [roof.attainable(min([p.intensity for p, _ in placed] + ridges) / 1.5) for roof in roofs]
        low_y, high_y = min(speeds + at_low, default=1.0) / 1.6, max(speeds, default=10.0) * 2.2
        box = frame(
            pen,
            Axis("arithmetic intensity", "FLOPs/byte", kind="log", low=low_x, high=high_x),
            Axis("speed", "FLOP/s", kind="log", low=low_y, high=high_y),
            [],
            [],
            entries=_legend(points),
        )
        taken = _roofs(pen, box, roofs)
        wanted = []
        for point, speed in placed:
            x, y = box.x.clip(point.intensity), box.y.clip(speed)
            index = _KINDS[point.kind]
            tip = _tip(point, speed)
            mark(pen, x, y, index, size=5.5 if point.kind == "best" else 4.5, shape=_SHAPES[point.kind], tip=tip)
            weight = 2.0 if point.kind == "best" else 1.0 if point.kind == "measured" else 0.0
            wanted.append(labelling.Label(x, y, point.name, weight, f"pl {color(index)}t"))
        area = (box.left + 2, box.top, box.right - 2, box.bottom - 3)
        longest = 190.0 if width > 500 else 120.0
        labelling.draw(pen, labelling.place(wanted, area, taken, longest=longest))
        return pen

    columns = ("point", "intensity (FLOPs/byte)", "speed (FLOP/s)", "known as", "note")
    rows: list[tuple[object, ...]] = [(p.name, p.intensity, speed, p.kind, p.note) for p, speed in placed]
    rows += [
        (f"roof: {r.name}", r.ridge, r.peak_flops_per_s, "roof", f"{show(r.bandwidth_bytes_per_s, 'B/s')}")
        for r in roofs
    ]
    return both(draw, title, said, columns, rows)


def _speed(point: RoofPoint, roofs: Sequence[Roof]) -> float:
    if point.flops_per_s is not None:
        return point.flops_per_s
    return roofs[0].attainable(point.intensity) if roofs else 0.0


def _legend(points: Sequence[RoofPoint]) -> list[Entry]:
    kinds = [kind for kind in _SHAPES if any(point.kind == kind for point in points)]
    words = {"counted": "counted (at the roof)"}
    return [Entry(words.get(kind, kind), _KINDS[kind], "mark", _SHAPES[kind]) for kind in kinds]


def _tip(point: RoofPoint, speed: float) -> str:
    text = f"{point.name}: {show(point.intensity, 'FLOPs/byte')}, {show(speed, 'FLOP/s')} ({point.kind})"
    return f"{text}. {point.note}" if point.note else text


def _describe(roofs: Sequence[Roof], points: Sequence[RoofPoint]) -> str:
    tops = "; ".join(
        f"{r.name}: {show(r.peak_flops_per_s, 'FLOP/s')}, {show(r.bandwidth_bytes_per_s, 'B/s')}, "
        f"ridge at {show(r.ridge)} FLOPs/byte"
        for r in roofs
    )
    return f"Roofline. Roofs: {tops}. Points: {', '.join(p.name for p in points) or 'none'}."


def _roofs(pen: Pen, box: Frame, roofs: Sequence[Roof]) -> list[tuple[float, float, float, float]]:
    """Draw the roofs; returns the boxes that their lines and names take."""
    taken: list[tuple[float, float, float, float]] = []
    last_text_y: list[float] = []
    for i, roof in enumerate(roofs):
        low, high, ridge = box.x.low, box.x.high, roof.ridge
        start = (box.x(low), box.y(roof.attainable(low)))
        knee = (box.x.clip(ridge), box.y(roof.peak_flops_per_s))
        end = (box.x(high), knee[1])
        start = _enter(box, roof, start)
        strength = "" if i == 0 else " soft"
        tip = f"{roof.name}: {show(roof.peak_flops_per_s, 'FLOP/s')}, {show(roof.bandwidth_bytes_per_s, 'B/s')}"
        pen.polyline([start, knee, end], f"roof{strength}", tip)
        if i == 0:
            pen.line(knee[0], knee[1], knee[0], box.bottom, "ridge", f"ridge: {show(ridge)} FLOPs/byte")
            pen.text(knee[0] + 4, box.bottom - 6, f"ridge {show(ridge, digits=3)}", "rl")
            taken.append((knee[0] - 2, box.bottom - 18, knee[0] + 70, box.bottom))
        text_y = knee[1] - 6
        if any(abs(text_y - other) < 13 for other in last_text_y):
            text_y = knee[1] + 14
        last_text_y.append(text_y)
        text = f"{roof.name} {show(roof.peak_flops_per_s, 'FLOP/s', 3)}"
        pen.text(end[0] - 2, text_y, text, "rl", "end")
        taken.append((end[0] - 7 * len(text), text_y - 12, end[0], text_y + 3))
        taken.append((knee[0], knee[1] - 2, end[0], knee[1] + 2))
        taken.extend(labelling.along(start, knee))
        if i == 0 or roof.bandwidth_bytes_per_s != roofs[0].bandwidth_bytes_per_s:
            _slope_name(pen, start, knee, show(roof.bandwidth_bytes_per_s, "B/s", 3))
    return taken


def _enter(box: Frame, roof: Roof, start: tuple[float, float]) -> tuple[float, float]:
    """Where the slope enters the frame: at the left edge, or at the bottom."""
    if start[1] <= box.bottom:
        return start
    intensity = box.y.low / roof.bandwidth_bytes_per_s
    return (box.x.clip(intensity), box.bottom)


def _slope_name(pen: Pen, start: tuple[float, float], knee: tuple[float, float], text: str) -> None:
    run, rise = knee[0] - start[0], knee[1] - start[1]
    if math.hypot(run, rise) < 90:
        return
    x, y = start[0] + run * 0.3, start[1] + rise * 0.3
    turn = math.degrees(math.atan2(rise, run))
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    pen.raw(
        f'<text class="rl" text-anchor="middle" transform="translate({x:.1f} {y:.1f}) rotate({turn:.1f})" dy="-6">{safe}</text>'
    )
