"""Answers have the length that was asked for."""

from __future__ import annotations

from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "lengths"


def look(session: Session) -> ProbeResult:
    """With `ignore_eos` every answer has exactly `max_tokens` ids and ends by length."""
    answers = [answer for answer in session.all if not answer.error]
    if not answers or any(answer.token_ids is None for answer in answers):
        return ProbeResult(NAME, None, "not run: the server returns no token ids")
    if any("ignore_eos" in answer.left_out for answer in answers):
        return ProbeResult(NAME, None, "not run: the server does not know ignore_eos")
    for answer in answers:
        found = len(answer.token_ids or ())
        if found != answer.asked:
            return ProbeResult(NAME, False, f"{answer.asked} tokens were asked for, {found} came")
        if answer.finish_reason != "length":
            return ProbeResult(NAME, False, f"a full answer ends by {answer.finish_reason!r}, not by 'length'")
    return ProbeResult(NAME, True, f"{len(answers)} answers have exactly the tokens that were asked for")
