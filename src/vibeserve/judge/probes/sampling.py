"""Temperature and seed are heeded, and the model that samples is the one that answers greedily."""

from __future__ import annotations

from vibeserve.judge.probes.agreement import LEAST_SHARED, shared
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import FEW_TEXTS, Session

NAME = "sampling"
LEAST_TOKENS = 6


def look(session: Session) -> ProbeResult:
    """At temperature 1 other seeds give other texts, not two in all where the reference has one for each; one seed gives one
    text, where the reference keeps to that. In float32, where next to nothing is left to chance, the answer is the greedy one.
    """
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
    truths = [one.text for one in session.oracle_sampled[:2] if not one.error]
    if session.exact and len(truths) == 2 and truths[0] == truths[1] and first != same:
        return ProbeResult(NAME, False, "one seed gave two texts")
    many = len({one.text for one in session.oracle_sampled[1:] if not one.error})
    found = len({first, *others})
    if found <= FEW_TEXTS < many == 1 + len(others):
        return ProbeResult(NAME, False, f"{many} seeds gave {found} texts, where the reference has one for each")
    pairs = [
        (cool, cold) for cool, cold in zip(session.cool, session.cold, strict=False) if not (cool.error or cold.error)
    ]
    if session.exact and pairs and max(shared(cool, cold) for cool, cold in pairs) < LEAST_SHARED:
        return ProbeResult(NAME, False, "at a temperature of nearly none, answers are others than the greedy ones")
    return ProbeResult(NAME, True, f"{1 + len(others)} seeds at temperature 1 gave {len({first, *others})} texts")
