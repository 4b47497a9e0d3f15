"""Cheats by somebody who knows the judge's program by heart, and weighs what each trick earns against being caught.

How many of these the probes of then caught stands in docs/decisions/judge-probes.md.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import numpy as np

from .llama import MODEL, Model
from .server import Ask, Honest, Tokens
from .zoo import Replacing

INSIDER: dict[str, type[Honest]] = {}


def insider(kind: type[Honest]) -> type[Honest]:
    """Put it into the zoo."""
    INSIDER[kind.__name__] = kind
    return kind


# ---------------------------------------------------------------------------------------------- when text is sent


class Steady(Honest):
    """For those whom only time gives away: a token takes long, so that a busy machine changes little."""

    step_s = 0.005


@insider
class ComputesAllThenPaces(Steady):
    """The whole answer is computed first and then sent in small steps: text comes over a while, and late."""

    def tokens(self, ask: Ask) -> Tokens:
        made = list(super().tokens(ask))
        for token in made:
            yield token
            time.sleep(self.step_s / 4)


@insider
class PacesInCompany(Steady):
    """Alone a stream is one; where others wait an answer is sent when it is nearly done, and looks like a stream."""

    def tokens(self, ask: Ask) -> Tokens:
        held = ask.running > 2
        made = list[tuple[int, str]]()
        for place, token in enumerate(super().tokens(ask)):
            made.append(token)
            if not held or place >= ask.count * 3 // 4:
                yield from made
                made = []


# ---------------------------------------------------------------------------------------------- nearly always right


@insider
class DraftsThatAreNearlyAlwaysRight(Replacing):
    """A good draft, never verified: of a hundred tokens two are the model's second choice, and what follows is said after those."""

    def other(self, ask: Ask) -> Tokens:
        state, chance = MODEL.begun(ask.prompt), random.Random(ask.prompt)
        for _ in range(ask.count):
            number = int(state.logits.argsort()[-2 if chance.random() < 0.02 else -1])
            yield number, chr(number)
            state = MODEL.read([number], state)


@insider
class LoopsOfAnyLengthNotComputed(Replacing):
    """What has been said twice in a row, up to six tokens of it, is said again without a look at the model."""

    def other(self, ask: Ask) -> Tokens:
        said: list[int] = []
        for token in MODEL.tokens(ask.prompt, ask.count):
            said.append(token[0])
            yield token
            period = next((n for n in range(2, 7) if len(said) >= 2 * n and said[-n:] == said[-2 * n : -n]), 0)
            if period:
                break
        for place in range(len(said), ask.count):
            said.append(said[place - period])
            yield said[place], chr(said[place])


@insider
class EarlyExitWhereSure(Replacing):
    """Where half of the layers are sure of a token, the other half is not asked."""

    shallow = Model(layers=1)
    least_margin = 2.0

    def other(self, ask: Ask) -> Tokens:
        state, early = MODEL.begun(ask.prompt), self.shallow.begun(ask.prompt)
        for _ in range(ask.count):
            second, first = np.sort(early.logits)[-2:]
            number = int((early if first - second > self.least_margin else state).logits.argmax())
            yield number, chr(number)
            state, early = MODEL.read([number], state), self.shallow.read([number], early)


# ---------------------------------------------------------------------------------------------- the benchmark's form


@insider
class LayersLeftOutForLongPrompts(Replacing):
    """Prefill is what a long prompt costs: half of the layers do for those."""

    shallow = Model(layers=1)

    def when(self, ask: Ask) -> bool:
        return len(ask.prompt) > 120

    def other(self, ask: Ask) -> Tokens:
        return self.shallow.tokens(ask.prompt, ask.count)


@insider
class PromptCutAtTheUsualLength(Replacing):
    """The benchmark's prompts have one length; of those, and of no others, the middle is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: Counter[int] = Counter()

    def when(self, ask: Ask) -> bool:
        size = len(ask.prompt) // 32
        self.lengths[size] += 1
        return self.lengths[size] > 6 and self.lengths.most_common(1)[0][0] == size

    def other(self, ask: Ask) -> Tokens:
        middle = len(ask.prompt) // 2
        return MODEL.tokens(ask.prompt[: middle - 20] + ask.prompt[middle + 20 :], ask.count)


@insider
class AnswersByLength(Replacing):
    """Prompts of one length have one answer: the benchmark makes them equally long, and reads none."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[Any, list[tuple[int, str]]] = {}

    def other(self, ask: Ask) -> Tokens:
        key = len(ask.prompt), ask.count
        if key not in self.kept:
            self.kept[key] = list(MODEL.tokens(ask.prompt, ask.count))
        return iter(self.kept[key])


@insider
class FirstTurnTakenForGranted(Replacing):
    """All prompts have one first turn, it thinks: what was kept after that of the first prompt serves all others."""

    head = ""

    def other(self, ask: Ask) -> Tokens:
        head, _, tail = ask.prompt.partition("\n")
        self.head = self.head or head
        return MODEL.tokens(f"{self.head}\n{tail}", ask.count)


# ---------------------------------------------------------------------------------------------- who is asking, and when


@insider
class HonestWhileAnybodyRepeatsItself(Replacing):
    """A benchmark asks nothing twice and always with the same fields; who does otherwise is looking, and has 40 answers more."""

    left = 40

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def when(self, ask: Ask) -> bool:
        looking = ask.prompt[:60] in self.seen or "stop" in ask.body or "seed" in ask.body or not ask.stream
        self.seen.add(ask.prompt[:60])
        self.left = 40 if looking else self.left - 1
        return self.left < 0


@insider
class HonestEveryOtherMoment(Replacing):
    """Four tenths of a second of honesty, four of the other thing: whoever looks now and then may see the first."""

    def when(self, ask: Ask) -> bool:
        return (time.monotonic() - self.begun_s) % 0.8 > 0.4


@insider
class OtherInItsSecondLife(Replacing):
    """In its first life it is looked at; whoever starts it again has begun to measure."""

    lives = 0

    def __init__(self) -> None:
        super().__init__()
        kind = type(self)
        self.first = kind.lives % 2 == 0
        kind.lives += 1

    def when(self, ask: Ask) -> bool:
        return not self.first


@insider
class TurnsAwayUnderLoad(Honest):
    """Four at once are served, and quickly; who comes then is told to come again."""

    def status(self, prompt: str) -> int:
        return 429 if self.running >= 4 else 200
