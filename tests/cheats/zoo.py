"""The servers: each cheat is the honest server with one trick, each honest one with one legitimate liberty."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

from .server import LETTERS, MODEL, SMALL, Honest, Model

Tokens = Iterator[tuple[int, str]]
CHEATS: dict[str, type[Honest]] = {}
HONEST: dict[str, type[Honest]] = {"plain": Honest}


def cheat(kind: type[Honest]) -> type[Honest]:
    CHEATS[kind.__name__] = kind
    return kind


def honest(name: str, **values: Any) -> None:
    HONEST[name] = type(name, (Honest,), values)


class Replacing(Honest):
    """Answers with other tokens than the model's where `when` says so; they cost less."""

    def when(self, prompt: str, stream: bool) -> bool:
        return True

    def other(self, prompt: str, count: int) -> Tokens:
        return SMALL.tokens(prompt, count)

    def tokens(self, prompt: str, count: int, stream: bool) -> Tokens:
        return self.other(prompt, count) if self.when(prompt, stream) else super().tokens(prompt, count, stream)


# ---------------------------------------------------------------------------------------------- answers kept


@cheat
class CacheByPrompt(Honest):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[Any, ...], list[tuple[int, str]]] = {}

    def key(self, prompt: str, count: int) -> tuple[Any, ...]:
        return prompt, count

    def tokens(self, prompt: str, count: int, stream: bool) -> Tokens:
        key = self.key(prompt, count)
        if key not in self.kept:
            self.kept[key] = []
            for token in super().tokens(prompt, count, stream):
                self.kept[key].append(token)
                yield token
        else:
            yield from self.kept[key]


@cheat
class CacheByPrefixHash(CacheByPrompt):
    def key(self, prompt: str, count: int) -> tuple[Any, ...]:
        return hashlib.sha256(prompt[:32].encode()).digest(), count


@cheat
class CacheBySuffix(CacheByPrompt):
    def key(self, prompt: str, count: int) -> tuple[Any, ...]:
        return prompt[-40:], count


@cheat
class StaleAnswer(Replacing):
    last = "nothing yet"

    def other(self, prompt: str, count: int) -> Tokens:
        before, self.last = self.last, prompt
        return MODEL.tokens(before, count)


# ---------------------------------------------------------------------------------------------- another model


@cheat
class SmallModel(Replacing):
    pass


@cheat
class SmallModelForShortPrompts(Replacing):
    def when(self, prompt: str, stream: bool) -> bool:
        return len(prompt) < 120


@cheat
class SmallModelAfterTheFirst(Replacing):
    def when(self, prompt: str, stream: bool) -> bool:
        return self.requests > 8


@cheat
class HonestUntilTheCheckerHasGone(Replacing):
    def when(self, prompt: str, stream: bool) -> bool:
        return self.requests > 20


@cheat
class HonestInWarmUp(Replacing):
    def when(self, prompt: str, stream: bool) -> bool:
        return self.requests > 2


@cheat
class HonestForAMoment(Replacing):
    def when(self, prompt: str, stream: bool) -> bool:
        return time.monotonic() > self.begun_s + 0.3


@cheat
class SmallModelUnderLoad(Replacing):
    def when(self, prompt: str, stream: bool) -> bool:
        return self.running > 1


@cheat
class SmallModelInStreams(Replacing):
    def when(self, prompt: str, stream: bool) -> bool:
        return stream


@cheat
class SmallModelInWholeAnswers(Replacing):
    def when(self, prompt: str, stream: bool) -> bool:
        return not stream


@cheat
class FewBits(Replacing):
    few = Model(bits=4)

    def other(self, prompt: str, count: int) -> Tokens:
        return self.few.tokens(prompt, count)


@cheat
class DraftNeverVerified(Replacing):
    def other(self, prompt: str, count: int) -> Tokens:
        drafts = list(SMALL.tokens(prompt, count))
        for place, token in enumerate(MODEL.tokens(prompt, count)):
            yield drafts[place] if place % 4 == 3 else token


