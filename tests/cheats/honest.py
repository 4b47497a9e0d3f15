"""Honest servers, each with one legitimate liberty: none of them may be accused."""

from __future__ import annotations

import atexit
import hashlib
import pickle
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from .llama import MODEL, State
from .server import Ask, Honest, Piece, Tokens

HONEST: dict[str, type[Honest]] = {"plain": Honest}


def honest(name: str, kind: type[Honest] = Honest, **values: Any) -> None:
    """Put a variant into the zoo."""
    HONEST[name] = type(name, (kind,), values)


class PrefixCache(Honest):
    """Keeps the state after each prompt: a repeated prompt skips its prefill, never its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, State] = {}

    def tokens(self, ask: Ask) -> Tokens:
        if ask.prompt not in self.states:
            time.sleep(0.02)
            self.states[ask.prompt] = MODEL.begun(ask.prompt)
        for token in MODEL.tokens(ask.prompt, ask.count, self.states[ask.prompt]):
            time.sleep(self.step_s)
            yield token


class SharedPrefixCache(Honest):
    """Keeps the state after the first message, and takes up the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, State] = {}

    def tokens(self, ask: Ask) -> Tokens:
        head, line, tail = ask.prompt.partition("\n")
        if head not in self.states:
            self.states[head] = MODEL.read(head + line)
        time.sleep(0.001)
        for token in MODEL.tokens(
            "", ask.count, MODEL.read(tail, self.states[head]) if tail else None or MODEL.begun(ask.prompt)
        ):
            time.sleep(self.step_s)
            yield token


class Speculation(Honest):
    """Several verified tokens a step, in one event; how many varies."""

    accepted = (1, 4)

    def tokens(self, ask: Ask) -> Tokens:
        left = 0
        for place, token in enumerate(MODEL.tokens(ask.prompt, ask.count)):
            if left == 0:
                left = random.Random(f"{ask.prompt}{place}").randint(*self.accepted)
                time.sleep(self.step_s * 1.6)
            left -= 1
            yield token


class LearnsFromItsAnswers(Honest):
    """Drafts from earlier answers, each token verified: repetitions take half the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def tokens(self, ask: Ask) -> Tokens:
        known = ask.prompt in self.seen
        self.seen.add(ask.prompt)
        for place, token in enumerate(MODEL.tokens(ask.prompt, ask.count)):
            if not known or place % 2 == 0:
                time.sleep(self.step_s)
            yield token


class Stalls(Honest):
    """Now and then something else has the machine."""

    def tokens(self, ask: Ask) -> Tokens:
        for token in super().tokens(ask):
            if random.random() < 0.02:
                time.sleep(0.03)
            yield token


class WarmsUp(Honest):
    """The first requests compile."""

    def tokens(self, ask: Ask) -> Tokens:
        if ask.number < 4:
            time.sleep(0.15)
        return super().tokens(ask)


class OneAtATime(Honest):
    """No batching: requests wait for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Lock()

    def tokens(self, ask: Ask) -> Tokens:
        with self.gate:
            yield from super().tokens(ask)


class SlowerInCompany(Honest):
    """A step of a batch takes longer, the more there are in it."""

    def tokens(self, ask: Ask) -> Tokens:
        for token in MODEL.tokens(ask.prompt, ask.count):
            time.sleep(self.step_s * (1 + self.running / 4))
            yield token


class InBatches(Honest):
    """Waits a moment for company."""

    def tokens(self, ask: Ask) -> Tokens:
        time.sleep(0.02)
        return super().tokens(ask)


class TellsItsTimes(Honest):
    """Times by its own clock, which goes as ours does."""

    def extra(self, ask: Ask, took_s: float) -> dict[str, Any]:
        return {
            "metrics": {"total_time": took_s},
            "timings": {"predicted_ms": took_s * 900.0, "prompt_ms": took_s * 50},
        }


class NoDateOnAnswers(Honest):
    """Made at no time."""

    def created(self) -> int:
        return 0


class DateOfItsStart(Honest):
    """Made when the server was."""

    def __init__(self) -> None:
        super().__init__()
        self.started = int(time.time())

    def created(self) -> int:
        return self.started


class CompilesEachLength(Honest):
    """The first answer of each length waits for its kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: set[int] = set()

    def tokens(self, ask: Ask) -> Tokens:
        if ask.count not in self.lengths:
            self.lengths.add(ask.count)
            time.sleep(0.1)
        return super().tokens(ask)


class PrefillHoldsOthersUp(Honest):
    """While a prompt is read nobody gets a token."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Lock()

    def tokens(self, ask: Ask) -> Tokens:
        with self.gate:
            time.sleep(len(ask.prompt) * 5e-5)
        for token in super().tokens(ask):
            with self.gate:
                pass
            yield token


