"""Every request is answered."""

from __future__ import annotations

from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "answers"


def look(session: Session) -> ProbeResult:
    """Fails where a request had no whole answer."""
    wrong = [answer.error for answer in session.all if answer.error]
    if wrong:
        return ProbeResult(NAME, False, f"{len(wrong)} of {len(session.all)} requests were not answered: {wrong[0]}")
    return ProbeResult(NAME, True, f"{len(session.all)} requests answered")
