"""Temperature and seed are heeded."""

from __future__ import annotations

from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "sampling"
LEAST_TOKENS = 6


def look(session: Session) -> ProbeResult:
    """At temperature 1 other seeds give other texts; one seed gives one text, where the reference keeps to that."""
    if any(one.refused for one in session.sampled):
        return ProbeResult(NAME, None, "not run: the server does not know temperature or seed")
    wrong = [one.error for one in session.sampled if one.error]
    if wrong:
        return ProbeResult(
            NAME, False, f"{len(wrong)} of {len(session.sampled)} sampled requests were not answered: {wrong[0]}"
        )
    if session.sampled[0].asked < LEAST_TOKENS:
        return ProbeResult(NAME, None, "not run: answers are too short to differ for certain")
    first, same, *others = (one.text for one in session.sampled)
    if len({first, *others}) == 1:
        return ProbeResult(NAME, False, f"{1 + len(others)} seeds at temperature 1 gave one text")
    truths = [one.text for one in session.oracle_sampled if not one.error]
    if session.exact and len(truths) == 2 and truths[0] == truths[1] and first != same:
        return ProbeResult(NAME, False, "one seed gave two texts")
    return ProbeResult(NAME, True, f"{1 + len(others)} seeds at temperature 1 gave {len({first, *others})} texts")
