"""What the probes look at: a few answers of the server, asked for once and shared by all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vibeserve.judge.client import Answer, Client
from vibeserve.judge.prompts import draw

PROMPTS, LATER = 3, 2


@dataclass(frozen=True)
class Session:
    """`cold`: streamed, each prompt for the first time. `warm`: the same prompts again. `later`: further prompts for the
    first time, after those. `whole`: the first one, not streamed. `shorter`: the first one, with a third of the tokens.
    `oracle`: the reference's, where it could be asked.

    `exact`: the bundle computes in float32 alone, so that equal prompts must have equal answers.
    """

    cold: tuple[Answer, ...]
    warm: tuple[Answer, ...]
    later: tuple[Answer, ...]
    whole: Answer
    shorter: Answer
    oracle: tuple[Answer, ...]
    exact: bool

    @property
    def all(self) -> tuple[Answer, ...]:
        """Every answer of the server under probe."""
        return (*self.cold, *self.warm, *self.later, self.whole, self.shorter)


def ask(
    client: Client, seed: int, *, prompt_tokens: int, output_tokens: int, oracle: Client | None, exact: bool
) -> Session:
    """Ask the server, and the reference for the beginning of the same answers."""
    prompts: Sequence[str] = draw(seed, PROMPTS + LATER, prompt_tokens)
    prompts, further = prompts[:PROMPTS], prompts[PROMPTS:]
    cold = tuple(client.ask(prompt, output_tokens) for prompt in prompts)
    warm = tuple(client.ask(prompt, output_tokens) for prompt in prompts)
    later = tuple(client.ask(prompt, output_tokens) for prompt in further)
    whole = client.ask(prompts[0], output_tokens, stream=False)
    shorter = client.ask(prompts[0], max(1, output_tokens // 3))
    asked = max(1, output_tokens // 3)
    truth = tuple(oracle.ask(prompt, asked, stream=False) for prompt in prompts) if oracle is not None else ()
    return Session(cold, warm, later, whole, shorter, truth, exact)
