"""An answer does not depend on who else is there."""

from __future__ import annotations

from vibeserve.judge.probes.agreement import LEAST_SHARED, shared
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "batch"


def look(session: Session) -> ProbeResult:
    """A prompt alone and in company: equal in float32; elsewhere alike for a good part of the beginning."""
    pairs = [(a, b) for a, b in zip(session.alone, session.beside, strict=True) if not a.error and not b.error]
    if not pairs:
        return ProbeResult(NAME, None, "not run: no prompt was answered both alone and in company")
    shares = [shared(alone, beside) for alone, beside in pairs]
    mean = sum(shares) / len(shares)
    if session.exact:
        same = [
            a.text == b.text and (a.token_ids == b.token_ids or None in (a.token_ids, b.token_ids)) for a, b in pairs
        ]
        detail = f"{sum(same)} of {len(pairs)} answers are the same alone and in company"
        return ProbeResult(NAME, all(same), detail, {"shares": shares})
    detail = f"{len(pairs)} prompts alone and in company: {mean:.0%} of the answers up to the first difference"
    return ProbeResult(NAME, mean >= LEAST_SHARED, detail, {"shares": shares})
