"""A stream brings tokens as they are computed, and the same text as the whole answer."""

from __future__ import annotations

from collections.abc import Sequence

from vibeserve.judge.client import Answer
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "streaming"
#: Of the whole time, the least part between first and last text for an answer that was not held back and flushed.
LEAST_SPREAD = 0.1
#: Where requests wait for one another that part is small with honest servers too. Then at least this part of the time
#: counts that the tokens take with nobody else there.
OF_ALONE = 0.5
LEAST_TOKENS = 8
#: An answer that took less is over before a busy client has looked twice.
LEAST_S = 0.02
#: Judged by the answer that is at this part from below: a busy client sees a gap in a few that came at once, and a
#: server which guesses many tokens rightly sends some answers at once.
OF_ALL = 0.75


def look(session: Session) -> ProbeResult:
    """Fails where every answer came at once at its end, or (in float32) where stream and whole differ."""
    answers = [answer for answer in (*session.cold, *session.warm) if not answer.error]
    told = [answer for answer in answers if spread_of(answer) is not None]
    if not told:
        return ProbeResult(NAME, None, "not run: no streamed answer is long enough to tell")
    comparable = session.exact and not session.whole.error and not session.cold[0].error
    if comparable and session.cold[0].text != session.whole.text:
        return ProbeResult(NAME, False, "the streamed text is not the text of the whole answer")
    spreads = [spread_of(answer) for answer in told]
    spread = _upper_quarter([part for part in spreads if part is not None])
    detail = f"first to last text took {spread:.0%} of the answer's time in the upper quarter of {len(spreads)}"
    if spread >= LEAST_SPREAD:
        return ProbeResult(NAME, True, detail, {"spreads": spreads})
    ok, why = _beside_alone(session, _upper_quarter([between(answer) for answer in told]))
    return ProbeResult(NAME, ok, f"{detail}{why}", {"spreads": spreads})


def _beside_alone(session: Session, between_s: float) -> tuple[bool | None, str]:
    """Whether tokens that came within `between_s` were held back, by the answers that had no company; and what is said of it."""
    alone = [answer for answer in session.alone if not answer.error and spread_of(answer) is not None]
    if not alone or session.brief.error:
        return False, ""
    steady = max(alone, key=between)
    # What its tokens cost, by the clock alone: it took so much longer than an answer of a few.
    cost_s = steady.total_s - session.brief.total_s
    enough_s = LEAST_SPREAD * steady.total_s
    if cost_s < enough_s and between(steady) < enough_s:
        return None, "; not judged: alone, too, the prompt takes nearly all of the time"
    if cost_s >= enough_s and between(steady) < OF_ALONE * cost_s:
        return False, f"; alone {between(steady) * 1e3:.0f} ms, where the tokens took {cost_s * 1e3:.0f} ms"
    said = f"; {between_s * 1e3:.0f} ms, alone {between(steady) * 1e3:.0f} ms"
    return between_s >= OF_ALONE * between(steady), said


def _upper_quarter(values: Sequence[float]) -> float:
    return sorted(values)[int(OF_ALL * len(values))]


def between(answer: Answer) -> float:
    """Seconds between its first and its last text; 0 where it has none."""
    return 0.0 if answer.first_s is None or answer.last_s is None else answer.last_s - answer.first_s


def spread_of(answer: Answer) -> float | None:
    """The part of the answer's time between its first and its last text; None where it is too short to tell."""
    if answer.asked < LEAST_TOKENS or answer.first_s is None:
        return None
    if answer.total_s < LEAST_S:
        return None
    return between(answer) / answer.total_s