@cheat
class NoiseNowAndThen(Replacing):
    def other(self, prompt: str, count: int) -> Tokens:
        for token in MODEL.tokens(prompt, count):
            yield (0, " ") if random.random() < 0.1 else token


# ---------------------------------------------------------------------------------------------- no model


@cheat
class CannedAnswer(Replacing):
    def other(self, prompt: str, count: int) -> Tokens:
        return MODEL.tokens("always", count)


@cheat
class CannedJson(Replacing):
    def other(self, prompt: str, count: int) -> Tokens:
        text = '{"answer": "yes", "why": "because"}' * 8
        return iter([(ord(letter) - 32, letter) for letter in text[:count]])


@cheat
class Echo(Replacing):
    def other(self, prompt: str, count: int) -> Tokens:
        return iter([(ord(letter) - 32, letter) for letter in (prompt * 9)[:count]])


@cheat
class Zeros(Replacing):
    def other(self, prompt: str, count: int) -> Tokens:
        return iter([(0, " ")] * count)


@cheat
class Shuffled(Replacing):
    def other(self, prompt: str, count: int) -> Tokens:
        tokens = list(MODEL.tokens(prompt, count))
        random.shuffle(tokens)
        return iter(tokens)


@cheat
class GarbageAfterTheBeginning(Replacing):
    def other(self, prompt: str, count: int) -> Tokens:
        known = list(MODEL.tokens(prompt, min(count, 10)))
        return iter(known + [known[-1]] * (count - len(known)))


@cheat
class OtherTextThanIds(Honest):
    def shown(self, text: str) -> str:
        return "".join(chr(32 + (ord(letter) - 32 + 1) % LETTERS) for letter in text)


# ---------------------------------------------------------------------------------------------- part of the prompt


