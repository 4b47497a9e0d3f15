"""Greedy answers to fresh prompts are the reference's."""

from __future__ import annotations

from vibeserve.judge.client import Answer
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "agreement"
#: Where a lower precision is allowed answers may part at a near tie; a server that runs another model parts at once.
LEAST_SHARED = 0.3


def look(session: Session) -> ProbeResult:
    """Exact where the bundle is float32 alone; else answers must on average share a good part of their beginning."""
    pairs = [
        (truth, answer)
        for truth, answer in (*zip(session.oracle, session.fresh, strict=False), *((t, a) for a, t in session.formal))
        if not truth.error and not answer.error
    ]
    if not pairs:
        return ProbeResult(NAME, None, "not run: the reference could not be asked")
    shares = [shared(truth, answer) for truth, answer in pairs]
    mean = sum(shares) / len(shares)
    detail = f"{len(pairs)} fresh prompts: {mean:.0%} of the reference's answers"
    if session.exact:
        return ProbeResult(NAME, min(shares) == 1.0, detail, {"shares": shares})
    return ProbeResult(NAME, mean >= LEAST_SHARED, f"{detail} up to the first difference", {"shares": shares})


def shared(truth: Answer, answer: Answer) -> float:
    """The part of the reference's answer that the other one begins with: by ids where both have them, and by characters."""
    shares = []
    if truth.token_ids and answer.token_ids:
        shares.append(_common(truth.token_ids, answer.token_ids) / len(truth.token_ids))
    if truth.text:
        # The last character may be held back until its bytes are whole.
        compared = truth.text[:-1] or truth.text
        shares.append(_common(compared, answer.text) / len(compared))
    elif not shares:
        shares.append(0.0 if answer.text else 1.0)
    return min(shares)


def _common(left: tuple[int, ...] | str, right: tuple[int, ...] | str) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
