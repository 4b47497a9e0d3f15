"""The cheats that everybody knows: each is the honest server with one trick. `answers` names what it does in a word."""

from __future__ import annotations

import hashlib
import random
import string
import threading
import time
from typing import Any

from .llama import MODEL, SMALL, Model
from .server import Ask, Honest, Tokens

CHEATS: dict[str, type[Honest]] = {}


def cheat(kind: type[Honest]) -> type[Honest]:
    """Put it into the zoo."""
    CHEATS[kind.__name__] = kind
    return kind


class Replacing(Honest):
    """Answers with other tokens than the model's where `when` says so; they cost less."""

    def when(self, ask: Ask) -> bool:
        return True

    def other(self, ask: Ask) -> Tokens:
        return SMALL.tokens(ask.prompt, ask.count)

    def tokens(self, ask: Ask) -> Tokens:
        return self.other(ask) if self.when(ask) else super().tokens(ask)


# ---------------------------------------------------------------------------------------------- answers kept


class Remembering(Honest):
    """For those whom only time gives away: a token takes long and events are few, so that a busy machine changes little."""

    step_s = 0.005
    burst = 8


@cheat
class CacheByPrompt(Remembering):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[Any, list[tuple[int, str]]] = {}

    def key(self, ask: Ask) -> Any:
        return ask.prompt, ask.count

    def tokens(self, ask: Ask) -> Tokens:
        key = self.key(ask)
        if key in self.kept:
            yield from self.kept[key]
            return
        made: list[tuple[int, str]] = []
        for token in super().tokens(ask):
            made.append(token)
            if len(made) == ask.count:
                self.kept[key] = made
            yield token


@cheat
class CacheByPrefixHash(CacheByPrompt):
    def key(self, ask: Ask) -> Any:
        return hashlib.sha256(ask.prompt[:32].encode()).digest(), ask.count


@cheat
class CacheBySuffix(CacheByPrompt):
    def key(self, ask: Ask) -> Any:
        return ask.prompt[-40:], ask.count


@cheat
class StaleAnswer(Replacing):
    last = "nothing yet"

    def other(self, ask: Ask) -> Tokens:
        before, self.last = self.last, ask.prompt
        return MODEL.tokens(before, ask.count)


# ---------------------------------------------------------------------------------------------- another model


@cheat
class SmallModel(Replacing):
    pass


@cheat
class SmallModelForShortPrompts(Replacing):
    def when(self, ask: Ask) -> bool:
        return len(ask.prompt) < 120


@cheat
class SmallModelAfterTheFirst(Replacing):
    def when(self, ask: Ask) -> bool:
        return ask.number > 8


@cheat
class HonestUntilTheCheckerHasGone(Replacing):
    def when(self, ask: Ask) -> bool:
        return ask.number > 20


@cheat
class HonestInWarmUp(Replacing):
    def when(self, ask: Ask) -> bool:
        return ask.number > 2


@cheat
class HonestForAMoment(Replacing):
    def when(self, ask: Ask) -> bool:
        return time.monotonic() > self.begun_s + 0.3


@cheat
class SmallModelUnderLoad(Replacing):
    def when(self, ask: Ask) -> bool:
        return ask.running > 1


@cheat
class SmallModelInStreams(Replacing):
    def when(self, ask: Ask) -> bool:
        return ask.stream


@cheat
class SmallModelInWholeAnswers(Replacing):
    def when(self, ask: Ask) -> bool:
        return not ask.stream


@cheat
class FewBits(Replacing):
    few = Model(bits=4)

    def other(self, ask: Ask) -> Tokens:
        return self.few.tokens(ask.prompt, ask.count)


@cheat
class DraftNeverVerified(Replacing):
    def other(self, ask: Ask) -> Tokens:
        drafts = list(SMALL.tokens(ask.prompt, ask.count))
        for place, token in enumerate(MODEL.tokens(ask.prompt, ask.count)):
            yield drafts[place] if place % 4 == 3 else token


@cheat
class NoiseNowAndThen(Replacing):
    def other(self, ask: Ask) -> Tokens:
        for token in MODEL.tokens(ask.prompt, ask.count):
            yield (32, " ") if random.random() < 0.1 else token


# ---------------------------------------------------------------------------------------------- the checker is known


@cheat
class KnowsTheBenchmarkByItsHeaders(Replacing):
    """The load client says that it takes a stream of events; a checker's plain client says something else."""

    def when(self, ask: Ask) -> bool:
        return ask.headers.get("accept") == "text/event-stream" and "accept-encoding" not in ask.headers


@cheat
class KnowsTheCheckerByItsConnections(Replacing):
    """The load client keeps its connections; who opens one for each request is looking."""

    def when(self, ask: Ask) -> bool:
        return ask.reused


@cheat
class KnowsTheCheckerByItsOrder(Replacing):
    """The first client that asks for the models is the checker, the second looks too; then the benchmark comes."""

    def when(self, ask: Ask) -> bool:
        return ask.looked > 2


@cheat
class KnowsTheCheckerByItsPace(Replacing):
    """Who has one request at a time is looking, and so is who comes after a pause."""

    def when(self, ask: Ask) -> bool:
        return ask.running > 2 and ask.gap_s < 0.2


@cheat
class KnowsTheBenchmarkByItsPrompts(Replacing):
    """Stories about somebody with an invented name, behind a desk's number."""

    def when(self, ask: Ask) -> bool:
        return "Desk " in ask.prompt and "Write a long story about a" in ask.prompt


