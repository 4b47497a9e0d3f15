"""Early refusals, priorities, and requests that give way: who is late is told at once, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.helpers import GREEDY, finish, prompt, tokens_of
from tests.engine.models import save_model
from tests.engine.test_pacing import LONGEST, TIMES

from vibeserve.engine.admission import Admission
from vibeserve.engine.blocks import BlockManager
from vibeserve.engine.core import EngineCore
from vibeserve.engine.errors import OverloadedError, QueueFullError
from vibeserve.engine.pacing import Pace
from vibeserve.engine.scheduler import Scheduler
from vibeserve.engine.sequence import Sequence
from vibeserve.engine.settings import Settings
from vibeserve.engine.thread import EngineThread
from vibeserve.engine.types import PRIORITY_STEP_S, Request

SETTINGS = Settings(max_batch=4, max_batch_tokens=64, ttft_target_ms=500, tpot_target_ms=40)


def admission(**changes: object) -> Admission:
    chosen = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    return Admission(chosen, Pace(chosen, TIMES, LONGEST))


def request(name: str, tokens: int = 20, answer: int = 20, priority: int = 0) -> Request:
    return Request(name, tuple(range(1, tokens + 1)), replace(GREEDY, max_tokens=answer), priority=priority)


def begun(one: Request, sampled: int = 1) -> Sequence:
    sequence = Sequence(one, 0.0)
    sequence.computed = len(one.prompt_ids)
    sequence.tokens += [7] * sampled
    return sequence


def test_a_queue_that_is_too_long_is_refused_with_a_time_to_come_back() -> None:
    door = admission()
    taken = 0
    with pytest.raises(OverloadedError, match=r"the target is 0\.5 s") as caught:  # noqa: PT012
        for number in range(100):
            door.welcome(request(str(number)), float(number) / 1e6)
            taken += 1
    assert 4 <= taken < 40
    assert caught.value.retry_after_s >= 1
    assert door.refused == 1


def test_who_finds_nobody_is_always_taken() -> None:
    admission().welcome(request("huge", tokens=100_000), 0.0)


def test_a_place_that_becomes_free_lets_the_next_in() -> None:
    door = admission(max_batch=1)
    first = request("first", answer=1000)
    door.welcome(first, 0.0)
    door.progress(begun(first), first=True)
    with pytest.raises(OverloadedError):
        door.welcome(request("second"), 1.0)
    door.progress(begun(first, sampled=995), first=False)
    door.welcome(request("second"), 1.0)
    door.left(begun(first, sampled=1000), ended=True)
    door.left(begun(request("second"), sampled=20), ended=True)
    door.welcome(request("third"), 1.0)


def test_answers_that_end_early_are_learned() -> None:
    door = admission(max_batch=1)
    for number in range(60):
        one = request(str(number), answer=1000)
        door.welcome(one, 0.0)
        door.left(begun(one, sampled=5), ended=True)
    door.welcome(request("first", answer=1000), 0.0)
    door.welcome(request("second"), 1.0)


def test_the_urgent_do_not_wait_behind_the_others() -> None:
    door = admission()
    with pytest.raises(OverloadedError):  # noqa: PT012
        for number in range(100):
            door.welcome(request(str(number)), float(number) / 1e6)
    door.welcome(request("urgent", priority=-1), 1.0)
    with pytest.raises(OverloadedError):
        door.welcome(request("idle", priority=5), 1.0)


def order(scheduler: Scheduler, manager: BlockManager, limit: int = 3000) -> list[str]:
    """Steps without a model; names in the order in which they ended."""
    ended = []
    for _ in range(limit):
        if not scheduler.has_work():
            return ended
        for item in scheduler.schedule():
            samples = item.samples
            item.sequence.computed += item.count
            manager.commit(item.sequence)
            if samples:
                item.sequence.tokens.append(7)
                if item.sequence.sampled >= item.sequence.request.params.max_tokens:
                    scheduler.remove(item.sequence)
                    ended.append(item.sequence.id)
        manager.check(scheduler.running)
    raise AssertionError("it does not come to an end")


def test_priorities_put_off_and_never_for_ever() -> None:
    """One that is put off by three steps goes before whoever comes later than that, however urgent those seem."""
    manager = BlockManager(64, 4, None)
    scheduler = Scheduler(Settings(max_batch=1, max_batch_tokens=8, prefix_cache=False), manager)
    scheduler.waiting.append(Sequence(request("put off", 4, 2, priority=3), 0.0))
    for number in range(10):
        scheduler.waiting.append(Sequence(request(f"n{number}", 4, 2), number * PRIORITY_STEP_S))
    ended = order(scheduler, manager)
    assert ended[:4] == ["n0", "n1", "n2", "put off"] or ended[:4] == ["n0", "n1", "n2", "n3"]
    assert ended.index("put off") in (3, 4)


def test_the_least_urgent_gives_way_and_all_finish() -> None:
    manager = BlockManager(8, 4, None)
    scheduler = Scheduler(Settings(max_batch=4, max_batch_tokens=8, prefix_cache=False), manager)
    for number, priority in enumerate((9, 0, 0, 0)):
        scheduler.waiting.append(Sequence(request(f"r{number}", 5, 12, priority), number / 1e3))
    seen = {"r0": 0}
    for _ in range(400):
        if not scheduler.has_work():
            break
        for item in scheduler.schedule():
            samples = item.samples
            item.sequence.computed += item.count
            if samples:
                item.sequence.tokens.append(7)
                if item.sequence.sampled >= 12:
                    scheduler.remove(item.sequence)
                    seen[item.sequence.id] = len(seen)
        manager.check(scheduler.running)
    assert not scheduler.has_work()
    assert scheduler.preemptions > 0
    assert seen["r1"] < seen["r3"]


def test_a_thread_refuses_at_once_and_serves_the_rest(model_root: Path) -> None:
    chosen = Settings(max_batch=2, max_batch_tokens=32, kv_memory_bytes=1 << 20, threads=1, ttft_target_ms=1)
    model = save_model("llama", model_root)
    plain = EngineCore(model, replace(chosen, ttft_target_ms=0))
    plain.add(Request("r", prompt(1, 30), GREEDY))
    right = tokens_of(finish(plain)["r"])
    plain.close()
    engine = EngineThread(EngineCore(model, chosen))
    found: list[int] = []
    engine.submit(Request("r0", prompt(1, 30), GREEDY), lambda output: found.extend(output.token_ids))
    with pytest.raises(QueueFullError) as caught:  # noqa: PT012
        for number in range(1, 50):
            engine.submit(Request(f"r{number}", prompt(number, 30), GREEDY))
    assert isinstance(caught.value, OverloadedError)
    engine.start()
    assert engine.drain(30)
    stats = engine.stats()
    engine.stop()
    assert found == right
    assert stats.refused == 1
    assert stats.features["admission_control"]
    assert stats.kv_blocks_used == 0
