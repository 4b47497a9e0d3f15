"""Scheduler, blocks and prefix tree: what runs when, and that no block goes astray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule
from tests.engine.helpers import GREEDY, finish, prompt, tokens_of
from tests.engine.models import save_model

from vibeserve.engine.blocks import BlockManager
from vibeserve.engine.core import EngineCore
from vibeserve.engine.errors import EngineError, RequestError
from vibeserve.engine.prefix_tree import PrefixTree
from vibeserve.engine.scheduler import Scheduler
from vibeserve.engine.sequence import Sequence
from vibeserve.engine.settings import Settings
from vibeserve.engine.types import Request

BLOCK = 4


def sequence(ids: tuple[int, ...], name: str = "s", max_tokens: int = 8) -> Sequence:
    return Sequence(Request(name, ids, replace(GREEDY, max_tokens=max_tokens)), 0.0)


def parts(blocks: int, **changes: object) -> tuple[Scheduler, BlockManager]:
    base = Settings(max_batch=4, max_batch_tokens=8, block_size=BLOCK)
    chosen = replace(base, **changes)  # type: ignore[arg-type]
    manager = BlockManager(blocks, BLOCK, PrefixTree(BLOCK) if chosen.prefix_cache else None)
    return Scheduler(chosen, manager), manager


def run(scheduler: Scheduler, manager: BlockManager) -> list[tuple[str, int]]:
    """One step without a model: the next token is always 7."""
    work = scheduler.schedule()
    report = [(item.sequence.id, item.count) for item in work]
    for item in work:
        samples = item.samples
        item.sequence.computed += item.count
        manager.commit(item.sequence)
        if samples:
            item.sequence.tokens.append(7)
            if item.sequence.sampled >= item.sequence.request.params.max_tokens:
                scheduler.remove(item.sequence)
    manager.check(scheduler.running)
    return report


def test_a_long_prompt_is_cut_and_decoding_goes_on_beside_it() -> None:
    scheduler, manager = parts(32, prefix_cache=False)
    scheduler.waiting.append(sequence((1, 2), "short"))
    assert run(scheduler, manager) == [("short", 2)]
    scheduler.waiting.append(sequence(tuple(range(20)), "long"))
    assert run(scheduler, manager) == [("short", 1), ("long", 7)]
    assert run(scheduler, manager) == [("short", 1), ("long", 7)]
    assert run(scheduler, manager) == [("short", 1), ("long", 6)]
    assert run(scheduler, manager) == [("short", 1), ("long", 1)]


def test_without_chunking_a_prompt_is_computed_whole() -> None:
    scheduler, manager = parts(32, prefix_cache=False, chunked_prefill=False)
    scheduler.waiting.extend([sequence(tuple(range(20)), "long"), sequence((1, 2), "short")])
    assert run(scheduler, manager) == [("long", 20)]
    assert run(scheduler, manager) == [("long", 1), ("short", 2)]


def test_whole_prompts_longer_than_a_step_join_those_who_decode_one_a_step() -> None:
    scheduler, manager = parts(64, prefix_cache=False, chunked_prefill=False)
    for name, length in (("a", 20), ("b", 20), ("c", 7), ("d", 8), ("e", 1)):
        scheduler.waiting.append(sequence(tuple(range(length)), name))
    assert run(scheduler, manager) == [("a", 20)]
    assert run(scheduler, manager) == [("a", 1), ("b", 20)]
    assert run(scheduler, manager) == [("a", 1), ("b", 1), ("c", 7)]
    assert run(scheduler, manager) == [("a", 1), ("b", 1), ("c", 1), ("d", 8)]


def test_requests_with_one_beginning_wait_for_the_first_and_share_its_blocks() -> None:
    scheduler, manager = parts(64)
    shared = tuple(range(8))
    for name in "abc":
        scheduler.waiting.append(sequence((*shared, ord(name), 1, 2), name))
    assert run(scheduler, manager) == [("a", 8)]
    assert run(scheduler, manager) == [("a", 3), ("b", 3), ("c", 2)]
    a, b, c = scheduler.running
    assert a.blocks[:2] == b.blocks[:2] == c.blocks[:2]
    assert (a.cached_tokens, b.cached_tokens, c.cached_tokens) == (0, 8, 8)
    assert len({a.blocks[2], b.blocks[2], c.blocks[2]}) == 3


def test_a_block_that_is_known_in_part_is_shared_in_part(core: EngineCore, model_root: Path) -> None:
    """Its tokens up to where they part are taken over, and the answers are those of an engine without a cache."""
    plain = EngineCore(save_model("llama", model_root), replace(core.settings, prefix_cache=False))
    shared = prompt(301, 40)
    for at, cached in ((0, 0), (1, 40), (2, 40)):
        ids = (*shared, *prompt(310 + at, 20))
        core.add(Request("cached", ids, GREEDY))
        outputs = finish(core)["cached"]
        assert outputs[0].cached_tokens == cached
        plain.add(Request("plain", ids, GREEDY))
        assert tokens_of(outputs) == tokens_of(finish(plain)["plain"])
    plain.close()


def test_of_those_in_line_the_known_come_first_but_not_before_who_has_waited_long() -> None:
    scheduler, manager = parts(64, max_batch=1)
    shared = tuple(range(8))
    scheduler.waiting.append(sequence((*shared, 9), "first", max_tokens=1))
    run(scheduler, manager)
    run(scheduler, manager)
    late = [sequence((30 + at, *range(40, 48)), name, max_tokens=1) for at, name in enumerate(("unknown", "old"))]
    late[1].arrival = -5.0
    known = sequence((*shared, 10), "known", max_tokens=1)
    scheduler.waiting.extend([late[1], late[0], known])
    order = []
    while scheduler.has_work():
        order += [name for name, _ in run(scheduler, manager)]
    assert list(dict.fromkeys(order)) == ["old", "known", "unknown"]


def test_two_that_computed_the_same_block_keep_one() -> None:
    scheduler, manager = parts(64)
    ids = (1, 2, 3, 4)
    scheduler.waiting.append(sequence(ids, "a"))
    run(scheduler, manager)
    # The last block of a prompt is computed again for its logits, then given up for the known one.
    scheduler.waiting.append(sequence(ids, "b"))
    run(scheduler, manager)
    a, b = scheduler.running
    assert a.blocks[0] == b.blocks[0]


def test_the_newest_gives_way_when_blocks_run_out_and_all_finish() -> None:
    scheduler, manager = parts(6, prefix_cache=False)
    names = "abc"
    everyone = [sequence((index,) * 5, name, max_tokens=9) for index, name in enumerate(names)]
    scheduler.waiting.extend(everyone)
    for _ in range(60):
        if not scheduler.has_work():
            break
        run(scheduler, manager)
    assert not scheduler.has_work()
    assert scheduler.preemptions > 0
    assert manager.used == 0
    assert all(one.sampled == 9 for one in everyone)


def test_oldest_idle_leaf_is_evicted_first() -> None:
    tree = PrefixTree(2)
    a = tree.insert(tree.root, (1, 1), 0)
    b = tree.insert(a, (2, 2), 1)
    c = tree.insert(a, (3, 3), 2)
    tree.acquire([a])
    tree.release([a, b])
    tree.release([a, c])
    assert tree.evict() == 1
    tree.acquire([a, c])
    assert tree.evict() is None
    tree.release([a, c])
    assert [tree.evict(), tree.evict(), tree.evict()] == [2, 0, None]


def test_the_check_sees_a_lost_and_a_doubled_block() -> None:
    _, manager = parts(8)
    one = sequence((1, 2, 3, 4, 5, 6))
    manager.admit(one, [], 6)
    manager.check([one])
    with pytest.raises(EngineError, match="astray"):
        manager.check([])
    one.blocks.append(one.blocks[0])
    with pytest.raises(EngineError, match="astray"):
        manager.check([one])


class Cache(RuleBasedStateMachine):
    """Sequences come, compute, finish and are cancelled in any order; every block stays accounted for."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.scheduler, self.manager = parts(12)
        self.count = 0

    @rule(
        ids=st.lists(st.integers(0, 1), min_size=1, max_size=14),
        answer=st.integers(1, 20),
        priority=st.integers(-1, 2),
    )
    def arrive(self, ids: list[int], answer: int, priority: int) -> None:
        self.count += 1
        made = sequence(tuple(ids), f"s{self.count}", answer)
        made.request = replace(made.request, priority=priority)
        self.scheduler.waiting.append(made)

    @precondition(lambda self: self.scheduler.has_work())
    @rule()
    def step(self) -> None:
        assert run(self.scheduler, self.manager)

    @precondition(lambda self: self.scheduler.has_work())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        everyone = [*self.scheduler.running, *self.scheduler.waiting]
        self.scheduler.remove(data.draw(st.sampled_from(everyone)))

    @invariant()
    def every_block_is_somewhere(self) -> None:
        self.manager.check(self.scheduler.running)

    def teardown(self) -> None:
        for _ in range(10_000):
            if not self.scheduler.has_work():
                break
            run(self.scheduler, self.manager)
        assert not self.scheduler.has_work()
        assert self.manager.used == 0


