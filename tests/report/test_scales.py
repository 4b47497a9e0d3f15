"""Scales and ticks: round, inside, and true to order."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.report.scales import Axis, axis_unit, linear_ticks, log_ticks, scale, tick_text, tick_texts

values = st.floats(-1e12, 1e12, allow_nan=False).map(lambda x: 0.0 if abs(x) < 1e-9 else x)
positive = st.floats(1e-12, 1e15, allow_nan=False)


@given(values, values)
def test_linear_ticks_cover_the_range_in_even_round_steps(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = linear_ticks(low, high)
    if high > low and (high - low) > 1e-9 * max(abs(low), abs(high)):
        step = ticks[1] - ticks[0]
        assert ticks[0] <= low + step * 1e-6
        assert ticks[-1] >= high - step * 1e-6
        assert 2 <= len(ticks) <= 9
        mantissa = step / 10.0 ** math.floor(math.log10(step) + 1e-9)
        assert min(abs(mantissa - nice) for nice in (1.0, 2.0, 2.5, 5.0, 10.0)) < 1e-3


def test_linear_ticks_of_known_ranges() -> None:
    assert linear_ticks(0, 100) == (0, 20, 40, 60, 80, 100)
    assert linear_ticks(0, 0.7) == pytest.approx((0, 0.2, 0.4, 0.6, 0.8))
    assert len(linear_ticks(5, 5)) >= 2, "one value still has a range around it"


@given(positive, positive)
def test_log_ticks_lie_inside(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b) * 1.01
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in log_ticks(low, high))


def test_log_ticks_are_powers_of_ten_or_1_2_5() -> None:
    assert log_ticks(0.5, 50) == pytest.approx((0.5, 1, 2, 5, 10, 20, 50))
    assert log_ticks(1, 1e6) == pytest.approx((1, 10, 100, 1e3, 1e4, 1e5, 1e6))


@given(st.lists(positive, min_size=1, max_size=20), st.sampled_from(["linear", "log"]))
def test_a_scale_keeps_order_and_stays_on_paper(numbers: list[float], kind: str) -> None:
    shown = scale(Axis(kind=kind), numbers, 10, 110)  # type: ignore[arg-type]
    places = [shown(value) for value in sorted(numbers)]
    assert places == sorted(places)
    assert all(10 - 1e-6 <= place <= 110 + 1e-6 for place in places)
    assert all(10 - 1e-6 <= shown(tick) <= 110 + 1e-6 for tick in shown.ticks)


def test_a_scale_without_values_shows_an_empty_range() -> None:
    assert (scale(Axis(), [], 0, 1).low, scale(Axis(), [math.nan], 0, 1).high) == (0, 1)
    assert scale(Axis(kind="log"), [0, -3], 0, 1).low > 0


def test_fixed_ends_win_and_clip_holds_outsiders() -> None:
    shown = scale(Axis(low=10, high=20), [1, 500], 0, 100)
    assert (shown.low, shown.high) == (10, 20)
    assert (shown.clip(-5), shown.clip(99)) == (0, 100)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (1500, "1,500"), (2e6, "2M"), (3e9, "3G"), (1e-7, "1e-7"), (12.5, "12.5"), (2e20, "2e+20")],
)  # fmt: skip
def test_tick_text(value: float, text: str) -> None:
    assert tick_text(value) == text


def test_units_of_an_axis_follow_its_size() -> None:
    assert axis_unit("s", [0, 2e-4, 8e-4]) == (1e-6, "µs")
    assert axis_unit("B", [0, 4e6]) == (1e6, "MB")
    assert axis_unit("tokens/s", [0, 4e6]) == (1.0, "tokens/s")
    assert tick_texts([0, 0.1, 0.2], "s", "linear") == (["0", "100", "200"], "ms")
    assert tick_texts([1e10, 1e11, 1e12], "FLOP/s", "log") == (["10", "100", "1,000"], "GFLOP/s")
    assert tick_texts([0.1, 1, 10], "s", "log") == (["100 ms", "1 s", "10 s"], "")
    assert scale(Axis(whole=True), [0, 1], 0, 1).ticks == (0, 1)
    assert tick_texts([1e3, 1e6, 1e9], "B", "log") == (["1 kB", "1 MB", "1 GB"], "")
