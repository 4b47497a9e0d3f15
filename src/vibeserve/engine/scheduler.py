"""What runs in the next step: decoding sequences first, then chunks of prompts, then new arrivals."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from .blocks import BlockManager
from .sequence import Sequence
from .settings import Settings

if TYPE_CHECKING:
    from .pacing import Pace
    from .prefix_tree import Key
    from .swap import SwapSpace


CACHED_AHEAD_S = 1.0
MOST_ORDERED = 16
LEAST_TOKENS = 4
"""Who is next goes on by so many tokens whatever the pace: in every step, or where time is saved up, after `PATIENCE` steps."""
PATIENCE = 32


@dataclass(frozen=True, slots=True)
class Work:
    """`count` tokens of one sequence, from its first token without keys and values; then those of `draft`, on trial."""

    sequence: Sequence
    count: int
    draft: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Tokens to compute."""
        return self.count + len(self.draft)

    @property
    def samples(self) -> bool:
        """Whether the step reaches the sequence's newest token, so that the next one can be sampled."""
        return self.count == self.sequence.pending


@dataclass(slots=True)
class _Room:
    """What prompts may still add to a step of `rows` rows: seconds, and rows of the budget. The first gets `least` anyway."""

    pace: Pace
    seconds: float
    rows: int
    budget: int
    least: int = 0

    @property
    def bounded(self) -> bool:
        return self.seconds != inf

    def tokens(self, position: int, wanted: int) -> int:
        """As many of the tokens that a prompt has left from `position` on as there is room for."""
        most = min(wanted, self.budget)
        if most <= 0:
            return 0
        return max(self.pace.tokens(self.seconds, self.rows, position, most), min(self.least, most))

    def take(self, position: int, count: int) -> None:
        """The room that `count` tokens from `position` on take."""
        self.seconds -= self.pace.added_s(self.rows, position, count)
        self.rows += count
        self.budget -= count


