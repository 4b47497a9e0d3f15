"""What is in the blocks: the keys of a token are its whole prefix here, so a block that is in the wrong place is seen at once.

Scheduler, blocks, prefix tree and swap space are the real ones; only the arithmetic is left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vibeserve.engine.batch import Bytes
from vibeserve.engine.blocks import BlockManager
from vibeserve.engine.prefix_tree import PrefixTree
from vibeserve.engine.scheduler import Scheduler, Work
from vibeserve.engine.sequence import Sequence
from vibeserve.engine.settings import Settings
from vibeserve.engine.speculation import Speculation
from vibeserve.engine.swap import SwapSpace
from vibeserve.engine.types import Request, SamplingParams

BLOCK, BLOCKS = 6, 11
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


class Shelf:
    """KV blocks as numbers: a slot holds a digest of all tokens up to its own."""

    def __init__(self) -> None:
        self.slots = np.zeros((BLOCKS, BLOCK), dtype=np.int64)

    @property
    def block_bytes(self) -> int:
        return BLOCK * 8

    def read_blocks(self, blocks: list[int]) -> Bytes:
        return self.slots[blocks].copy().view(np.uint8)

    def write_blocks(self, blocks: list[int], data: Bytes) -> None:
        self.slots[blocks] = data.copy().view(np.int64)

    def copy(self, source: int, target: int) -> None:
        self.slots[target] = self.slots[source]


def digest(tokens: list[int]) -> int:
    return hash(tuple(tokens)) or 1


def following(tokens: list[int]) -> int:
    """The next token of the "model": it repeats itself often enough for drafts to be right, and not always."""
    return (tokens[-1] + len(tokens) % 3) % 4


class Contents(RuleBasedStateMachine):
    """Requests come, compute, give way and are cancelled; every slot always holds what its sequence says."""

    swap_blocks = 0
    prefix_cache = True
    chunked = True

    def __init__(self) -> None:
        super().__init__()
        chosen = Settings(
            max_batch=4, max_batch_tokens=9, block_size=BLOCK, prefix_cache=self.prefix_cache, chunked_prefill=self.chunked,
            draft_rows=8,
        )  # fmt: skip
        self.shelf = Shelf()
        tree = PrefixTree(BLOCK) if self.prefix_cache else None
        self.blocks = BlockManager(BLOCKS, BLOCK, tree, self.shelf.copy)
        self.swap = SwapSpace(self.shelf, self.blocks, self.swap_blocks * BLOCK * 8) if self.swap_blocks else None  # type: ignore[arg-type]
        self.scheduler = Scheduler(chosen, self.blocks, None, self.swap)
        self.speculation = Speculation(predictions=False, lookup=True, longest=7)
        self.arrived = 0

    @rule(
        ids=st.lists(st.integers(0, 2), min_size=1, max_size=30),
        answer=st.integers(1, 30),
        priority=st.integers(-1, 2),
        drafts=st.booleans(),
    )
    def arrive(self, ids: list[int], answer: int, priority: int, drafts: bool) -> None:
        self.arrived += 1
        params = replace(GREEDY, max_tokens=answer)
        made = Sequence(Request(f"s{self.arrived}", tuple(ids), params, priority=priority), float(self.arrived))
        made.drafter = self.speculation.drafter(()) if drafts else None
        self.scheduler.waiting.append(made)

    @precondition(lambda self: self.scheduler.has_work())
    @rule()
    def step(self) -> None:
        work = self.scheduler.schedule()
        assert work
        for item in work:
            self._compute(item)
        for item in work:
            self._settle(item)
        for item in work:
            self.blocks.commit(item.sequence)
            if item.sequence.sampled >= item.sequence.request.params.max_tokens:
                self.scheduler.remove(item.sequence)

    def _compute(self, item: Work) -> None:
        """Keys of all rows, those of the draft included."""
        one = item.sequence
        tokens = [*one.tokens[: one.computed + item.count], *item.draft]
        for place in range(one.computed, one.computed + item.rows):
            self.shelf.slots[one.blocks[place // BLOCK], place % BLOCK] = digest(tokens[: place + 1])

    def _settle(self, item: Work) -> None:
        """Choose tokens for as long as the draft has them."""
        one, samples = item.sequence, item.samples
        one.computed += item.count
        if not samples:
            return
        accepted = 0
        for guess in (*item.draft, None):
            one.tokens.append(following(one.tokens))
            if one.tokens[-1] != guess:
                break
            accepted += 1
        one.computed += accepted
        self.blocks.trim(one)
        if item.draft and one.drafter is not None:
            one.drafter.record(len(item.draft), accepted)

    @precondition(lambda self: self.scheduler.has_work())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.scheduler.remove(data.draw(st.sampled_from([*self.scheduler.running, *self.scheduler.waiting])))

    @invariant()
    def every_slot_holds_what_its_sequence_says(self) -> None:
        self.blocks.check(self.scheduler.running)
        for one in self.scheduler.running:
            for place in range(one.computed):
                held = self.shelf.slots[one.blocks[place // BLOCK], place % BLOCK]
                assert held == digest(one.tokens[: place + 1]), (one.id, place)

    def teardown(self) -> None:
        for _ in range(10_000):
            if not self.scheduler.has_work():
                break
            self.step()
            self.every_slot_holds_what_its_sequence_says()
        assert not self.scheduler.has_work()
        assert self.blocks.used == 0
        assert self.swap is None or self.swap.blocks_held == 0


@pytest.mark.parametrize("swap", [0, 5, 100])
@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_every_slot_holds_what_its_sequence_says(swap: int, tree: bool, chunked: bool) -> None:
    case = type("Case", (Contents,), {"swap_blocks": swap, "prefix_cache": tree, "chunked": chunked}).TestCase
    case.settings = hypothesis_settings(max_examples=40, stateful_step_count=60, deadline=None)
    case("runTest").debug()