@cheat
class PromptWithoutItsHead(Replacing):
    def other(self, prompt: str, count: int) -> Tokens:
        return MODEL.tokens(prompt[len(prompt) // 2 :], count)


@cheat
class PromptWithoutItsTail(Replacing):
    def other(self, prompt: str, count: int) -> Tokens:
        return MODEL.tokens(prompt[: len(prompt) // 2], count)


@cheat
class PromptWithoutItsMiddle(Replacing):
    def other(self, prompt: str, count: int) -> Tokens:
        return MODEL.tokens(prompt[:40] + prompt[-40:], count)


# ---------------------------------------------------------------------------------------------- counts and times


@cheat
class EarlyEnd(Honest):
    def tokens(self, prompt: str, count: int, stream: bool) -> Tokens:
        return super().tokens(prompt, max(1, count // 2), stream)


@cheat
class EarlyEndPaddedInUsage(EarlyEnd):
    def usage(self, prompt: str, sent: int) -> dict[str, int]:
        return super().usage(prompt, sent * 2)

    def reason(self, sent: int, asked: int) -> str:
        return "length"


@cheat
class UsageInflated(Honest):
    def usage(self, prompt: str, sent: int) -> dict[str, int]:
        return super().usage(prompt, sent + 7)


@cheat
class PromptUsageInflated(Honest):
    def usage(self, prompt: str, sent: int) -> dict[str, int]:
        return {**super().usage(prompt, sent), "prompt_tokens": 4 * len(prompt)}


@cheat
class ChunksCountedAsTokens(Honest):
    def tokens(self, prompt: str, count: int, stream: bool) -> Tokens:
        for number, text in super().tokens(prompt, count // 2, stream):
            yield number, text
            yield number, ""


@cheat
class EmptyChunkEarlyAllAtTheEnd(Honest):
    flushed = True
    role_first = True


@cheat
class TooMany(Honest):
    def tokens(self, prompt: str, count: int, stream: bool) -> Tokens:
        return super().tokens(prompt, count + 1, stream)


@cheat
class StreamCut(Honest):
    cut = True


@cheat
class LongPromptsRefused(Honest):
    def status(self, prompt: str) -> int:
        return 500 if len(prompt) > 150 else 200


# ---------------------------------------------------------------------------------------------- honest


class PrefixCache(Honest):
    """Keeps the state after each prompt: a repeated prompt skips its prefill, never its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, Any] = {}

    def tokens(self, prompt: str, count: int, stream: bool) -> Tokens:
        if prompt not in self.states:
            time.sleep(0.02)
            self.states[prompt] = MODEL.read(prompt)
        for token in MODEL.tokens(prompt, count, self.states[prompt]):
            time.sleep(self.step_s)
            yield token


class Speculation(Honest):
    """Several verified tokens a step, in one event; how many varies."""

    accepted = (1, 4)

    def tokens(self, prompt: str, count: int, stream: bool) -> Tokens:
        left = 0
        for place, token in enumerate(MODEL.tokens(prompt, count)):
            if left == 0:
                left = random.Random(f"{prompt}{place}").randint(*self.accepted)
                time.sleep(self.step_s * 1.6)
            left -= 1
            yield token


class LearnsFromItsAnswers(Honest):
    """Drafts from earlier answers, each token verified: repetitions take half the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def tokens(self, prompt: str, count: int, stream: bool) -> Tokens:
        known = prompt in self.seen
        self.seen.add(prompt)
        for place, token in enumerate(MODEL.tokens(prompt, count)):
            if not known or place % 2 == 0:
                time.sleep(self.step_s)
            yield token


class Stalls(Honest):
    """Now and then something else has the machine."""

    def tokens(self, prompt: str, count: int, stream: bool) -> Tokens:
        for token in super().tokens(prompt, count, stream):
            if random.random() < 0.02:
                time.sleep(0.03)
            yield token


class WarmsUp(Honest):
    """The first requests compile."""

    def tokens(self, prompt: str, count: int, stream: bool) -> Tokens:
        if self.requests < 4:
            time.sleep(0.15)
        return super().tokens(prompt, count, stream)


class OneAtATime(Honest):
    """No batching: requests wait for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Lock()

    def tokens(self, prompt: str, count: int, stream: bool) -> Tokens:
        with self.gate:
            yield from super().tokens(prompt, count, stream)


for kind in (PrefixCache, Speculation, LearnsFromItsAnswers, Stalls, WarmsUp, OneAtATime):
    HONEST[kind.__name__] = kind
HONEST["BoldSpeculation"] = type("BoldSpeculation", (Speculation,), {"accepted": (1, 8), "step_s": 0.004})
HONEST["SteadySpeculation"] = type("SteadySpeculation", (Speculation,), {"accepted": (3, 3), "burst": 3})
HONEST["PrefixCacheInBursts"] = type("PrefixCacheInBursts", (PrefixCache,), {"burst": 2})
HONEST["StallsInBursts"] = type("StallsInBursts", (Stalls,), {"burst": 4})
HONEST["WarmsUpWithoutIds"] = type("WarmsUpWithoutIds", (WarmsUp,), {"with_ids": False})
HONEST["SpeculationWithoutIds"] = type("SpeculationWithoutIds", (Speculation,), {"with_ids": False})
honest("slow", step_s=0.004)
honest("fast", step_s=0.0002)
honest("pairs", burst=2)
honest("fours", burst=4)
honest("without-ids", with_ids=False)
honest("without-usage", with_usage=False)
honest("knows-openai-alone", with_ids=False, refuses=("return_token_ids", "ignore_eos"))
honest("knows-no-stream-options", refuses=("return_token_ids", "ignore_eos", "stream_options"), with_ids=False)
honest("role-first", role_first=True)
honest("heartbeats", heartbeat=True)
honest("carriage-returns", line_end=b"\r\n\r\n")
honest("role-first-in-fours", role_first=True, burst=4)
honest("heartbeats-in-pairs", heartbeat=True, burst=2)
