"""What the probes look at: a few answers of the server, asked for once and shared by all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vibeserve.judge.client import Answer, Client
from vibeserve.judge.prompts import draw, twins_of

#: Prompts that are asked twice; each repetition is paired with a first time, taken right before or after it.
PAIRS = 4
#: First times before the first repetition.
AHEAD = 2
SHORT_SHARE = 4


@dataclass(frozen=True)
class Session:
    """`cold`: streamed, each prompt for the first time. `warm`: the first of them again, `warm[k]` beside
    `cold[AHEAD + k]`. `twins`: the first prompt with another beginning, and with another end. `short`: a prompt of a
    quarter of the length. `whole`: the first prompt, not streamed. `shorter`: with a third of the tokens. `oracle`: the
    reference's answers to cold, twins and short, where it could be asked.

    `exact`: the bundle computes in float32 alone, so that equal prompts must have equal answers.
    """

    cold: tuple[Answer, ...]
    warm: tuple[Answer, ...]
    twins: tuple[Answer, ...]
    short: Answer
    whole: Answer
    shorter: Answer
    oracle: tuple[Answer, ...]
    exact: bool

    @property
    def fresh(self) -> tuple[Answer, ...]:
        """Every streamed answer to a prompt asked for the first time, as `oracle` has them."""
        return (*self.cold, *self.twins, self.short)

    @property
    def all(self) -> tuple[Answer, ...]:
        """Every answer of the server under probe."""
        return (*self.fresh, *self.warm, self.whole, self.shorter)


def ask(
    client: Client, seed: int, *, prompt_tokens: int, output_tokens: int, oracle: Client | None, exact: bool
) -> Session:
    """Ask the server, and the reference for the beginning of the same answers."""
    prompts: Sequence[str] = draw(seed, AHEAD + PAIRS, prompt_tokens)
    (brief,) = draw(seed + 1, 1, prompt_tokens // SHORT_SHARE)
    cold = {place: client.ask(prompts[place], output_tokens) for place in range(AHEAD)}
    warm = []
    for pair in range(PAIRS):
        # In balanced order: a machine that drifts favours neither.
        for first_time in (pair % 2 == 0, pair % 2 == 1):
            if first_time:
                cold[AHEAD + pair] = client.ask(prompts[AHEAD + pair], output_tokens)
            else:
                warm.append(client.ask(prompts[pair], output_tokens))
    twins = tuple(client.ask(prompt, output_tokens) for prompt in twins_of(prompts[0], seed))
    short = client.ask(brief, output_tokens)
    whole = client.ask(prompts[0], output_tokens, stream=False)
    asked = max(1, output_tokens // 3)
    shorter = client.ask(prompts[0], asked)
    fresh = (*(cold[place] for place in sorted(cold)), *twins, short)
    # One answer to its very end: nobody can know which.
    wanted = [output_tokens if one is fresh[0] else asked for one in fresh]
    truth: tuple[Answer, ...] = ()
    if oracle is not None:
        truth = tuple(oracle.ask(one.prompt, n, stream=False) for one, n in zip(fresh, wanted, strict=True))
    return Session(fresh[: len(cold)], tuple(warm), twins, short, whole, shorter, truth, exact)
