"""What a server says of its times is not more than what was seen from outside."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from vibeserve.judge.client import Answer
from vibeserve.judge.probes.repeat import decode_s
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "clock"
#: Names under which servers tell how long a whole answer took, and their units in seconds.
WHOLE = {
    "total_time": 1.0, "total_time_s": 1.0, "total_s": 1.0, "e2e_latency": 1.0, "e2e_latency_s": 1.0, "latency_s": 1.0,
    "latency_ms": 1e-3, "total_ms": 1e-3, "total_time_ms": 1e-3, "total_duration": 1e-9,
}  # fmt: skip
#: Names under which they tell how long its tokens took.
DECODE = {"predicted_ms": 1e-3, "completion_time": 1.0, "decode_s": 1.0, "decode_time": 1.0, "eval_duration": 1e-9}
#: So much less than was seen is no difference of two clocks.
LEAST_SHARE = 0.5
LEAST_S = 0.02
#: Seconds by which an answer's date may lie ahead of our clock.
AHEAD_S = 60.0


def look(session: Session) -> ProbeResult:
    """Of answers that had nobody beside them: what the server claims, as a share of what we saw; no number of a server counts."""
    answers = [answer for answer in session.alone if not answer.error]
    if not answers:
        return ProbeResult(NAME, None, "not run: nothing was answered")
    ahead = [made - answer.at_s for answer in answers if isinstance(made := answer.said.get("created"), int | float)]
    if ahead and min(ahead) > AHEAD_S:
        return ProbeResult(NAME, False, f"answers are dated {min(ahead):.0f} s ahead of the clock of this machine")
    shares = [share for answer in answers for share in shares_of(answer)]
    if not shares:
        return ProbeResult(NAME, True, "the server claims no times; latencies are by our clock alone", {"shares": []})
    share = statistics.median(shares)
    detail = f"the server claims {share:.0%} of the time that was seen from outside"
    return ProbeResult(NAME, share >= LEAST_SHARE, detail, {"shares": shares})


def shares_of(answer: Answer) -> Iterator[float]:
    """Each claim over what was seen; claims about spans too short to compare are left out."""
    for seen_s, names in ((answer.total_s, WHOLE), (decode_s(answer), DECODE)):
        if seen_s is not None and seen_s >= LEAST_S:
            for name, value in numbers({**answer.said, "usage": answer.usage}):
                if name in names:
                    yield value * names[name] / seen_s


def numbers(document: Any) -> Iterator[tuple[str, float]]:
    """Every number in a JSON document with the name it stands under."""
    for name, value in document.items() if isinstance(document, dict) else ():
        if isinstance(value, dict):
            yield from numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)
