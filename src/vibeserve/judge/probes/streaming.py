"""A stream brings tokens as they are computed, and the same text as the whole answer."""

from __future__ import annotations

from vibeserve.judge.client import Answer
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "streaming"
#: Of the whole time, the least part between first and last text for an answer that was not held back and flushed.
LEAST_SPREAD = 0.1
LEAST_TOKENS = 8


def look(session: Session) -> ProbeResult:
    """Fails where every answer came at once at its end, or (in float32) where stream and whole differ."""
    answers = [answer for answer in (*session.cold, *session.warm) if not answer.error]
    spreads = [spread for answer in answers if (spread := spread_of(answer)) is not None]
    if not spreads:
        return ProbeResult(NAME, None, "not run: no streamed answer is long enough")
    comparable = session.exact and not session.whole.error and not session.cold[0].error
    if comparable and session.cold[0].text != session.whole.text:
        return ProbeResult(NAME, False, "the streamed text is not the text of the whole answer")
    detail = f"first to last text took {max(spreads):.0%} of the answer's time"
    return ProbeResult(NAME, max(spreads) >= LEAST_SPREAD, detail, {"spreads": spreads})


def spread_of(answer: Answer) -> float | None:
    """The part of the answer's time between its first and its last text."""
    if answer.asked < LEAST_TOKENS or answer.first_s is None or answer.last_s is None or answer.total_s <= 0:
        return None
    return (answer.last_s - answer.first_s) / answer.total_s
