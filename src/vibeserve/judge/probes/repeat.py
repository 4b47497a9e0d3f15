"""A prompt that was asked before is computed again: answers are equal, and its tokens take their time."""

from __future__ import annotations

import math
import statistics

from vibeserve.judge.client import Answer
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import AHEAD, Session
from vibeserve.measure.statistics import t_quantile

NAME = "repeat"
#: A prefix cache may skip the prompt, never the tokens: so fast a repetition was not computed.
LEAST_SHARE = 0.4
#: Below this a span is mostly the machine's noise, and says nothing.
LEAST_SPAN_S = 0.02
#: Shorter shares count as this one: how far below a hundredth an answer from memory lies is chance, and no spread.
FLOOR = 0.02
LEAST_PAIRS = 3
CONFIDENCE = 0.99


def look(session: Session) -> ProbeResult:
    """Fails where repetitions surely decode in under two fifths of a first time, or (in float32) differ.

    Each repetition is paired with a first time taken beside it; sure is the upper end of Student's t interval of the mean
    log ratio, so that one disturbance proves nothing.
    """
    again = [(a, b) for a, b in zip(session.cold, session.warm, strict=False) if not a.error and not b.error]
    if session.exact and any(cold.text != warm.text for cold, warm in again):
        return ProbeResult(NAME, False, "the same prompt, asked again alone, had another answer")
    spans = [(decode_s(cold), decode_s(warm)) for cold, warm in zip(session.cold[AHEAD:], session.warm, strict=False)]
    pairs = [(cold, warm) for cold, warm in spans if cold is not None and warm is not None]
    if len(pairs) < LEAST_PAIRS:
        return ProbeResult(NAME, None, "not run: too few answers of more than one piece to time")
    cold_s = statistics.median(cold for cold, _ in pairs)
    if cold_s < LEAST_SPAN_S:
        return ProbeResult(NAME, None, f"not run: a whole answer takes {cold_s * 1e3:.0f} ms, too little to compare")
    share, upper = share_of(pairs)
    detail = f"tokens of a repeated prompt took {share:.0%} of a first time (at most {upper:.0%}, {len(pairs)} pairs)"
    return ProbeResult(NAME, upper >= LEAST_SHARE, detail, {"share": share, "upper": upper, "pairs": pairs})


def share_of(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """(repetition over first time, the upper end of its one-sided interval), from pairs of (first, repetition) seconds."""
    logs = [math.log(max(warm / cold, FLOOR)) for cold, warm in pairs if cold > 0]
    mean = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs)) * t_quantile(CONFIDENCE, len(logs) - 1)
    return math.exp(mean), math.exp(mean + error)


def decode_s(answer: Answer) -> float | None:
    """Seconds from the first text to the last; None where there is no such span."""
    if answer.error or answer.first_s is None or answer.last_s is None:
        return None
    if len([text for _, text, _ in answer.arrivals if text]) < 2:
        return None
    return answer.last_s - answer.first_s
