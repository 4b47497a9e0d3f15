"""How a budget is spent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.search.plan import PAIRS, SHORTEST_WINDOW_S, WINDOW_S, make_plan, warning


@given(st.none() | st.floats(1, 1e5), st.none() | st.integers(1, 50))
def test_there_are_always_pairs_enough_and_windows_long_enough(budget_s: float | None, rounds: int | None) -> None:
    plan = make_plan(budget_s, rounds)
    assert plan.pairs >= PAIRS
    assert plan.final_pairs >= PAIRS
    assert SHORTEST_WINDOW_S <= plan.window_s <= WINDOW_S
    assert plan.window_s <= plan.final_window_s <= WINDOW_S
    assert plan.screen_s <= plan.window_s


@given(st.floats(60, 3000), st.floats(0, 3000))
def test_more_time_never_makes_windows_shorter(budget_s: float, more_s: float) -> None:
    assert make_plan(budget_s + more_s, None).window_s >= make_plan(budget_s, None).window_s


def test_without_a_budget_windows_are_whole() -> None:
    assert make_plan(None, None).window_s == WINDOW_S
    assert warning(make_plan(None, None)) == ""


@pytest.mark.parametrize(("budget_s", "said"), [(20.0, True), (360.0, True), (480.0, False), (3600.0, False)])
def test_a_budget_that_buys_no_second_proposal_is_told(budget_s: float, said: bool) -> None:
    assert bool(warning(make_plan(budget_s, None))) is said
