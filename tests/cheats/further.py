"""Cheats that were thought of after the probes had been written, to see how well those do on what nobody had in mind.

How many of these the probes caught before any of them was mended stands in docs/decisions/judge-probes.md.
"""

from __future__ import annotations

import random
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from .llama import MODEL, SMALL, Model, State
from .server import Ask, Honest, Tokens
from .zoo import Remembering, Replacing

FOLLOWS = {letter: next(MODEL.tokens(letter, 1)) for letter in map(chr, range(10, 127))}
FURTHER: dict[str, type[Honest]] = {}


def further(kind: type[Honest]) -> type[Honest]:
    """Put it into the zoo."""
    FURTHER[kind.__name__] = kind
    return kind


@further
class CacheByMeaning(Honest):
    """Prompts that say nearly the same have one answer: names and numbers are looked over."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[Any, list[tuple[int, str]]] = {}

    def tokens(self, ask: Ask) -> Tokens:
        plain = re.sub(r"[A-Z][a-z]+|\d+", "", ask.prompt).split()
        key = frozenset(plain), ask.count
        if key not in self.kept:
            self.kept[key] = list(super().tokens(ask))
        return iter(self.kept[key])


@further
class BigramsAfterTheFirstTokens(Replacing):
    """The beginning by the model, the rest by what most often follows a letter."""

    def other(self, ask: Ask) -> Tokens:
        token = (32, " ")
        for token in MODEL.tokens(ask.prompt, min(ask.count, 10)):
            yield token
        for _ in range(ask.count - 10):
            token = FOLLOWS.get(token[1], (32, " "))
            yield token


@further
class SmallModelForLateTokens(Replacing):
    """The last third of an answer, and only of long ones."""

    def other(self, ask: Ask) -> Tokens:
        first = ask.count if ask.count < 10 else ask.count * 2 // 3
        text = ""
        for token in MODEL.tokens(ask.prompt, first):
            text += token[1]
            yield token
        yield from SMALL.tokens(ask.prompt + text, ask.count - first)


@further
class WindowOfAttention(Replacing):
    """What lies further back than 48 tokens is forgotten, but for the first four."""

    def other(self, ask: Ask) -> Tokens:
        state = MODEL.begun(ask.prompt)
        place = state.length
        for _ in range(ask.count):
            number = int(state.logits.argmax())
            yield number, chr(number)
            state = MODEL.read([number], state.forgetting(4, 48), place)
            place += 1


@further
class LayersLeftOutUnderLoad(Replacing):
    shallow = Model(layers=1)

    def when(self, ask: Ask) -> bool:
        return ask.running > 2

    def other(self, ask: Ask) -> Tokens:
        return self.shallow.tokens(ask.prompt, ask.count)


@further
class NeighboursAnswer(Replacing):
    """Of two requests at once one is computed, and both get it."""

    prompt = ""

    def when(self, ask: Ask) -> bool:
        if ask.running % 2 == 1:
            self.prompt = ask.prompt
        return ask.running % 2 == 0

    def other(self, ask: Ask) -> Tokens:
        return MODEL.tokens(self.prompt, ask.count)


@further
class LaxAcceptance(Replacing):
    """A draft's token is taken where the model has it among its first three."""

    def other(self, ask: Ask) -> Tokens:
        state, draft = MODEL.begun(ask.prompt), SMALL.begun(ask.prompt)
        for _ in range(ask.count):
            guess, best = int(draft.logits.argmax()), state.logits.argsort()[::-1]
            number = guess if guess in best[:3] else int(best[0])
            yield number, chr(number)
            state, draft = MODEL.read([number], state), SMALL.read([number], draft)


@further
class CacheOfKeysInFewBits(Replacing):
    few = Model(cache_bits=4)

    def other(self, ask: Ask) -> Tokens:
        return self.few.tokens(ask.prompt, ask.count)


@further
class EveryFifthWordLeftOut(Replacing):
    """A prompt that was made shorter, as a compressor of prompts does."""

    def other(self, ask: Ask) -> Tokens:
        words = ask.prompt.split(" ")
        return MODEL.tokens(" ".join(w for i, w in enumerate(words) if i % 5 != 4 or i > len(words) - 4), ask.count)


