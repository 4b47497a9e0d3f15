"""A prompt that was asked before is computed again: answers are equal, and its tokens take their time."""

from __future__ import annotations

from vibeserve.judge.client import Answer
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "repeat"
#: A prefix cache may skip the prompt, never the tokens: so fast a repetition was not computed.
LEAST_SHARE = 0.4


def look(session: Session) -> ProbeResult:
    """Fails where repetitions decode in under two fifths of the first time, or (in float32) differ."""
    pairs = [(a, b) for a, b in zip(session.cold, session.warm, strict=True) if not a.error and not b.error]
    times = [(decode_s(cold), decode_s(warm)) for cold, warm in pairs]
    known = [(cold, warm) for cold, warm in times if cold is not None and warm is not None]
    if not known:
        return ProbeResult(NAME, None, "not run: no answer of more than one piece to time")
    if session.exact and any(cold.text != warm.text for cold, warm in pairs):
        return ProbeResult(NAME, False, "the same prompt, asked again alone, had another answer")
    # The quickest of each side: a disturbance only ever makes one slower.
    cold_s, warm_s = min(cold for cold, _ in known), min(warm for _, warm in known)
    share = warm_s / cold_s if cold_s > 0 else 1.0
    detail = f"tokens of a repeated prompt took {share:.0%} of the first time"
    return ProbeResult(NAME, share >= LEAST_SHARE, detail, {"cold_s": cold_s, "warm_s": warm_s})


def decode_s(answer: Answer) -> float | None:
    """Seconds from the first text to the last; None where there is no such span."""
    if answer.first_s is None or answer.last_s is None or len([1 for _, text, _ in answer.arrivals if text]) < 2:
        return None
    return answer.last_s - answer.first_s