TestCache = Cache.TestCase
TestCache.settings = hypothesis_settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> EngineCore:
    chosen = Settings(max_batch=4, max_batch_tokens=64, kv_memory_bytes=1 << 20, threads=1, max_model_len=200)
    return EngineCore(save_model("llama", tmp_path_factory.mktemp("model")), chosen)


def test_an_abort_frees_its_blocks_within_one_step(core: EngineCore) -> None:
    core.add(Request("a", prompt(1, 100), GREEDY))
    core.step()
    assert core.stats().kv_blocks_used > 0
    core.abort("a")
    assert core.stats().kv_blocks_used == 0
    last = core.step()
    assert [(output.request_id, output.finish_reason, output.token_ids) for output in last] == [("a", "abort", ())]
    core.abort("a")
    core.abort("never heard of")
    assert not core.has_work()
    core.rest()


def test_a_prefix_is_taken_from_the_cache_and_counted(core: EngineCore) -> None:
    before = core.stats()
    ids = prompt(77, 70)
    for name in ("cold", "warm"):
        core.add(Request(name, ids, GREEDY))
        outputs = finish(core)[name]
        assert outputs[0].cached_tokens == (0 if name == "cold" else 69)  # all but the last
        assert outputs[0].prompt_tokens == 70
    after = core.stats()
    assert after.prefix_hit_tokens - before.prefix_hit_tokens == 69
    assert after.prompt_tokens - before.prompt_tokens == 140
    assert after.kv_blocks_used == 0
    assert after.kv_blocks_cached > 0
    assert after.seconds["linear"] > before.seconds["linear"]
    assert after.features["prefix_cache"]


