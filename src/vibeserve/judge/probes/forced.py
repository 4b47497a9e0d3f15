"""Token by token, the reference would have said the same after the same beginning."""

from __future__ import annotations

from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import Session

NAME = "top1"
#: How seldom a server that keeps the bundle's share may be accused.
CHANCE = 1e-3


def look(session: Session) -> ProbeResult:
    """Tokens drawn from all answers, each against the reference's first choice there (teacher-forced).

    In float32 every one must agree. Elsewhere the share must not be surely below the bundle's `min_top1`: the binomial
    probability of so few agreements must be at least one in a thousand.
    """
    if not session.forced:
        return ProbeResult(NAME, None, "not run: no token ids, or the reference could not be asked token by token")
    agreeing, count = sum(one.got == one.wanted for one in session.forced), len(session.forced)
    detail = f"{agreeing} of {count} tokens, drawn from all answers, are the reference's first choice"
    document = {"agreeing": agreeing, "count": count}
    if session.exact:
        return ProbeResult(NAME, agreeing == count, detail, document)
    return ProbeResult(NAME, chance_of(agreeing, count, session.min_top1) >= CHANCE, detail, document)


def chance_of(agreeing: int, count: int, share: float) -> float:
    """The probability of at most so many agreements where each comes with this share; scipy is imported late."""
    from scipy.special import bdtr

    return 1.0 if agreeing >= count else float(bdtr(agreeing, count, min(share, 1.0)))