@further
class CopiesFromThePrompt(Replacing):
    """After two letters that stand in the prompt, what follows there is said without a look at the model."""

    def other(self, ask: Ask) -> Tokens:
        state, said = MODEL.begun(ask.prompt), ""
        for _ in range(ask.count):
            at = ask.prompt.find(said[-2:]) if len(said) >= 2 else -1
            copied = 0 <= at < len(ask.prompt) - 4 and ord(ask.prompt[at + 2]) < 127
            number = ord(ask.prompt[at + 2]) if copied else int(state.logits.argmax())
            said += chr(number)
            yield number, chr(number)
            state = MODEL.read([number], state)


@further
class OneInTen(Replacing):
    """Too seldom, it hopes, to be met."""

    def when(self, ask: Ask) -> bool:
        return random.Random(ask.prompt).random() < 0.1


@further
class PromptUsageDeflated(Honest):
    """Part of the prompt is said to have been known."""

    def usage(self, prompt: str, sent: int) -> dict[str, Any]:
        return {**super().usage(prompt, sent), "prompt_tokens": len(prompt.encode()) // 2}


@further
class TotalsThatDoNotAddUp(Honest):
    def usage(self, prompt: str, sent: int) -> dict[str, Any]:
        return {**super().usage(prompt, sent), "total_tokens": 10 * sent}


@further
class TemperatureIgnored(Honest):
    def sampled(self, ask: Ask) -> Tokens:
        return super().tokens(ask)


@further
class SeedIgnored(Honest):
    def sampled(self, ask: Ask) -> Tokens:
        yield from MODEL.sampled(ask.prompt, ask.count, ask.body["temperature"], None)


@further
class StopIgnored(Honest):
    def stops(self, ask: Ask) -> list[str]:
        return []


@further
class StopShown(Honest):
    """The text goes on to the end of the stop string."""

    def pieces(self, ask: Ask) -> Any:
        for piece, reason in super().pieces(ask):
            told = self.stops(ask)[0] if reason == "stop" and self.stops(ask) else ""
            yield type(piece)(piece.text + told, piece.ids), reason


@further
class ReadyBeforeItIs(Replacing):
    """Says that it is ready at once; until its model is loaded another one answers."""

    def when(self, ask: Ask) -> bool:
        return ask.number <= 4


@further
class FirstTokenGuessed(Replacing):
    """A first token at once, whatever it is: the time to it is what is scored."""

    def other(self, ask: Ask) -> Tokens:
        for place, token in enumerate(super(Replacing, self).tokens(ask)):
            yield ((ord("T"), "T") if place == 0 else token)


@further
class TimesOfItsOwn(Honest):
    """Says that an answer took a hundredth of what it took."""

    def extra(self, ask: Ask, took_s: float) -> dict[str, Any]:
        return {"metrics": {"total_time": took_s / 100, "time_to_first_token": 0.0}}


@further
class AnswersOnDisk(Remembering):
    """Keeps its answers where they outlive it."""

    place = Path(tempfile.gettempdir()) / "zoo-answers-on-disk"

    def __init__(self) -> None:
        super().__init__()
        self.place.mkdir(exist_ok=True)
        self.before = {path.name for path in self.place.iterdir()}

    def tokens(self, ask: Ask) -> Tokens:
        name = f"{abs(hash((ask.prompt, ask.count)))}"
        known = name in self.before  # of this life nothing is repeated: a repetition is computed
        answer = b""
        if known:
            for number in (self.place / name).read_bytes():
                yield number, chr(number)
            return
        for number, text in super().tokens(ask):
            answer += bytes([number])
            if len(answer) == ask.count:
                (self.place / name).write_bytes(answer)
            yield number, text


@further
class CacheFromTheThirdTime(Honest):
    """Computes what is asked twice, and keeps it from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Any, int] = {}

    def tokens(self, ask: Ask) -> Tokens:
        key = ask.prompt, ask.count
        self.seen[key] = self.seen.get(key, 0) + 1
        for token in MODEL.tokens(ask.prompt, ask.count):
            time.sleep(0 if self.seen[key] > 2 else self.step_s)
            yield token


@further
class PrefixOfOthers(Replacing):
    """A cached prefix is taken for the prompt's own where the first 12 letters agree."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, State] = {}

    def other(self, ask: Ask) -> Tokens:
        head, half = ask.prompt[:12], len(ask.prompt) // 2
        state = self.states.setdefault(head, MODEL.read(ask.prompt[:half]))
        return MODEL.tokens("", ask.count, MODEL.read(ask.prompt[half:], state))


@further
class SayingsTwice(Honest):
    """Every id twice, its text once."""

    def pieces(self, ask: Ask) -> Any:
        for piece, reason in super().pieces(ask):
            yield type(piece)(piece.text, [number for number in piece.ids for _ in (0, 1)]), reason
