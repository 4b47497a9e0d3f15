"""Charts are well-formed, say what they show, escape what they are given, and survive what is odd."""

from __future__ import annotations

import math
import random
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.sample_sections import every_chart

from vibeserve.report import svg
from vibeserve.report.chart import NARROW, WIDE, Pen, shorten, text_width
from vibeserve.report.labels import Label, along, place
from vibeserve.report.lanes import MOST_BOXES, _busy

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>\"&'</script>"


@pytest.mark.parametrize("chart", every_chart(), ids=lambda chart: chart.title)
def test_both_drawings_are_named_and_lie_inside_their_paper(chart: svg.Chart) -> None:
    for markup, width in ((chart.wide, WIDE), (chart.narrow, NARROW)):
        root = ET.fromstring(markup)
        assert root.get("role") == "img"
        assert root.get("aria-label") == chart.title
        assert root.findtext(f"{SVG}desc") == chart.description
        box = [float(number) for number in str(root.get("viewBox")).split()]
        assert box[2] == width
        for text in root.iter(f"{SVG}text"):
            if text.get("transform"):
                continue
            size = text_width(text.text or "", 11.5)
            x = float(text.get("x", 0))
            left = {"end": x - size, "middle": x - size / 2}.get(text.get("text-anchor", ""), x)
            assert left >= -8, (chart.title, width, text.text)
            assert left + size <= width + 12, (chart.title, width, text.text)
            assert 0 <= float(text.get("y", 0)) <= box[3]
    assert chart.rows
    assert all(len(row) == len(chart.columns) for row in chart.rows)


@pytest.mark.parametrize("chart", every_chart(HOSTILE), ids=lambda chart: chart.title)
def test_names_are_escaped(chart: svg.Chart) -> None:
    for markup in (chart.wide, chart.narrow):
        ET.fromstring(markup)
        assert "<script" not in markup


def test_numbers_of_a_chart_are_those_given() -> None:
    chart = svg.line_chart("t", [svg.Series("a", [(1, 2.5), (2, 3.5)])], x=svg.Axis("x"), y=svg.Axis("y", "s"))
    assert chart.columns == ("series", "x", "y (s)")
    assert chart.rows == (("a", 1, 2.5), ("a", 2, 3.5))


@pytest.mark.parametrize("points", [[], [(1.0, 5.0)], [(1.0, math.nan), (2.0, 3.0)], [(0.0, 0.0), (0.0, 0.0)]])
def test_odd_points_draw_all_the_same(points: list[tuple[float, float]]) -> None:
    for kind in ("linear", "log"):
        chart = svg.line_chart("t", [svg.Series("a", points)], x=svg.Axis("x"), y=svg.Axis("y", kind=kind))  # type: ignore[arg-type]
        assert "nan" not in chart.wide
        ET.fromstring(chart.wide)


def test_charts_of_nothing() -> None:
    for chart in (
        svg.bars("t", [], [], axis=svg.Axis("x")),
        svg.intervals("t", [], axis=svg.Axis("x")),
        svg.timeline("t", []),
        svg.log_log_roofline("t", [], []),
        svg.latency_strip("t", []),
        svg.sparkline([]),
        svg.sparkline([None, math.nan]),
    ):
        ET.fromstring(chart.wide)


def test_a_standalone_file_carries_its_palette() -> None:
    text = every_chart()[0].standalone()
    root = ET.fromstring(text)
    assert "prefers-color-scheme: dark" in str(root.findtext(f"{SVG}style"))


def test_the_roofs_meet_at_the_ridge() -> None:
    roof = svg.Roof("float32", 157.2864e12, 0.75e12)
    assert roof.ridge == pytest.approx(209.7152)
    assert roof.attainable(100) == pytest.approx(75e12)
    assert roof.attainable(819.2) == 157.2864e12


def test_a_counted_point_lies_on_the_roof() -> None:
    chart = svg.log_log_roofline("t", [svg.Roof("r", 100.0, 10.0)], [svg.RoofPoint("a", 5.0), svg.RoofPoint("b", 50.0)])
    speeds = {row[0]: row[2] for row in chart.rows}
    assert (speeds["a"], speeds["b"]) == (50.0, 100.0)


def test_labels_do_not_lie_on_each_other() -> None:
    draw = random.Random(5)
    labels = [Label(draw.uniform(100, 500), draw.uniform(50, 250), f"candidate {i}") for i in range(14)]
    placed = place(labels, (0, 0, 720, 300))
    boxes = []
    for item in placed:
        width = text_width(item.label.text, 11.5)
        left = {"end": item.x - width, "middle": item.x - width / 2}.get(item.anchor, item.x)
        boxes.append((left, item.y - 9, left + width, item.y + 2))
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            assert wide <= 2 or high <= 2
    assert len(placed) >= 10


def test_along_stays_between_its_ends() -> None:
    assert all(box[0] >= 0 and box[2] <= 102 for box in along((0, 0), (100, 0)))


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 30)), min_size=1, max_size=30))
def test_busy_share_is_the_union_of_the_boxes(boxes: list[tuple[float, float]]) -> None:
    starts = np.array([start for start, _ in boxes])
    ends = starts + np.array([length for _, length in boxes])
    edges = np.linspace(0, 130, 27)
    busy = _busy(starts, ends, edges)
    fine = np.linspace(0, 130, 26 * 200 + 1)
    middle = (fine[1:] + fine[:-1]) / 2
    inside = np.zeros(len(middle), dtype=bool)
    for start, end in zip(starts, ends, strict=True):
        inside |= (middle >= start) & (middle < end)
    brute = inside.reshape(26, 200).mean(axis=1)
    assert np.all(busy >= -1e-9)
    assert np.all(busy <= 1 + 1e-9)
    assert np.allclose(busy, brute, atol=len(boxes) * 2 / 200)


def test_a_timeline_of_a_million_boxes_is_small() -> None:
    starts = np.arange(1_000_000) * 1e-6
    chart = svg.timeline("t", [svg.Lane("busy", starts, starts + 5e-7)])
    assert len(chart.wide) < 60_000
    assert len(re.findall("<rect", chart.wide)) <= MOST_BOXES + WIDE
    assert chart.rows[0][1] == 1_000_000


def test_latency_strip_shows_failures_apart() -> None:
    requests = [svg.Request(0.0, 0.1, 1.0), svg.Request(1.0, None, None)]
    chart = svg.latency_strip("t", [("a", requests)])
    assert {row[0] for row in chart.rows} == {"a", "a: failed"}
    assert "a: failed" in chart.wide


def test_text_is_measured_and_cut() -> None:
    assert text_width("iii") < text_width("mmm")
    assert shorten("a long name", 40).endswith("…")
    assert text_width(shorten("a long name", 40)) <= 40
    assert shorten("short", 400) == "short"


def test_a_pen_leaves_out_boxes_without_size() -> None:
    pen = Pen(10, 10)
    pen.rect(0, 0, 0, 5, "b")
    assert "<rect" not in pen.svg("t", "d")