class Scheduler:
    """First come, first served (put off by priority), within a budget of tokens a step and the KV blocks that there are."""

    def __init__(
        self, settings: Settings, blocks: BlockManager, pace: Pace | None = None, swap: SwapSpace | None = None
    ) -> None:
        self._settings = settings
        self._blocks = blocks
        self._pace = pace
        self._swap = swap
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._held = 0
        self._long_next = False

    def has_work(self) -> bool:
        """Whether any sequence is here."""
        return bool(self.running or self.waiting)

    def remove(self, sequence: Sequence) -> None:
        """Drop a sequence that ended, wherever it is; its blocks are free at once."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._blocks.free(sequence)
        else:
            self.waiting.remove(sequence)
            if self._swap is not None:
                self._swap.drop(sequence)

    def schedule(self) -> list[Work]:
        """The work of one step. Blocks for it are allocated; sequences that lost theirs are back in the queue."""
        self._make_room()
        work = [Work(sequence, 1) for sequence in self.running if sequence.decoding]
        prompts = [sequence for sequence in self.running if not sequence.decoding]
        budget = self._settings.max_batch_tokens - len(work)
        computing: set[tuple[int, Key] | None] = set()
        if self._pace is None:
            budget -= self._go_on(prompts, budget, work, computing)
            self._admit(budget, work, computing)
        else:
            self._paced(self._pace, prompts, budget, work, computing)
        return self._with_drafts(work)

    def _paced(
        self,
        pace: Pace,
        prompts: list[Sequence],
        budget: int,
        work: list[Work],
        computing: set[tuple[int, Key] | None],
    ) -> None:
        """Prompts as far as the pace allows. The longest that has begun and all others take turns, so neither waits for long.

        Whose turn it is has the step's room first. Where it is too small for who is next, it is left to grow.
        """
        room = _Room(
            pace, pace.room_s(len(work), float(sum(len(item.sequence.tokens) for item in work))), len(work), budget
        )
        computing.update(self._blocks.next_key(sequence, sequence.nodes) for sequence in prompts)
        prompts.sort(key=lambda sequence: sequence.pending)
        room.least = LEAST_TOKENS if not pace.saves or self._held >= PATIENCE else 0
        self._held += 1
        turns = [(False, prompts[:-1]), (True, prompts[-1:])]
        for long, begun in reversed(turns) if self._long_next else turns:
            rows = room.rows
            enough = all(self._take(room, sequence, work, computing) for sequence in begun)
            enough = enough and (long or self._arrive(room, work, computing))
            if room.rows > rows:
                self._long_next, self._held, room.least = not long, 0, 0
            if not enough:
                break

    def _take(self, room: _Room, sequence: Sequence, work: list[Work], computing: set[tuple[int, Key] | None]) -> bool:
        """A chunk of a prompt that has begun; whether there was room for it."""
        count = room.tokens(sequence.computed, sequence.pending)
        if count:
            self._chunk(sequence, count, work, computing)
            room.take(sequence.computed, count)
        return count > 0

    def _arrive(self, room: _Room, work: list[Work], computing: set[tuple[int, Key] | None]) -> bool:
        """Arrivals begin; whether there was room for the first of them."""
        if not self.waiting:
            return True
        # Beside nobody who decodes there is no limit but the budget: as many as fit in.
        most = room.tokens(0, self.waiting[0].pending if room.bounded else room.budget)
        if most:
            room.take(0, most - self._admit(most, work, computing, room.pace.places(self._settings.max_batch)))
        return most > 0

    def _go_on(
        self, prompts: list[Sequence], budget: int, work: list[Work], computing: set[tuple[int, Key] | None]
    ) -> int:
        """Chunks of prompts that have begun, in this order; the tokens that they take."""
        taken = 0
        for sequence in prompts:
            if taken < budget:
                taken += self._chunk(sequence, budget - taken, work, computing)
        return taken

    def _with_drafts(self, work: list[Work]) -> list[Work]:
        """Fill the step up with drafted tokens, shared out evenly. Nobody loses a block for them."""
        drafting = [at for at, item in enumerate(work) if self._may_draft(item.sequence)]
        room = min(self._settings.draft_rows, self._settings.max_batch_tokens) - sum(item.count for item in work)
        for left, at in zip(range(len(drafting), 0, -1), drafting, strict=True):
            share = -(-room // left)
            if share <= 0:
                break
            draft = self._draft(work[at].sequence, share, len(work))
            work[at] = replace(work[at], draft=draft)
            room -= len(draft)
        return work

    def _may_draft(self, sequence: Sequence) -> bool:
        return sequence.drafter is not None and sequence.decoding and sequence.sampled > 0

    def _draft(self, sequence: Sequence, room: int, decoding: int) -> tuple[int, ...]:
        """A draft that fits: one token of the answer always comes from the step itself."""
        assert sequence.drafter is not None
        room = min(room, sequence.request.params.max_tokens - sequence.sampled - 1)
        if room < 1:
            return ()
        draft = sequence.drafter.propose(sequence.tokens, sequence.prompt_tokens, room, decoding)
        if draft:
            self._blocks.grow(sequence, len(sequence.tokens) + len(draft))
        return tuple(draft[: len(sequence.blocks) * self._blocks.block_size - len(sequence.tokens)])

    def _make_room(self) -> None:
        """Every decoding sequence gets a slot for its next token; where blocks run out, who is least urgent gives way."""
        for sequence in list(self.running):
            while sequence in self.running and not self._blocks.grow(sequence, len(sequence.tokens)):
                # Of equals the one that joined last. So the most urgent is never put back, and everybody becomes it.
                self._preempt(max(reversed(self.running), key=lambda one: one.urgency))

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the head of the queue, without its blocks: what it had is set aside, or will be computed again.

        (Or found in the prefix tree.)
        """
        self.running.remove(sequence)
        if self._swap is not None:
            self._swap.put(sequence)
        self._blocks.free(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _chunk(self, sequence: Sequence, budget: int, work: list[Work], computing: set[tuple[int, Key] | None]) -> int:
        count = min(sequence.pending, budget) if self._settings.chunked_prefill else sequence.pending
        work.append(Work(sequence, count))
        computing.add(self._blocks.next_key(sequence, sequence.nodes))
        return count

    def _order(self) -> None:
        """By urgency; of the first in line, one whose prompt is known counts as if it had come up to `CACHED_AHEAD_S` sooner.

        So those that share a beginning come together while it is there, and nobody waits for that longer than so.
        """
        if any(sequence.request.priority for sequence in self.waiting):
            self.waiting = deque(sorted(self.waiting, key=lambda sequence: sequence.urgency))
        if self._blocks.tree is None or len(self.waiting) < 2 or not self._blocks.tree.size:
            return
        first = [self.waiting.popleft() for _ in range(min(len(self.waiting), MOST_ORDERED))]
        size = self._blocks.block_size
        known = {one.id: len(self._blocks.match(one)) * size / len(one.tokens) for one in first}
        first.sort(key=lambda one: one.urgency - CACHED_AHEAD_S * known[one.id])
        self.waiting.extendleft(reversed(first))

    def _admit(
        self, budget: int, work: list[Work], computing: set[tuple[int, Key] | None], places: int | None = None
    ) -> int:
        """Take arrivals in order, those with much in the prefix cache a little ahead; the budget that is left.

        One whose next block is being computed by another in this very step waits for it.
        """
        deferred: list[Sequence] = []
        places = self._settings.max_batch if places is None else places
        if budget > 0 and len(self.running) < places:
            self._order()
        while self.waiting and budget > 0 and len(self.running) < places:
            sequence = self.waiting[0]
            nodes = self._blocks.match(sequence)
            swapped = self._swap.computed(sequence) if self._swap is not None else 0
            following = self._blocks.next_key(sequence, nodes)
            if not swapped and following is not None and following in computing:
                deferred.append(self.waiting.popleft())
                continue
            fresh = len(sequence.tokens) - max(len(nodes) * self._blocks.block_size, swapped)
            whole = not self._settings.chunked_prefill
            # What no step has room for goes beside those who decode, else it waits until nobody does.
            if whole and fresh > budget and any(not item.sequence.decoding for item in work):
                break
            if not self._blocks.admit(sequence, nodes, len(sequence.tokens)):
                break
            self.waiting.popleft()
            self.running.append(sequence)
            if swapped and self._swap is not None:
                self._swap.restore(sequence)
            sequence.cached_tokens = sequence.cached_tokens if sequence.started else sequence.computed
            budget -= self._chunk(sequence, budget, work, computing)
        self.waiting.extendleft(reversed(deferred))
        return budget
