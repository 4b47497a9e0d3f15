"""Steps whose time is foreseen: prompts get what those who decode can bear, nobody starves, no answer changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from tests.engine.helpers import GREEDY, finish, prompt, tokens_of
from tests.engine.models import save_model
from tests.engine.test_scheduling import BLOCK, sequence

from vibeserve.engine.batch import StepBatch, StepResult
from vibeserve.engine.blocks import BlockManager
from vibeserve.engine.core import EngineCore
from vibeserve.engine.errors import SettingsError
from vibeserve.engine.pacing import MARGIN, WORTHWHILE_TOKENS, Pace, StepTimes, measure
from vibeserve.engine.prefix_tree import PrefixTree
from vibeserve.engine.scheduler import LEAST_TOKENS, PATIENCE, Scheduler
from vibeserve.engine.settings import Settings
from vibeserve.engine.types import Request

# A step of one row takes 10 ms and each further one 1 ms; a pair of query and key takes 1 µs, a key 3 µs.
TIMES = StepTimes((1, 11, 101), (0.010, 0.020, 0.110), 1e-6, 3e-6)
LONGEST = 1000
STRETCHED = Settings(max_batch=4, max_batch_tokens=64, block_size=BLOCK, prefill_stretch_pct=150)
TARGETED = Settings(max_batch=16, max_batch_tokens=64, tpot_target_ms=40)


def test_a_broken_line_between_what_was_measured() -> None:
    assert TIMES.at(1) == pytest.approx(0.010)
    assert TIMES.at(6) == pytest.approx(0.015)
    assert TIMES.at(201) == pytest.approx(0.210)  # beyond the last: as its last piece
    assert TIMES.at(1, 1000) == pytest.approx(0.011)
    assert TIMES.at(1, 1000, 1000) == pytest.approx(0.014)


def test_prompt_tokens_within_the_room() -> None:
    pace = Pace(STRETCHED, TIMES, LONGEST)
    assert pace.tokens(math.inf, 0, 0, 60) == 60
    # 20 tokens: 20 ms, 200 pairs, 20 keys; at 1,000 they see 20,200 pairs and 1,020 keys.
    assert pace.added_s(1, 0, 20) == pytest.approx(0.020 + 200e-6 + 60e-6)
    assert pace.added_s(1, 1000, 20) == pytest.approx(0.020 + 20_200e-6 + 3_060e-6)
    assert pace.tokens(0.0203, 1, 0, 60) == 20
    assert pace.tokens(0.0433, 1, 1000, 60) == 20
    # What is not worth its cost waits, unless it is all that is left.
    assert pace.tokens(0.010, 1, 0, 60) == 0
    assert pace.tokens(0.010, 1, 0, 5) == 5


def test_time_for_prompts_is_saved_up_and_owed() -> None:
    pace = Pace(STRETCHED, TIMES, LONGEST)
    chunk_s = pace.added_s(1, LONGEST, WORTHWHILE_TOKENS)
    assert pace.room_s(0, 0) == math.inf
    assert pace.room_s(1, 0) == 0
    pace.save(1, 0, 0.010, alone=True)
    assert pace.room_s(1, 0) == pytest.approx(0.005)  # half of 10 ms
    pace.save(1, 100, 0.020, alone=False)
    assert pace.room_s(1, 0) == pytest.approx(0.005 + 1.5 * 0.0104 - 0.020)
    for _ in range(100):
        pace.save(1, 0, 0.010, alone=True)
    assert pace.room_s(1, 0) == pytest.approx(chunk_s)
    pace.save(1, 0, 100.0, alone=False)
    assert pace.room_s(1, 0) == pytest.approx(-chunk_s)
    before = pace.room_s(1, 0)
    pace.save(0, 0, 100.0, alone=False)  # nobody waited
    assert pace.room_s(1, 0) == before


def test_the_time_of_a_token_bounds_prompts_and_places() -> None:
    pace = Pace(TARGETED, TIMES, LONGEST)
    room_s = pace.room_s(4, 0.0)
    assert room_s == pace.steady_s(4) == pytest.approx(MARGIN * 0.040 - 0.013)
    tokens = pace.tokens(room_s, 4, 0, 60)
    assert pace.seconds(4 + tokens, tokens * tokens / 2, tokens) <= MARGIN * 0.040 < pace.seconds(4 + tokens + 2)
    assert pace.room_s(4, 1000.0) == pytest.approx(room_s - 0.004)
    assert pace.places(100) == 23
    assert Pace(STRETCHED, TIMES, LONGEST).places(100) == 100
    assert Pace(replace(TARGETED, tpot_target_ms=1), TIMES, LONGEST).places(100) == 1


def test_slower_steps_mean_fewer_tokens() -> None:
    pace = Pace(TARGETED, TIMES, LONGEST)
    before = pace.tokens(pace.room_s(4, 0.0), 4, 0, 60)
    for _ in range(200):
        pace.learn(8, 0.0, 0.0, 2 * TIMES.at(8))
    assert pace.scale == pytest.approx(2, rel=0.01)
    assert pace.tokens(pace.room_s(4, 0.0), 4, 0, 60) < before / 2


class Metered:
    """A back end whose steps take what `TIMES` says, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def forward(self, batch: StepBatch) -> StepResult:
        self.now += TIMES.at(len(batch.tokens), float((batch.positions + 0.5).sum()), float(batch.positions[-1] + 1))
        return StepResult(np.zeros(1, dtype=np.int32), None, 0.0, 0.0)


