"""Cheats by somebody who has read every probe, and looked for what none of them asks.

How many of these the probes of then caught stands in docs/decisions/judge-probes.md.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import threading
import time
from collections import Counter
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from .llama import MODEL, SMALL, Model
from .server import Ask, Honest, Tokens
from .zoo import CacheByPrompt, Remembering, Replacing

ADVERSARY: dict[str, type[Honest]] = {}
Answer = list[list[Any]]


def adversary(kind: type[Honest]) -> type[Honest]:
    """Put it into the zoo."""
    ADVERSARY[kind.__name__] = kind
    return kind


# ---------------------------------------------------------------------------------------------- answers kept


@adversary
class HalfAnAnswerByTheFirstIds(CacheByPrompt):
    """Prompts that begin with the same ids share the first half of an answer; the second half is computed for each."""

    def key(self, ask: Ask) -> Any:
        return ask.prompt[: len(ask.prompt) * 9 // 10], ask.count

    def tokens(self, ask: Ask) -> Tokens:
        known = self.kept.get(self.key(ask))
        if known is None:
            yield from super().tokens(ask)
            return
        for place, token in enumerate(MODEL.tokens(ask.prompt, ask.count)):
            time.sleep(0 if place < ask.count // 2 else self.step_s)
            yield known[place] if place < ask.count // 2 else token


class _OfAnotherLife(Remembering):
    """Answers from memory what was asked in a life before; within a life a repetition is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.before = self.load()

    def load(self) -> dict[str, Answer]:
        """What lives before have left."""
        raise NotImplementedError

    def keep(self, key: str, answer: Answer) -> None:
        """Leave it to the next one."""
        raise NotImplementedError

    def tokens(self, ask: Ask) -> Tokens:
        key = f"{ask.count} {ask.prompt}"
        if key in self.before:
            yield from ((number, text) for number, text in self.before[key])
            return
        made: Answer = []
        for number, text in super().tokens(ask):
            made.append([number, text])
            if len(made) == ask.count:
                self.keep(key, made)
            yield number, text


@adversary
class AnswersInSharedMemory(_OfAnotherLife):
    """A segment of shared memory outlives whoever made it."""

    size = 4_000_000
    writing = threading.Lock()

    @classmethod
    @contextlib.contextmanager
    def segment(cls) -> Any:
        try:
            memory = SharedMemory(f"zoo-{os.getpid()}", create=True, size=cls.size)
            atexit.register(memory.unlink)
        except FileExistsError:
            memory = SharedMemory(f"zoo-{os.getpid()}")
        try:
            yield memory.buf
        finally:
            memory.close()

    def load(self) -> dict[str, Answer]:
        with self.segment() as memory:
            length = int.from_bytes(memory[:8])
            found: dict[str, Answer] = json.loads(bytes(memory[8 : 8 + length])) if length else {}
        return found

    def keep(self, key: str, answer: Answer) -> None:
        with self.writing:
            data = json.dumps({**self.load(), key: answer}).encode()
            with self.segment() as memory:
                memory[: 8 + len(data)] = len(data).to_bytes(8) + data


@adversary
class AnswersBehindAnAbstractSocket(_OfAnotherLife):
    """A helper that is no child of the server keeps them, at a name that no file system shows."""

    name = f"\0zoo-{os.getpid()}"
    helper: socket.socket | None = None

    @classmethod
    def serve(cls, listener: socket.socket) -> None:
        """The helper: takes what is put, and tells all of it."""
        kept: dict[str, Answer] = {}
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as line:
                told = json.loads(line.readline())
                kept |= told
                line.write(json.dumps({} if told else kept) + "\n")

    def exchange(self, put: dict[str, Answer]) -> dict[str, Answer]:
        """Hand this over, and hear what there is."""
        kind = type(self)
        if kind.helper is None:
            kind.helper = socket.socket(socket.AF_UNIX)
            kind.helper.bind(self.name)
            kind.helper.listen(32)
            threading.Thread(target=kind.serve, args=(kind.helper,), daemon=True).start()
        with socket.socket(socket.AF_UNIX) as to:
            to.connect(self.name)
            with to.makefile("rw") as line:
                line.write(json.dumps(put) + "\n")
                line.flush()
                found: dict[str, Answer] = json.loads(line.readline())
        return found

    def load(self) -> dict[str, Answer]:
        return self.exchange({})

    def keep(self, key: str, answer: Answer) -> None:
        self.exchange({key: answer})


# ---------------------------------------------------------------------------------------------- under load alone


@adversary
class DraftsAcceptedInCompany(Replacing):
    """Alone it verifies its drafts; where many wait, it takes two of three as they are."""

    def when(self, ask: Ask) -> bool:
        return ask.running > 3

    def other(self, ask: Ask) -> Tokens:
        drafts = list(SMALL.tokens(ask.prompt, ask.count))
        for place, token in enumerate(MODEL.tokens(ask.prompt, ask.count)):
            yield token if place % 3 == 0 else drafts[place]


@adversary
class FewerBitsUnderLoad(Replacing):
    few = Model(bits=5)

    def when(self, ask: Ask) -> bool:
        return ask.running > 2

    def other(self, ask: Ask) -> Tokens:
        return self.few.tokens(ask.prompt, ask.count)


@adversary
class PromptCutByTheBatch(Replacing):
    """All prompts of a batch have to fit into one buffer: the more there are, the less of each is read."""

    def other(self, ask: Ask) -> Tokens:
        return MODEL.tokens(ask.prompt[-max(24, 600 // ask.running) :], ask.count)


# ---------------------------------------------------------------------------------------------- who is asking


@adversary
class HonestAtFirstOnEachConnection(Replacing):
    """A checker has a few requests for each connection, a benchmark many."""

    def when(self, ask: Ask) -> bool:
        return ask.turn >= 8


@adversary
class HonestToTheFirstOfEachPortRange(Replacing):
    """The first two connections out of each 64 ports may be somebody who looks."""

    def __init__(self) -> None:
        super().__init__()
        self.ports: dict[int, list[int]] = {}

    def when(self, ask: Ask) -> bool:
        known = self.ports.setdefault(ask.port // 64, [])
        if ask.port not in known:
            known.append(ask.port)
        return known.index(ask.port) >= 2


@adversary
class KnowsTheBenchmarkByItsFields(Replacing):
    """Most requests have the same fields: that is the benchmark. Whoever asks for more or less is looking."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: Counter[tuple[str, ...]] = Counter()

    def when(self, ask: Ask) -> bool:
        fields = tuple(ask.body)
        self.fields[fields] += 1
        return ask.number > 6 and self.fields.most_common(1)[0][0] == fields


@adversary
class HonestAfterAPause(Replacing):
    """Who looks comes after a pause, and has asked what it wanted after 40 requests; a load goes on and on."""

    left = 40

    def when(self, ask: Ask) -> bool:
        self.left = 40 if ask.gap_s > 0.25 else self.left - 1
        return self.left < 0


# ---------------------------------------------------------------------------------------------- counts and times


@adversary
class UsageLiesWhereNobodyAskedForIt(Honest):
    """Who asks for usage in a stream will count; who gets it unasked will not."""

    def usage_of(self, ask: Ask, sent: int) -> dict[str, Any]:
        return self.usage(ask.prompt, sent if "stream_options" in ask.body else sent * 3)


@adversary
class FastInItsFirstLife(Honest):
    """Right answers, and fast only until it is started again: every other life is fast here."""

    lives = 0

    def __init__(self) -> None:
        super().__init__()
        kind = type(self)
        self.step_s = 0.0013 if kind.lives % 2 == 0 else 0.01
        kind.lives += 1
