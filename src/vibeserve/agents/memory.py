"""What was tried, and what the designer should know of it, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from vibeserve.agents.agent import SearchState, Tried
from vibeserve.agents.desk import Remembered

#: Rounds without a gain after which the designer is told to change direction, and after which the search ends.
WARN_ROUNDS, STOP_ROUNDS = 3, 6


def barren(state: SearchState) -> int:
    """How many rounds in a row, up to now, brought nothing better."""
    count = 0
    for tried in reversed(state.history):
        if tried.verdict == "kept":
            break
        count += 1
    return count


def remembered(hypotheses: Sequence[Remembered], history: Sequence[Tried]) -> str:
    """One paragraph a hypothesis: what it said, its state, what was measured, and why it ended so."""
    if not hypotheses:
        return "Nothing has been tried yet."
    outcomes = {tried.round: tried for tried in history}
    return "\n".join(_entry(entry, outcomes.get(entry.round)) for entry in hypotheses)


def _entry(entry: Remembered, outcome: Tried | None) -> str:
    line = f"- Round {entry.round}, on {entry.parent}: **{entry.title}** ({entry.state}). {entry.hypothesis}"
    if outcome is None:
        return line
    line += f" → candidate {outcome.candidate}: {outcome.verdict}"
    if outcome.ratio is not None:
        line += f", measured {outcome.ratio:.3g} times the one that it was compared with"
    if outcome.expected_ratio is not None:
        line += f" (hoped for: {outcome.expected_ratio:.3g})"
    return f"{line}. {entry.mechanism or outcome.reason}"
