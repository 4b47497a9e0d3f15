"""A prompt that was asked before is computed again: answers are equal, and its tokens take their time."""

from __future__ import annotations

from vibeserve.judge.client import Answer
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "repeat"
#: A prefix cache may skip the prompt, never the tokens: so fast a repetition was not computed.
LEAST_SHARE = 0.4
#: Below this a span is mostly the machine's noise, and says nothing.
LEAST_SPAN_S = 0.02


def look(session: Session) -> ProbeResult:
    """Fails where repetitions decode in under two fifths of a first time, or (in float32) differ."""
    pairs = [(a, b) for a, b in zip(session.cold, session.warm, strict=True) if not a.error and not b.error]
    if session.exact and any(cold.text != warm.text for cold, warm in pairs):
        return ProbeResult(NAME, False, "the same prompt, asked again alone, had another answer")
    cold = [span for answer in (*session.cold, *session.later) if (span := decode_s(answer)) is not None]
    warm = [span for answer in session.warm if (span := decode_s(answer)) is not None]
    if not cold or not warm:
        return ProbeResult(NAME, None, "not run: no answer of more than one piece to time")
    # The quickest of each side, first times taken before and after: a disturbance only ever makes one slower.
    cold_s, warm_s = min(cold), min(warm)
    if cold_s < LEAST_SPAN_S:
        return ProbeResult(NAME, None, f"not run: a whole answer takes {cold_s * 1e3:.0f} ms, too little to compare")
    detail = f"tokens of a repeated prompt took {warm_s / cold_s:.0%} of a first time"
    return ProbeResult(NAME, warm_s / cold_s >= LEAST_SHARE, detail, {"cold_s": cold_s, "warm_s": warm_s})


def decode_s(answer: Answer) -> float | None:
    """Seconds from the first text to the last; None where there is no such span."""
    if answer.first_s is None or answer.last_s is None or len([1 for _, text, _ in answer.arrivals if text]) < 2:
        return None
    return answer.last_s - answer.first_s
