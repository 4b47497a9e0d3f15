"""Whole answers where copying would show: prompts to which the true answer leaves a loop that it was in.

Most answers that have said the same twice go on saying it, so that a server which copies instead of computing is right in
nearly all of them. The reference is asked first, for as long as there is time; the server is then asked those prompts to
which the reference repeats itself and stops doing so, among others for the company.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from vibeserve.judge.client import Answer, Client
from vibeserve.judge.probes.agreement import shared
from vibeserve.judge.result import ProbeResult
from vibeserve.judge.traffic import Prompt
from vibeserve.judge.workers import workers

NAME = "loops"
#: The reference is asked for so many answers at most, and for so long; it may be slow.
MOST, MOST_S = 64, 4.0
#: So many answers that leave a loop are enough.
ENOUGH = 4
#: Tokens of a loop that is looked for; it has been gone through twice, and has so many tokens in all.
LONGEST, LEAST = 8, 4
#: Where a lower precision is allowed, leaving a loop may be a near tie: so many answers must all stay in theirs.
LEAST_STAYING = 3


def asked(
    client: Client,
    oracle: Client,
    prompts: Iterator[Prompt],
    length: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[Answer, Answer]]:
    """(the reference's whole answer, the server's), asked of the server together, as many as the benchmark has at once."""
    begin_s, truths, telling = clock(), list[Answer](), 0
    while len(truths) < MOST and telling < ENOUGH and clock() - begin_s < MOST_S:
        truth = oracle.ask(next(prompts), length, stream=False)
        if truth.error:
            break
        truths.append(truth)
        telling += left_at(truth.token_ids or ()) is not None
    width = max(client.traffic.width, 2)
    # Those that leave a loop first; a sort keeps the order of the others.
    chosen = sorted(truths, key=lambda truth: left_at(truth.token_ids or ()) is None)[: max(ENOUGH, width)]
    with workers(width) as pool:
        answers = list(pool.map(lambda truth: client.ask(truth.prompt, length), chosen))
    return list(zip(chosen, answers, strict=True))


def judged(pairs: Sequence[tuple[Answer, Answer]], exact: bool) -> ProbeResult:
    """In float32 every answer is the reference's to its end. Elsewhere not all of several may stay in a loop that it leaves."""
    wrong = [answer.error for _, answer in pairs if answer.error]
    if wrong:
        return ProbeResult(NAME, False, f"{len(wrong)} of {len(pairs)} requests were not answered: {wrong[0]}")
    if not pairs:
        return ProbeResult(NAME, None, "not run: the reference could not be asked")
    leaving = sum(left_at(truth.token_ids or ()) is not None for truth, _ in pairs)
    document = {"answers": len(pairs), "leaving": leaving}
    if exact:
        same = sum(shared(truth, answer) == 1.0 for truth, answer in pairs)
        detail = f"{same} of {len(pairs)} whole answers are the reference's; {leaving} of its own leave a loop"
        return ProbeResult(NAME, same == len(pairs), detail, document)
    stays = [stayed for truth, answer in pairs if (stayed := stays_in(truth, answer)) is not None]
    if len(stays) < LEAST_STAYING:
        return ProbeResult(NAME, None, f"not run: only {len(stays)} answers came to where a loop is left", document)
    detail = f"{sum(stays)} of {len(stays)} answers stay in a loop that the reference leaves"
    return ProbeResult(NAME, not all(stays), detail, {**document, "staying": sum(stays)})


def stays_in(truth: Answer, answer: Answer) -> bool | None:
    """Whether the answer goes on with the loop where the reference leaves it; None where it does not come that far."""
    ids, other = truth.token_ids or (), answer.token_ids or ()
    found = left_at(ids)
    if found is None:
        return None
    place, period = found
    if len(other) <= place or other[:place] != ids[:place]:
        return None
    return other[place] == ids[place - period]


def left_at(ids: Sequence[int]) -> tuple[int, int] | None:
    """(place, period) of the first token that breaks a loop of up to `LONGEST` tokens gone through twice; None without."""
    for place in range(LEAST, len(ids)):
        for period in range(1, LONGEST + 1):
            begin = place - max(2 * period, LEAST)
            if begin < 0:
                break
            looping = all(ids[at] == ids[at - period] for at in range(begin + period, place))
            if looping and ids[place] != ids[place - period]:
                return place, period
    return None
