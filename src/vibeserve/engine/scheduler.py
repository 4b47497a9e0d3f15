"""What runs in the next step: decoding sequences first, then chunks of prompts, then new arrivals."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
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
        """Prompts as far as the pace allows. The shortest goes on first, arrivals have half: nobody waits for a long one."""
        pairs = float(sum(len(item.sequence.tokens) for item in work))
        position = max((sequence.computed for sequence in prompts), default=0)
        budget = pace.tokens(len(work), pairs, position, budget) if budget > 0 else 0
        computing.update(self._blocks.next_key(sequence, sequence.nodes) for sequence in prompts)
        left = self._admit(
            -(-budget // 2) if prompts else budget, work, computing, pace.places(self._settings.max_batch)
        )
        left += budget // 2 if prompts else 0
        # The longest keeps a quarter: short ones that keep coming do not hold it up for ever.
        prompts.sort(key=lambda sequence: sequence.pending)
        kept = max(1, left // 4) if len(prompts) > 1 and left > 1 else 0
        left -= self._go_on(prompts[:-1], left - kept, work, computing)
        self._go_on(prompts[-1:], left, work, computing)

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
            if whole and fresh > budget and work:
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