def test_what_is_measured_is_what_it_takes() -> None:
    backend = Metered()
    times = measure(backend, 1024, 16, 8192, 256, backend.clock)  # type: ignore[arg-type]
    for rows in (1, 3, 16, 100, 256):
        assert times.at(rows) == pytest.approx(TIMES.at(rows, rows * rows / 2), rel=0.1)
    assert times.pair_s == pytest.approx(1e-6, rel=0.05)
    assert times.key_s == pytest.approx(3e-6, rel=0.05)
    smallest = measure(backend, 1, 16, 1, 1, backend.clock)  # type: ignore[arg-type]
    assert smallest.at(1) == pytest.approx(0.010, rel=0.01)


def steps(scheduler: Scheduler, manager: BlockManager) -> Iterator[dict[str, int]]:
    """Steps without a model, by what each sequence had computed."""
    while scheduler.has_work():
        work = scheduler.schedule()
        decoding = [item.sequence for item in work if item.sequence.decoding]
        keys = float(sum(len(one.tokens) for one in decoding))
        pairs = sum(item.count * (item.sequence.computed + item.count / 2) for item in work)
        took = TIMES.at(
            sum(item.count for item in work), pairs, sum(item.sequence.computed + item.count for item in work)
        )
        if scheduler._pace is not None:
            scheduler._pace.save(len(decoding), keys, took, alone=len(decoding) == len(work))
        yield {item.sequence.id: item.count for item in work}
        for item in work:
            samples = item.samples
            item.sequence.computed += item.count
            manager.commit(item.sequence)
            if samples:
                item.sequence.tokens.append(7)
                if item.sequence.sampled >= item.sequence.request.params.max_tokens:
                    scheduler.remove(item.sequence)
        manager.check(scheduler.running)


def paced(blocks: int = 512, **changes: object) -> tuple[Scheduler, BlockManager]:
    chosen = replace(STRETCHED, **changes)  # type: ignore[arg-type]
    manager = BlockManager(blocks, BLOCK, PrefixTree(BLOCK))
    return Scheduler(chosen, manager, Pace(chosen, TIMES, LONGEST)), manager


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    scheduler, manager = paced()
    scheduler.waiting.append(sequence(tuple(range(100, 104)), "first", max_tokens=200))
    run = steps(scheduler, manager)
    next(run)
    scheduler.waiting.append(sequence(tuple(range(600)), "long"))
    next(run)
    scheduler.waiting.append(sequence((5, 6, 7), "short", max_tokens=2))
    seen = [next(run) for _ in range(60)]
    assert any("short" in step for step in seen[:12])
    assert all(step["first"] == 1 for step in seen)
    chunks = [step["long"] for step in seen if "long" in step]
    assert len(chunks) > 3
    assert all(count >= WORTHWHILE_TOKENS for count in chunks)


