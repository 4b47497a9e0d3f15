"""Another prompt has another answer."""

from __future__ import annotations

from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "sensitivity"


def look(session: Session) -> ProbeResult:
    """Prompts that share nothing but their form must not all be answered alike, unless the reference does so too."""
    texts = [answer.text for answer in session.cold if not answer.error]
    if len(texts) < 2:
        return ProbeResult(NAME, None, "not run: fewer than two answers")
    different = len(set(texts))
    if different > 1:
        return ProbeResult(NAME, True, f"{different} different answers to {len(texts)} different prompts")
    truths = {answer.text for answer in session.oracle if not answer.error}
    if len(truths) == 1:
        return ProbeResult(NAME, True, "one answer to all prompts, as the reference gives")
    return ProbeResult(NAME, False, f"the same answer to {len(texts)} different prompts")
