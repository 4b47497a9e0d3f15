"""A stream brings tokens as they are computed, and the same text as the whole answer."""

from __future__ import annotations

from vibeserve.judge.client import Answer
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "streaming"
#: Of the whole time, the least part between first and last text for an answer that was not held back and flushed.
LEAST_SPREAD = 0.1
LEAST_TOKENS = 8
#: An answer that took less is over before a busy client has looked twice.
LEAST_S = 0.02
#: Judged by the answer that is at this part from below: a busy client sees a gap in a few that came at once, and a
#: server which guesses many tokens rightly sends some answers at once.
OF_ALL = 0.75


def look(session: Session) -> ProbeResult:
    """Fails where every answer came at once at its end, or (in float32) where stream and whole differ."""
    answers = [answer for answer in (*session.cold, *session.warm) if not answer.error]
    spreads = [spread for answer in answers if (spread := spread_of(answer)) is not None]
    if not spreads:
        return ProbeResult(NAME, None, "not run: no streamed answer is long enough to tell")
    comparable = session.exact and not session.whole.error and not session.cold[0].error
    if comparable and session.cold[0].text != session.whole.text:
        return ProbeResult(NAME, False, "the streamed text is not the text of the whole answer")
    spread = sorted(spreads)[min(len(spreads) - 1, int(OF_ALL * len(spreads)))]
    detail = f"first to last text took {spread:.0%} of the answer's time in the upper quarter of {len(spreads)}"
    return ProbeResult(NAME, spread >= LEAST_SPREAD, detail, {"spreads": spreads})


def spread_of(answer: Answer) -> float | None:
    """The part of the answer's time between its first and its last text; None where it is too short to tell."""
    if answer.asked < LEAST_TOKENS or answer.first_s is None or answer.last_s is None:
        return None
    if answer.total_s < LEAST_S:
        return None
    return (answer.last_s - answer.first_s) / answer.total_s