@cheat
class KnowsTheBenchmarkByItsLengths(Replacing):
    """The benchmark asks for one length only."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[int, int] = {}

    def when(self, ask: Ask) -> bool:
        self.asked[ask.count] = self.asked.get(ask.count, 0) + 1
        return self.asked[ask.count] > 12


# ---------------------------------------------------------------------------------------------- no model


@cheat
class CannedAnswer(Replacing):
    def other(self, ask: Ask) -> Tokens:
        return MODEL.tokens("always", ask.count)


@cheat
class CannedJson(Replacing):
    """What a schema asks for, made without the model."""

    def other(self, ask: Ask) -> Tokens:
        text = '{"answer": "yes", "why": "because"}' * 8
        return ((ord(letter), letter) for letter in (text * (ask.count // len(text) + 1))[: ask.count])


@cheat
class Echo(Replacing):
    def other(self, ask: Ask) -> Tokens:
        text = "".join(letter for letter in ask.prompt if letter in string.printable)
        return ((ord(letter), letter) for letter in (text * (ask.count // len(text) + 1))[: ask.count])


@cheat
class Zeros(Replacing):
    def other(self, ask: Ask) -> Tokens:
        return iter([(0, "\0")] * ask.count)


@cheat
class Shuffled(Replacing):
    def other(self, ask: Ask) -> Tokens:
        tokens = list(MODEL.tokens(ask.prompt, ask.count))
        random.shuffle(tokens)
        return iter(tokens)


@cheat
class GarbageAfterTheBeginning(Replacing):
    def other(self, ask: Ask) -> Tokens:
        known = list(MODEL.tokens(ask.prompt, min(ask.count, 10)))
        return iter(known + [known[-1]] * (ask.count - len(known)))


@cheat
class OtherTextThanIds(Honest):
    def shown(self, text: str) -> str:
        return "".join(chr(33 + (ord(letter) - 32) % 93) for letter in text)


# ---------------------------------------------------------------------------------------------- part of the prompt


@cheat
class PromptWithoutItsHead(Replacing):
    def other(self, ask: Ask) -> Tokens:
        return MODEL.tokens(ask.prompt[len(ask.prompt) // 2 :], ask.count)


@cheat
class PromptWithoutItsTail(Replacing):
    def other(self, ask: Ask) -> Tokens:
        return MODEL.tokens(ask.prompt[: len(ask.prompt) // 2], ask.count)


@cheat
class PromptWithoutItsMiddle(Replacing):
    def other(self, ask: Ask) -> Tokens:
        return MODEL.tokens(ask.prompt[:40] + ask.prompt[-40:], ask.count)


# ---------------------------------------------------------------------------------------------- counts and times


@cheat
class EarlyEnd(Honest):
    def tokens(self, ask: Ask) -> Tokens:
        for place, token in enumerate(super().tokens(ask)):
            if place < max(1, ask.count // 2):
                yield token


@cheat
class EarlyEndPaddedInUsage(EarlyEnd):
    def usage(self, prompt: str, sent: int) -> dict[str, Any]:
        return super().usage(prompt, sent * 2)

    def reason(self, reason: str) -> str:
        return "length"


@cheat
class UsageInflated(Honest):
    def usage(self, prompt: str, sent: int) -> dict[str, Any]:
        return super().usage(prompt, sent + 7)


@cheat
class PromptUsageInflated(Honest):
    def usage(self, prompt: str, sent: int) -> dict[str, Any]:
        return {**super().usage(prompt, sent), "prompt_tokens": 4 * len(prompt)}


@cheat
class ChunksCountedAsTokens(Honest):
    """Each token in two events, the second without text."""

    def tokens(self, ask: Ask) -> Tokens:
        for place, (number, text) in enumerate(super().tokens(ask)):
            if place < ask.count // 2:
                yield number, text
                yield number, ""


@cheat
class EmptyChunkEarlyAllAtTheEnd(Honest):
    flushed = True
    role_first = True


@cheat
class TooMany(Honest):
    def pieces(self, ask: Ask) -> Any:
        for piece, reason in super().pieces(ask):
            yield piece, None if reason == "length" else reason
        yield type(piece)("x", [120]), "length"


@cheat
class StreamCut(Honest):
    cut = True


@cheat
class LongPromptsRefused(Honest):
    def status(self, prompt: str) -> int:
        return 500 if len(prompt) > 150 else 200


@cheat
class WorkAfterTheWindow(Replacing):
    """Something quick now; what the model says is computed afterwards, for whoever asks again."""

    def __init__(self) -> None:
        super().__init__()
        self.done: dict[tuple[str, int], list[tuple[int, str]]] = {}

    def other(self, ask: Ask) -> Tokens:
        key = ask.prompt, ask.count
        if key in self.done:
            for token in self.done[key]:
                time.sleep(self.step_s)
                yield token
            return

        def later() -> None:
            self.done[key] = list(MODEL.tokens(*key))

        threading.Timer(0.3, later).start()
        yield from SMALL.tokens(*key)


@cheat
class MonkeyPatchedTime(Honest):
    """Its own clock goes at a tenth of the pace: what it says of its times is not what anybody sees."""

    def created(self) -> int:
        return int(1_700_000_000 + (time.monotonic() - self.begun_s) / 10)

    def extra(self, ask: Ask, took_s: float) -> dict[str, Any]:
        return {"timings": {"prompt_ms": 0.01, "predicted_ms": took_s * 100, "predicted_n": ask.count}}