def test_steps_are_stretched_as_much_as_was_set_on_the_average() -> None:
    """One decodes while a long prompt comes: its time per token is half as much again, the prompt gets all the rest."""
    scheduler, manager = paced(max_batch_tokens=512)
    scheduler.waiting.append(sequence(tuple(range(100, 104)), "first", max_tokens=300))
    run = steps(scheduler, manager)
    next(run)
    scheduler.waiting.append(sequence(tuple(range(900)), "long"))
    spent = alone = at = 0.0
    while at < 900:
        step = next(run)
        keys = 4 + step["first"]
        count = step.get("long", 0)
        alone += TIMES.at(1, keys, keys)
        spent += TIMES.at(1 + count, keys + count * (at + count / 2), keys + (at + count if count else 0))
        at += count
    assert 1.4 < spent / alone < 1.55


def test_a_prompt_goes_on_whatever_the_pace() -> None:
    """Steps that are always slower than foreseen leave nothing for prompts: still one goes on now and then."""
    scheduler, manager = paced()
    assert scheduler._pace is not None
    scheduler.waiting.append(sequence(tuple(range(100, 104)), "first", max_tokens=500))
    run = steps(scheduler, manager)
    next(run)
    scheduler.waiting.append(sequence(tuple(range(30)), "long"))
    counts = []
    for _ in range(3 * PATIENCE + 4):
        scheduler._pace.save(1, 0, 1.0, alone=False)
        counts.append(next(run).get("long", 0))
    assert [count for count in counts if count] == [LEAST_TOKENS] * 3


def test_a_long_prompt_is_not_held_up_for_ever_by_short_ones() -> None:
    scheduler, manager = paced()
    numbers = count()
    scheduler.waiting.append(sequence(tuple(range(100, 104)), "first", max_tokens=2000))
    scheduler.waiting.append(sequence(tuple(range(400)), "long", max_tokens=1))
    run = steps(scheduler, manager)
    for _ in range(1200):
        while len(scheduler.waiting) < 2:
            scheduler.waiting.append(sequence(tuple(range(1000, 1030)), f"s{next(numbers)}", max_tokens=1))
        next(run)
        if not any(one.id == "long" for one in (*scheduler.running, *scheduler.waiting)):
            break
    else:
        raise AssertionError("the long prompt is still there")
    assert next(numbers) > 10


@pytest.mark.parametrize("changes", [{"prefill_stretch_pct": 101}, {"tpot_target_ms": 1, "ttft_target_ms": 1}])
def test_the_pace_changes_no_answer(model_root: Path, backend: str, changes: dict[str, int]) -> None:
    base = Settings(backend=backend, max_batch=4, max_batch_tokens=64, kv_memory_bytes=1 << 20, threads=1)
    model = save_model("llama", model_root)
    answers = []
    for chosen in (replace(base, chunked_prefill=False), replace(base, **changes)):  # type: ignore[arg-type]
        core = EngineCore(model, chosen)
        for index in range(6):
            core.add(Request(str(index), prompt(index, 5 + 40 * index), GREEDY))
        answers.append({name: tokens_of(outputs) for name, outputs in finish(core).items()})
        assert core.stats().features["paced_prefill"] == bool(changes.keys() & chosen.to_dict().keys() and chosen.paced)
        core.close()
    assert answers[0] == answers[1]


def test_what_is_taken_is_said_beforehand(model_root: Path) -> None:
    model = save_model("llama", model_root)
    sizes = []
    for tokens in (64, 128):
        core = EngineCore(model, Settings(max_batch_tokens=tokens, kv_memory_bytes=1 << 20, threads=1))
        sizes.append(core.stats().memory_bytes)
        core.close()
    assert sizes[0]["kv_cache"] == sizes[1]["kv_cache"] <= 1 << 20
    assert sizes[0]["weights"] > 0
    assert sizes[0]["step"] < sizes[1]["step"]


def test_targets_need_chunks() -> None:
    with pytest.raises(SettingsError, match="need chunked_prefill"):
        Settings(chunked_prefill=False, tpot_target_ms=50)
    with pytest.raises(SettingsError, match="above 100"):
        Settings(prefill_stretch_pct=90)