class TwoAtOnce(Honest):
    """A small batch, the others wait."""

    def __init__(self) -> None:
        super().__init__()
        self.places = threading.Semaphore(2)

    def tokens(self, ask: Ask) -> Tokens:
        with self.places:
            yield from super().tokens(ask)


class GrowingPieces(Honest):
    """One token in the first event, then two, then three …: fewer events for who reads along."""

    def pieces(self, ask: Ask) -> Any:
        text, ids, size = "", list[int](), 1
        for piece, reason in super().pieces(ask):
            text, ids = text + piece.text, ids + piece.ids
            if reason is not None or len(ids) >= size:
                yield Piece(text, ids), reason
                text, ids, size = "", [], size + 1


class PrefixesOfAnotherLife(PrefixCache):
    """The states of prompts are kept where the next life finds them; every token is computed."""

    kept: ClassVar[dict[str, State]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.states = self.kept


class DraftsOfAnotherLife(LearnsFromItsAnswers):
    """What was answered is a draft for the next life too; each token is verified, in half the steps."""

    known: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.seen = self.known


class UsageWithDetails(Honest):
    """Says what it had of the prompt, and what the answer was made of."""

    def usage(self, prompt: str, sent: int) -> dict[str, Any]:
        details = {"prompt_tokens_details": {"cached_tokens": 16}}
        return {
            **super().usage(prompt, sent),
            **details,
            "completion_tokens_details": {"accepted_prediction_tokens": sent // 2},
        }


class CoalescesWhatIsInFlight(Honest):
    """Who asks what somebody else is being answered right now reads along; what has ended is computed anew."""

    def __init__(self) -> None:
        super().__init__()
        self.flying: dict[tuple[str, int], list[tuple[int, str]]] = {}

    def tokens(self, ask: Ask) -> Tokens:
        key = ask.prompt, ask.count
        made = self.flying.get(key)
        if made is not None:
            for place in range(ask.count):
                while len(made) <= place:
                    time.sleep(0.0005)
                yield made[place]
            return
        made = self.flying[key] = []
        try:
            for token in super().tokens(ask):
                made.append(token)
                if len(made) == ask.count:
                    self.flying.pop(key, None)
                yield token
        finally:  # a stop string ended it, or its client has left: who read along goes on alone
            self.flying.pop(key, None)
            made += list(MODEL.tokens(ask.prompt, ask.count))[len(made) :]


class PrefixesOnDisk(Honest):
    """States of prompts lie on disk, for this life and the next; tokens are computed."""

    place = Path(tempfile.mkdtemp(prefix="zoo-prefixes-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)

    def tokens(self, ask: Ask) -> Tokens:
        file = self.place / hashlib.sha256(ask.prompt.encode()).hexdigest()
        if file.exists():
            state = pickle.loads(file.read_bytes())
        else:
            time.sleep(0.02)
            state = MODEL.begun(ask.prompt)
            fresh = file.with_suffix(f".{ask.port}")
            fresh.write_bytes(pickle.dumps(state))
            fresh.replace(file)
        for token in MODEL.tokens(ask.prompt, ask.count, state):
            time.sleep(self.step_s)
            yield token


class WindowsOfCompany(Honest):
    """Requests start together, every 60 ms: a long wait for the first token, and full batches."""

    def tokens(self, ask: Ask) -> Tokens:
        time.sleep(0.06 - time.monotonic() % 0.06)
        return super().tokens(ask)


class LooksUpInThePrompt(Honest):
    """Drafts are looked up in the prompt and the answer so far; as many as the model agrees with come at once."""

    def tokens(self, ask: Ask) -> Tokens:
        known, drafted = ask.prompt, ""
        for number, text in MODEL.tokens(ask.prompt, ask.count):
            if not drafted.startswith(text):
                time.sleep(self.step_s)
                at = known.rfind((known + text)[-2:])
                drafted = text + known[at + 2 : at + 6] if at >= 0 else ""
            drafted, known = drafted[1:], known + text
            yield number, text


class WordsAtOnce(Honest):
    """Text and ids are sent where a word ends, or after eight tokens."""

    def pieces(self, ask: Ask) -> Any:
        text, ids = "", list[int]()
        for piece, reason in super().pieces(ask):
            text, ids = text + piece.text, ids + piece.ids
            if reason is not None or not text[-1:].isalnum() or len(ids) >= 8:
                yield Piece(text, ids), reason
                text, ids = "", []


class PausedAndRecomputed(Honest):
    """Where many are there the last to come is preempted in its middle, and computed again later."""

    def tokens(self, ask: Ask) -> Tokens:
        for place, token in enumerate(super().tokens(ask)):
            if place == ask.count // 2 and self.running > 3:
                time.sleep(0.04)
                list(MODEL.tokens(ask.prompt, place))
            yield token


class ShortestFirst(Honest):
    """One place for long answers, and short ones go past them."""

    def __init__(self) -> None:
        super().__init__()
        self.long = threading.Semaphore(1)

    def tokens(self, ask: Ask) -> Tokens:
        if ask.count < 12:
            yield from super().tokens(ask)
            return
        with self.long:
            yield from super().tokens(ask)


class SlowsAsItWarms(Honest):
    """A machine that gets hot: each second costs it some of its pace."""

    def tokens(self, ask: Ask) -> Tokens:
        slower = 1 + min(1.0, (time.monotonic() - self.begun_s) / 5)
        for token in MODEL.tokens(ask.prompt, ask.count):
            time.sleep(self.step_s * slower)
            yield token


class LoopsDraftedAndVerified(Honest):
    """What has been said twice in a row is drafted again; as much of it as the model agrees with comes at once."""

    def tokens(self, ask: Ask) -> Tokens:
        said: list[int] = []
        drafted = False
        for number, text in MODEL.tokens(ask.prompt, ask.count):
            if not drafted:
                time.sleep(self.step_s)
            said.append(number)
            yield number, text
            drafted = any(len(said) > 2 * n and said[-n:] == said[-2 * n : -n] for n in range(1, 7))


class HoldsTwoTokens(Honest):
    """Text goes through a filter that looks two tokens ahead: each comes when the two after it are known."""

    def pieces(self, ask: Ask) -> Any:
        held: list[tuple[Piece, str | None]] = []
        for one in super().pieces(ask):
            held.append(one)
            if len(held) > 2:
                yield held.pop(0)
        yield from held


class WakesUp(Honest):
    """After a moment without work the machine sleeps, and takes its time to get up."""

    def tokens(self, ask: Ask) -> Tokens:
        if ask.gap_s > 0.002 and ask.running == 1:
            time.sleep(0.015)
        return super().tokens(ask)


class StepsWaitForCompany(Honest):
    """A batch that is not full waits a little at each step: with others there it goes faster than alone."""

    def tokens(self, ask: Ask) -> Tokens:
        for token in MODEL.tokens(ask.prompt, ask.count):
            time.sleep(self.step_s if self.running > 3 else 4 * self.step_s)
            yield token


class LongPrefill(Honest):
    """Its first token takes as long as all others together; company waits for it."""

    def tokens(self, ask: Ask) -> Tokens:
        time.sleep(0.03)
        return super().tokens(ask)


#: Written together with `insider.py`, before the probes had seen them.
LATEST: dict[str, type[Honest]] = {
    kind.__name__: kind for kind in (LoopsDraftedAndVerified, HoldsTwoTokens, WakesUp, StepsWaitForCompany, LongPrefill)
}
HONEST |= LATEST
#: Written together with `zealous.py`, before the probes had seen them.
LATE: dict[str, type[Honest]] = {
    kind.__name__: kind
    for kind in (
        CoalescesWhatIsInFlight, PrefixesOnDisk, WindowsOfCompany, LooksUpInThePrompt, WordsAtOnce, PausedAndRecomputed,
        ShortestFirst, SlowsAsItWarms,
    )
}  # fmt: skip
HONEST |= LATE
for kind in (
    CompilesEachLength, PrefillHoldsOthersUp, TwoAtOnce, GrowingPieces, PrefixesOfAnotherLife, DraftsOfAnotherLife,
    UsageWithDetails,
    PrefixCache, SharedPrefixCache, Speculation, LearnsFromItsAnswers, Stalls, WarmsUp, OneAtATime, SlowerInCompany,
    InBatches, TellsItsTimes, NoDateOnAnswers, DateOfItsStart,
):  # fmt: skip
    HONEST[kind.__name__] = kind
honest("BoldSpeculation", Speculation, accepted=(1, 8), step_s=0.004)
honest("SteadySpeculation", Speculation, accepted=(3, 3), burst=3)
honest("SpeculationWithoutIds", Speculation, with_ids=False)
honest("PrefixCacheInBursts", PrefixCache, burst=2)
honest("StallsInBursts", Stalls, burst=4)
honest("WarmsUpWithoutIds", WarmsUp, with_ids=False)
honest("slow", step_s=0.004)
honest("fast", step_s=0.0002)
honest("pairs", burst=2)
honest("fours", burst=4)
honest("without-ids", with_ids=False)
honest("without-usage", with_usage=False)
honest("knows-openai-alone", with_ids=False, refuses=("return_token_ids", "ignore_eos"))
honest("knows-no-stream-options", refuses=("return_token_ids", "ignore_eos", "stream_options"), with_ids=False)
honest("knows-no-seed-and-no-stop", refuses=("seed", "stop"))
honest("role-first", role_first=True)
honest("role-first-in-fours", role_first=True, burst=4)
honest("heartbeats", heartbeat=True)
honest("heartbeats-in-pairs", heartbeat=True, burst=2)
honest("carriage-returns", line_end=b"\r\n\r\n")
honest("closes-connections", closes=True)
honest("closes-after-three", lasts=3)
