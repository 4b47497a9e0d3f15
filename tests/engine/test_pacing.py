"""Steps whose time is foreseen: prompts get what those who decode can bear, nobody starves, no answer changes."""

from __future__ import annotations

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
from vibeserve.engine.pacing import LEAST_TOKENS, MARGIN, Pace, StepTimes, measure
from vibeserve.engine.prefix_tree import PrefixTree
from vibeserve.engine.scheduler import Scheduler
from vibeserve.engine.settings import Settings
from vibeserve.engine.types import Request

# A step of one row takes 10 ms and each further one 1 ms; a pair of query and key takes 1 µs.
TIMES = StepTimes((1, 11, 101), (0.010, 0.020, 0.110), 1e-6)
STRETCHED = Settings(max_batch=4, max_batch_tokens=64, block_size=BLOCK, prefill_stretch_pct=150)
TARGETED = Settings(max_batch=16, max_batch_tokens=64, tpot_target_ms=40)


def test_a_broken_line_between_what_was_measured() -> None:
    assert TIMES.at(1) == pytest.approx(0.010)
    assert TIMES.at(6) == pytest.approx(0.015)
    assert TIMES.at(201) == pytest.approx(0.210)  # beyond the last: as its last piece
    assert TIMES.at(1, 1000) == pytest.approx(0.011)


@pytest.mark.parametrize(
    ("decoding", "pairs", "position", "expected"),
    [
        (0, 0.0, 0, 60),  # nobody waits: as much as there is
        (1, 0.0, 0, 5),  # half of 10 ms
        (11, 0.0, 0, 9),  # half of 20 ms, and the pairs of the chunk itself
        (1, 0.0, 10_000, LEAST_TOKENS),  # one row that far on takes more than the whole allowance
    ],
)
def test_prompt_tokens_within_the_stretch(decoding: int, pairs: float, position: int, expected: int) -> None:
    pace = Pace(STRETCHED, TIMES)
    assert pace.tokens(decoding, pairs, position, 60) == pytest.approx(expected, abs=1)


def test_the_time_of_a_token_bounds_prompts_and_places() -> None:
    pace = Pace(TARGETED, TIMES)
    tokens = pace.tokens(4, 0.0, 0, 60)
    assert pace.seconds(4 + tokens, tokens * tokens / 2) <= MARGIN * 0.040 < pace.seconds(4 + tokens + 2)
    assert pace.places(100) == 23
    assert Pace(STRETCHED, TIMES).places(100) == 100
    assert Pace(replace(TARGETED, tpot_target_ms=1), TIMES).places(100) == 1


def test_slower_steps_mean_fewer_tokens() -> None:
    pace = Pace(TARGETED, TIMES)
    before = pace.tokens(4, 0.0, 0, 60)
    for _ in range(200):
        pace.learn(8, 0.0, 2 * TIMES.at(8))
    assert pace.scale == pytest.approx(2, rel=0.01)
    assert pace.tokens(4, 0.0, 0, 60) < before / 2


class Metered:
    """A back end whose steps take what `TIMES` says, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def forward(self, batch: StepBatch) -> StepResult:
        self.now += TIMES.at(len(batch.tokens), float((batch.positions + 0.5).sum()))
        return StepResult(np.zeros(1, dtype=np.int32), None, 0.0, 0.0)


def test_what_is_measured_is_what_it_takes() -> None:
    backend = Metered()
    times = measure(backend, 1024, 16, 8192, 256, backend.clock)  # type: ignore[arg-type]
    for rows in (1, 3, 16, 100, 256):
        assert times.at(rows) == pytest.approx(TIMES.at(rows, rows * rows / 2), rel=0.1)
    assert times.pair_s == pytest.approx(1e-6, rel=0.05)
    smallest = measure(backend, 1, 16, 1, 1, backend.clock)  # type: ignore[arg-type]
    assert smallest.at(1) == pytest.approx(0.010, rel=0.01)


def steps(scheduler: Scheduler, manager: BlockManager) -> Iterator[dict[str, int]]:
    """Steps without a model, by what each sequence had computed."""
    while scheduler.has_work():
        work = scheduler.schedule()
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
    return Scheduler(chosen, manager, Pace(chosen, TIMES)), manager


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    scheduler, manager = paced()
    scheduler.waiting.append(sequence(tuple(range(100, 104)), "first", max_tokens=200))
    run = steps(scheduler, manager)
    next(run)
    scheduler.waiting.append(sequence(tuple(range(600)), "long"))
    next(run)
    scheduler.waiting.append(sequence((5, 6, 7), "short", max_tokens=2))
    seen = [next(run) for _ in range(6)]
    assert any("short" in step for step in seen[:2])
    assert all(step["first"] == 1 for step in seen)
    assert all("long" in step for step in seen[-1:])


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
