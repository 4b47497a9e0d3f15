"""A new life begins with nothing: what was asked in the one before is computed again."""

from __future__ import annotations

from vibeserve.judge.probes.repeat import LEAST_PAIRS, LEAST_SHARE, LEAST_SPAN_S, decode_s, share_of
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "restart"


def look(session: Session) -> ProbeResult:
    """Fails where answers of the life before come in under two fifths of a first time, or (in float32) are others now."""
    if not session.revived:
        return ProbeResult(NAME, None, "not run: the server was not restarted")
    wrong = [one.error for pair in session.revived for one in pair if one.error]
    if wrong:
        return ProbeResult(NAME, False, f"after a restart {len(wrong)} requests were not answered: {wrong[0]}")
    before = dict(zip((one.prompt for one in session.cold), session.cold, strict=True))
    again = [(before[repeated.prompt], repeated) for _, repeated in session.revived if repeated.prompt in before]
    if session.exact and any(not first.error and first.text != repeated.text for first, repeated in again):
        return ProbeResult(NAME, False, "the same prompt had another answer after a restart")
    spans = [(decode_s(first), decode_s(repeated)) for first, repeated in session.revived]
    pairs = [(first, repeated) for first, repeated in spans if first is not None and repeated is not None]
    if len(pairs) < LEAST_PAIRS or min(first for first, _ in pairs) < LEAST_SPAN_S:
        return ProbeResult(NAME, None, "not run: answers come too fast, or in one piece, to time them")
    share, upper = share_of(pairs)
    detail = f"after a restart, prompts of the life before took {share:.0%} of a first time (at most {upper:.0%})"
    return ProbeResult(NAME, upper >= LEAST_SHARE, detail, {"share": share, "upper": upper, "pairs": pairs})
