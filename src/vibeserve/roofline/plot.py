"""The drawings: every variant, core count and measured point under its roof; and a sweep's curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vibeserve.base.errors import InputError
from vibeserve.report import svg
from vibeserve.report.chart import Chart
from vibeserve.roofline.analysis import Analysis
from vibeserve.roofline.bounds import Bounds, Roof, bounds, roof
from vibeserve.roofline.counting import count


@dataclass(frozen=True, slots=True)
class CountedPoint:
    """One variant on one core count."""

    variant: str
    cores: int
    bounds: Bounds


def counted_points(analysis: Analysis) -> tuple[list[tuple[int, Roof]], list[CountedPoint]]:
    """Roofs and points of every core count that the machine has and the variants split over, the used one first."""
    machine = analysis.machine
    others = [] if analysis.overrides else [lnc for lnc in machine.lnc if lnc != analysis.lnc]
    roofs: list[tuple[int, Roof]] = [(analysis.variants[0].over.cores, analysis.variants[0].over)]
    points = [CountedPoint(one.name, one.numbers.cores, one.bounds) for one in analysis.variants]
    for lnc in others:
        over = roof(machine, lnc, dtype=analysis.dtype)
        roofs.append((lnc, over))
        for one in analysis.variants:
            variant = analysis.operation.variant(one.name)
            rows = machine.array.rows if machine.array else 0
            try:
                numbers = count(analysis.operation, variant, over.cores, rows).numbers(analysis.sizes)
            except InputError:
                continue  # this variant does not split over that many cores: it has no point there
            points.append(CountedPoint(one.name, lnc, bounds(numbers, over)))
    return roofs, points


def roofline_chart(analysis: Analysis) -> Chart:
    """The log-log roofline: a roof for each core count (and kind of work), a ring for each count, a disc for each
    measurement. A measurement without a time lies on the used roof, at its intensity."""
    roofs, points = counted_points(analysis)
    many = len(roofs) > 1
    drawn: dict[tuple[float, float], svg.Roof] = {}
    for point in points:
        peak, width = float(point.bounds.peak), float(point.bounds.bandwidth)
        name = analysis.machine.name + (f", LNC={point.cores}" if many else "")
        drawn.setdefault((peak, width), svg.Roof(name, peak, width))
    marks = []
    for point in points:
        found = point.bounds
        name = f"{point.variant}, LNC={point.cores}" if many else point.variant
        speed = min(float(found.peak), float(found.intensity * found.bandwidth))
        note = f"{found.bound}-bound, ridge {float(found.ridge):.1f}"
        marks.append(svg.RoofPoint(name, float(found.intensity), speed, "counted", note, point.variant))
    marks += _measured(analysis)
    return svg.log_log_roofline(
        f"Roofline of {analysis.operation.name} on {analysis.machine.name}", list(drawn.values()), marks
    )


def _measured(analysis: Analysis) -> list[svg.RoofPoint]:
    by_variant: dict[str, dict[str, float]] = {}
    for item in analysis.measured:
        by_variant.setdefault(item.variant, {})[item.metric] = item.measured
    found = []
    for name, metrics in by_variant.items():
        variant = analysis.variant(name)
        moved = metrics.get("hbm_read_bytes", 0.0) + metrics.get("hbm_write_bytes", 0.0)
        useful = float(variant.bounds.work)
        intensity = (
            metrics.get("mm_arithmetic_intensity") or metrics.get("intensity") or (useful / moved if moved else None)
        )
        seconds = metrics.get("total_time") or metrics.get("latency_s")
        if intensity is None:
            if not seconds:
                continue
            intensity = float(variant.bounds.intensity)
        roof_speed = min(float(variant.bounds.peak), intensity * float(variant.bounds.bandwidth))
        note = (
            f"{useful / seconds:.4g} FLOP/s measured"
            if seconds
            else "only the intensity is measured: drawn on the roof"
        )
        kind: Literal["measured"] = "measured"
        marks = svg.RoofPoint(
            f"{name}, measured", intensity, useful / seconds if seconds else roof_speed, kind, note, name
        )
        found.append(marks)
    return found


def sweep_charts(analysis: Analysis) -> list[Chart]:
    """Intensity against the ridge, and the time bounds, along the sweep."""
    sweep = analysis.sweep
    ridges = {round(float(one.bounds.ridge), 6): one.name for one in analysis.variants}
    rules = [svg.Rule(ridge, f"ridge {ridge:.4g}") for ridge in ridges]
    x = svg.Axis(sweep.dim, kind="log")
    intensity = [
        svg.Series(name, [(p.size, p.intensity) for p in points], marks=len(points) < 40)
        for name, points in sweep.points.items()
    ]
    times = []
    for place, (name, points) in enumerate(sweep.points.items()):
        few = len(points) < 40
        times.append(svg.Series(f"{name}, overlapped", [(p.size, p.t_lower_s) for p in points], marks=few, color=place))
        times.append(
            svg.Series(
                f"{name}, not overlapped",
                [(p.size, p.t_upper_s) for p in points],
                marks=False,
                dashed=True,
                color=place,
            )
        )
    return [
        svg.line_chart(
            f"Intensity along {sweep.dim}",
            intensity,
            x=x,
            y=svg.Axis("intensity", "FLOPs/byte", kind="log"),
            rules=rules,
        ),
        svg.line_chart(f"Time bounds along {sweep.dim}", times, x=x, y=svg.Axis("time", "s", kind="log")),
    ]
