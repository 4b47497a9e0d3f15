"""Text is sent as it is computed, seen with nobody else there: what a short answer costs tells when a long one could begin.

A server that computes a whole answer and then sends it piece by piece is a stream in form only. Its text comes over some
time, so that the time between first and last text does not give it away; when the first text comes does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vibeserve.judge.client import Answer, Client
from vibeserve.judge.probes.streaming import LEAST_S, LEAST_SPREAD, LEAST_TOKENS, between
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.session import FIRST_TOKENS, Session
from vibeserve.judge.traffic import Prompt

NAME = "pace"
#: (short answer, whole answer), one after the other in balanced order.
PAIRS = 4
#: First text after more than this part of what the tokens cost, in each pair, was held back.
MOST_HELD = 0.5
#: In company a step takes no less time than alone. Text that comes over less than this part of the least time alone, and
#: over less than this part of its own answer's time, was held back; a server whose requests wait in a queue, or whose steps
#: wait for company, has one of the two alone.
OF_ALONE, OF_OWN = 0.7, 0.5
#: More than this part of the answers in company being so is no chance.
MOST_HIDDEN = 0.5

Pair = tuple[Answer, Answer]


def asked(client: Client, prompts: Iterator[Prompt], length: int) -> list[Pair]:
    """Pairs of a short and a whole answer to fresh prompts, one request at a time."""
    pairs = []
    for place in range(PAIRS):
        if place % 2 == 0:
            brief = client.ask(next(prompts), FIRST_TOKENS)
            pairs.append((brief, client.ask(next(prompts), length)))
        else:
            whole = client.ask(next(prompts), length)
            pairs.append((client.ask(next(prompts), FIRST_TOKENS), whole))
    return pairs


def judged(pairs: Sequence[Pair], session: Session) -> ProbeResult:
    """Fails where every whole answer began when most of what its tokens cost was spent, or where company alone is made wait."""
    wrong = [one.error for pair in pairs for one in pair if one.error]
    if wrong:
        return ProbeResult(NAME, False, f"{len(wrong)} requests were not answered: {wrong[0]}")
    if any(whole.asked < max(LEAST_TOKENS, 2 * FIRST_TOKENS) or whole.first_s is None for _, whole in pairs):
        return ProbeResult(NAME, None, "not run: answers are too short to tell")
    beside = _beside(pairs, session)
    if beside is not None and beside > MOST_HIDDEN:
        detail = f"alone text comes as it is computed, in company {beside:.0%} of the answers were held back"
        return ProbeResult(NAME, False, detail, {"beside": beside})
    shares = [share for pair in pairs if (share := held(*pair)) is not None]
    if len(shares) < len(pairs):
        return ProbeResult(NAME, None, "not run: the tokens take too little of an answer's time", {"beside": beside})
    detail = (
        f"the first text comes after {min(shares):.0%} of what the tokens take, in the best of {len(pairs)} answers"
    )
    return ProbeResult(NAME, min(shares) <= MOST_HELD, detail, {"shares": shares, "beside": beside})


def held(brief: Answer, whole: Answer) -> float | None:
    """The part of what the tokens of `whole` cost beyond those of `brief` that was over before its first text.

    None where that cost is too small beside the rest. Below 0 where the text began before a short answer had ended.
    """
    cost_s = whole.total_s - brief.total_s
    if cost_s < max(LEAST_S, LEAST_SPREAD * whole.total_s) or whole.first_s is None:
        return None
    return (whole.first_s - brief.total_s) / cost_s


def _beside(pairs: Sequence[Pair], session: Session) -> float | None:
    """The part of the answers in company that were held back, by what they take alone; None where that is too short."""
    alone_s = [between(one) for one in (*(whole for _, whole in pairs), *session.alone) if not one.error]
    company = [one for one in (*session.cold, *session.cover) if not one.error]
    if not company or min(alone_s) < LEAST_S:
        return None
    least_s = OF_ALONE * min(alone_s)
    return sum(between(one) < min(least_s, OF_OWN * one.total_s) for one in company) / len(company)