def test_an_answer_that_reaches_its_end_token_stops(core: EngineCore) -> None:
    core.add(Request("free", prompt(4, 30), GREEDY))
    tokens = tokens_of(finish(core)["free"])
    end = tokens[3]
    core.add(Request("stopped", prompt(4, 30), replace(GREEDY, stop_token_ids=(end,))))
    outputs = finish(core)["stopped"]
    assert outputs[-1].finish_reason == "stop"
    assert tokens_of(outputs) == tokens[: tokens.index(end) + 1]


@pytest.mark.parametrize(
    ("ids", "changes", "field"),
    [
        ((), {}, "prompt"),
        ((5, 320), {}, "prompt"),
        ((-1,), {}, "prompt"),
        (prompt(1, 200), {}, "prompt"),
        (prompt(1, 190), {"max_tokens": 11}, "max_tokens"),
        ((1,), {"stop_token_ids": (999,)}, "stop_token_ids"),
        ((1,), {"logit_bias": ((999, 1.0),)}, "logit_bias"),
    ],
)
def test_a_request_beyond_the_limits_names_its_field(
    core: EngineCore, ids: tuple[int, ...], changes: dict[str, object], field: str
) -> None:
    with pytest.raises(RequestError) as caught:
        core.add(Request("x", ids, replace(GREEDY, **changes)))  # type: ignore[arg-type]
    assert caught.value.field == field
    assert not core.has_work()


def test_the_longest_possible_request_is_served(core: EngineCore) -> None:
    core.add(Request("long", prompt(1, 150), replace(GREEDY, max_tokens=50)))
    assert len(tokens_of(finish(core)["long"])) == 50


def test_batch_occupancy_and_queue_wait_are_counted(model_root: Path) -> None:
    chosen = Settings(backend="torch", max_batch=2, max_batch_tokens=64, kv_memory_bytes=1 << 20, threads=1)
    core = EngineCore(save_model("llama", model_root), chosen)
    for index in range(4):
        core.add(Request(str(index), prompt(index, 5), replace(GREEDY, max_tokens=4)))
    assert core.stats().waiting == 4
    finish(core)
    stats = core.stats()
    assert stats.batch_rows / stats.steps == 2
    assert stats.queue_wait_s > 0
    assert (stats.admitted, stats.output_tokens, stats.prompt_tokens) == (4, 16, 20)
    assert stats.finished == {"stop": 0, "length": 4, "abort": 0, "error": 0}
    assert stats.decode_tokens + stats.prefill_tokens == 4 * (5 + 3)
