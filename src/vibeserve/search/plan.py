"""How a budget is spent: window lengths, pairs, and what is kept back for the final comparison."""

from __future__ import annotations

from dataclasses import dataclass

PAIRS = 5
WINDOW_S = 15.0
SHORTEST_WINDOW_S = 4.0
SCREEN_S = 4.0
#: What a window costs beside itself: the client's start, its calibration, its warm-up, the drain.
WINDOW_OVERHEAD_S = 3.0
#: What a round costs beside its pairs: build, start, check, probes, screen.
ROUND_FIXED_S = 45.0
#: Round 0: the reference is slow, and its checker asks it for much; kept where it was proved before.
BASELINE_S = 90.0
ROUNDS_WISHED = 3
CURVE_LEVELS = (1, 4)


@dataclass(frozen=True)
class Plan:
    """Fixed at the start and recorded. Times in seconds; `budget_s` None means no limit of time."""

    budget_s: float | None
    rounds: int | None
    pairs: int
    window_s: float
    screen_s: float
    final_pairs: int
    final_window_s: float
    curve_levels: tuple[int, ...]
    curve_window_s: float

    @property
    def round_cost_s(self) -> float:
        """What one more round is expected to cost before any has been seen."""
        return ROUND_FIXED_S + 2 * self.pairs * (self.window_s + WINDOW_OVERHEAD_S)

    @property
    def final_cost_s(self) -> float:
        """What the final comparison and the curve are expected to cost."""
        final = 2 * self.final_pairs * (self.final_window_s + WINDOW_OVERHEAD_S)
        return final + 2 * len(self.curve_levels) * (self.curve_window_s + WINDOW_OVERHEAD_S)


def make_plan(budget_s: float | None, rounds: int | None) -> Plan:
    """Windows of 15 s; shorter ones, down to 4 s, where the budget would not buy three rounds and the final pairs.

    There are never fewer than 5 pairs: Student's interval needs them. A short budget makes shorter windows, then fewer
    rounds. The final comparison, which is what is reported, gets windows half as long again as a round's.
    """
    window_s = WINDOW_S
    if budget_s is not None:
        wished = min(rounds or ROUNDS_WISHED, ROUNDS_WISHED)
        windows = 2 * PAIRS * (wished + 1.5)
        spare_s = budget_s - BASELINE_S - wished * ROUND_FIXED_S - 2 * PAIRS * WINDOW_OVERHEAD_S * (wished + 1)
        window_s = min(WINDOW_S, max(SHORTEST_WINDOW_S, spare_s / windows))
    curve = CURVE_LEVELS if budget_s is None or budget_s >= 300 else ()
    return Plan(
        budget_s=budget_s,
        rounds=rounds,
        pairs=PAIRS,
        window_s=round(window_s, 1),
        screen_s=min(SCREEN_S, window_s),
        final_pairs=PAIRS,
        final_window_s=round(min(WINDOW_S, window_s * 1.5), 1),
        curve_levels=curve,
        curve_window_s=SCREEN_S,
    )


def warning(plan: Plan) -> str:
    """What to tell a user whose budget is hardly a search; empty where it is one."""
    if plan.budget_s is None:
        return ""
    least = BASELINE_S + 2 * plan.round_cost_s + plan.final_cost_s
    if plan.budget_s >= least:
        return ""
    return f"a budget of {plan.budget_s:.0f} s may not buy two rounds and the final comparison (about {least:.0f} s): that is no search"
