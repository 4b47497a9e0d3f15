"""Every request is answered."""

from __future__ import annotations

from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "answers"


def look(session: Session) -> ProbeResult:
    """Fails where a request had no whole answer."""
    answers = (*session.all, *(answer for answer, _ in session.formal))
    wrong = [answer.error for answer in answers if answer.error]
    if wrong:
        return ProbeResult(NAME, False, f"{len(wrong)} of {len(answers)} requests were not answered: {wrong[0]}")
    return ProbeResult(NAME, True, f"{len(answers)} requests answered")
