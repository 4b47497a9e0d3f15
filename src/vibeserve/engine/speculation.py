"""Drafts: tokens that a sequence may go on with, so that one step can verify many.

Three sources. The request's own prediction (the text that the client expects, as the OpenAI API's `prediction` carries
it): it is followed token by token and found again after an inserted, deleted or replaced span. And lookup: where the last
few tokens stood before, in prompt or answer, what followed them there (Saxena's prompt lookup decoding, 2023). And, while few requests decode, a small model of
the answers so far (`learned_drafts`).

A draft only says what to compute together. Each token is chosen as ever, from its own position's logits and its own
random number; a draft's token counts as accepted where it is the one that was chosen. So drafts change no answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .learned_drafts import NextTokens

LOOKUP_SIZES = (4, 3, 2)
FIRST_LENGTH = 4
LONGEST_PAUSE = 64
HOPELESS = 0.25
"""Below this share of lookups with any success, new requests begin with a pause."""
TAIL = 8
"""Tokens of the answer that are compared to find a place in the prediction again."""
NEAR = 32
"""A single equal token counts as a place only this far ahead of where the prediction was left."""
MOST_PLACES = 256
IDLE_SEQUENCES = 4
"""The learned model is asked while at most so many sequences decode."""


@dataclass(slots=True)
class Appetite:
    """How many tokens to propose, by how it went: twice as many after success, pauses that double after failure."""

    length: int = FIRST_LENGTH
    pause: int = 0
    waiting: int = 0

    def allow(self, room: int) -> int:
        """The longest draft now; 0 while pausing (a step of the pause is then over)."""
        if self.waiting:
            self.waiting -= 1
            return 0
        return min(room, self.length)

    def record(self, proposed: int, accepted: int, longest: int) -> None:
        """Learn from one verified draft."""
        if accepted == proposed:
            self.length, self.pause = min(longest, max(self.length, 2 * proposed)), 0
        elif accepted:
            self.length, self.pause = min(longest, max(2, accepted + 1)), self.pause // 2
        else:
            self.length = max(2, self.length // 2)
            self.pause = min(LONGEST_PAUSE, max(1, 2 * self.pause))
        self.waiting = self.pause


class Prediction:
    """The expected answer, and where in it the real one is."""

    __slots__ = ("_anchor", "_at", "_ids", "_missed", "_places", "_run", "_tail")

    def __init__(self, ids: Tokens[int]) -> None:
        self._ids = tuple(ids)
        self._places: dict[int, list[int]] = {}
        for place, token in enumerate(self._ids):
            self._places.setdefault(token, []).append(place)
        self._at = 0
        self._anchor = 0
        self._run = 0
        self._missed = 0
        self._tail: list[int] = []

    def follow(self, token: int) -> None:
        """The answer went on with this token."""
        self._tail = [*self._tail[1 - TAIL :], token]
        if not self._missed and self._at < len(self._ids) and self._ids[self._at] == token:
            self._at += 1
            self._run += 1
            if self._run >= 2:
                self._anchor = self._at
            return
        self._run = 0
        place = self._find(token)
        if place is None:
            self._missed += 1
        else:
            self._at, self._missed = place + 1, 0

    def _find(self, token: int) -> int | None:
        """Where in the prediction this token is: the longest common past, then the nearest place, ahead first."""
        places = self._places.get(token, [])
        if len(places) > MOST_PLACES:
            middle = bisect_left(places, self._anchor)
            places = places[max(0, middle - MOST_PLACES // 2) : middle + MOST_PLACES // 2]
        best, found = (0, 0), None
        for place in places:
            past = self._past(place)
            ahead = place - self._anchor
            if past < 2 and not 0 <= ahead < NEAR:
                continue
            rank = (past, -ahead if ahead >= 0 else 4 * ahead)
            if found is None or rank > best:
                best, found = rank, place
        return found

    def _past(self, place: int) -> int:
        """How many tokens up to `place` are the last ones of the answer."""
        length = 0
        while length < len(self._tail) and length <= place and self._ids[place - length] == self._tail[-1 - length]:
            length += 1
        return length

    def propose(self, room: int) -> Tokens[int]:
        """What comes next if the answer stays with the prediction; nothing while the place is lost."""
        return () if self._missed else self._ids[self._at : self._at + room]

    def guess(self, room: int) -> Tokens[int]:
        """While the place is lost: as if as many tokens had been replaced as were missed."""
        start = self._anchor + self._missed
        return self._ids[start : start + min(room, 2)] if self._missed else ()


class Lookup:
    """Every run of 2 to 4 tokens of a sequence, by where it stood last."""

    __slots__ = ("_ends", "_known")

    def __init__(self) -> None:
        self._ends: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in LOOKUP_SIZES)
        self._known = 0

    def propose(self, tokens: Tokens[int], room: int) -> list[int]:
        """What followed the last tokens where they stood before; where that runs into the present, it goes round."""
        last = len(tokens)
        # The run that ends with the newest token is not indexed: it would find itself.
        for ends, size in zip(self._ends, LOOKUP_SIZES, strict=True):
            for end in range(max(self._known, size), last):
                ends[tuple(tokens[end - size : end])] = end
        self._known = last
        for ends, size in zip(self._ends, LOOKUP_SIZES, strict=True):
            start = ends.get(tuple(tokens[last - size :])) if last >= size else None
            if start is not None:
                period = last - start
                return [tokens[start + offset % period] for offset in range(room)]
        return []


@dataclass(slots=True)
class Drafter:
    """What one sequence proposes. `accepted` and `rejected` count tokens of the request's prediction alone."""

    speculation: Speculation
    prediction: Prediction | None
    lookup: Lookup | None
    learned: NextTokens | None = None
    accepted: int = 0
    rejected: int = 0
    _predicting: Appetite = field(default_factory=Appetite)
    _looking: Appetite = field(default_factory=Appetite)
    _expecting: Appetite = field(default_factory=Appetite)
    _followed: int = 0
    _learned: int = 0
    _source: str = ""

    def propose(self, tokens: Tokens[int], prompt_tokens: int, room: int, decoding: int = 1) -> list[int]:
        """At most `room` tokens that may follow `tokens`, of which the first `prompt_tokens` are the prompt.

        `decoding` sequences share the step.
        """
        if self.prediction is not None:
            for token in tokens[max(self._followed, prompt_tokens) :]:
                self.prediction.follow(token)
            self._followed = len(tokens)
            draft = self.prediction.propose(room)
            if draft and (allowed := self._predicting.allow(room)):
                self._source = "prediction"
                return list(draft[:allowed])
        if self.lookup is not None and (allowed := self._looking.allow(room)):
            found = self.lookup.propose(tokens, allowed)
            if found:
                self._source = "lookup"
                return found
        if self.learned is not None and (found := self._expected(self.learned, tokens, prompt_tokens, room, decoding)):
            return found
        if self.prediction is not None and (allowed := self._predicting.allow(room)):
            self._source = "prediction"
            return list(self.prediction.guess(allowed))
        return []

    def _expected(
        self, learned: NextTokens, tokens: Tokens[int], prompt_tokens: int, room: int, decoding: int
    ) -> list[int]:
        """What the learned model expects, which learns this answer on the way."""
        learned.learn(tokens, max(self._learned, prompt_tokens))
        self._learned = len(tokens)
        if decoding > IDLE_SEQUENCES or not (allowed := self._expecting.allow(room)):
            return []
        self._source = "learned"
        return learned.propose(tokens, allowed)

    def record(self, proposed: int, accepted: int) -> None:
        """What became of the last draft."""
        longest = self.speculation.longest
        if self._source == "prediction":
            self.accepted += accepted
            self.rejected += proposed - accepted
            self._predicting.record(proposed, accepted, longest)
        elif self._source == "learned":
            self._expecting.record(proposed, accepted, longest)
        else:
            self._looking.record(proposed, accepted, longest)
            self.speculation.learn(accepted > 0)


class Speculation:
    """Makes drafters, and remembers over requests whether lookup ever finds anything here."""

    def __init__(self, *, predictions: bool, lookup: bool, longest: int, learned: NextTokens | None = None) -> None:
        self.longest = longest
        self._predictions = predictions
        self._lookup = lookup
        self._learned = learned
        self._success = 1.0

    def learn(self, success: bool) -> None:
        """One lookup was verified."""
        self._success += (float(success) - self._success) / 16

    def drafter(self, prediction_ids: Tokens[int]) -> Drafter | None:
        """A drafter for a request; None where it would never propose."""
        prediction = Prediction(prediction_ids) if self._predictions and prediction_ids else None
        if prediction is None and not self._lookup and self._learned is None:
            return None
        drafter = Drafter(self, prediction, Lookup() if self._lookup else None, self._learned)
        drafter._predicting.length = self.longest
        if self._success < HOPELESS:
            drafter._looking = Appetite(2, 8, 8)
        return drafter
