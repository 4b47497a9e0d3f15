"""The engine's thread: submit and abort from anywhere, drain, stop, and what happens when a step fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.helpers import GREEDY, answer, prompt, tokens_of
from tests.engine.models import save_model

from vibeserve.engine.core import EngineCore
from vibeserve.engine.errors import QueueFullError, RequestError, StoppedError
from vibeserve.engine.settings import Settings
from vibeserve.engine.thread import EngineThread
from vibeserve.engine.types import Output, Request

SETTINGS = Settings(max_batch=4, max_batch_tokens=64, kv_memory_bytes=1 << 20, threads=1, max_waiting=8)


class Sink:
    """Collects one request's outputs and knows when it is over."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.over = threading.Event()

    def __call__(self, output: Output) -> None:
        self.outputs.append(output)
        if output.finish_reason is not None:
            self.over.set()

    def wait(self) -> list[Output]:
        assert self.over.wait(30), "no answer"
        return self.outputs


@pytest.fixture
def core(model_root: Path) -> EngineCore:
    return EngineCore(save_model("llama", model_root), SETTINGS)


@pytest.fixture
def engine(core: EngineCore) -> Iterator[EngineThread]:
    thread = EngineThread(core)
    thread.start()
    yield thread
    thread.stop()


def test_answers_from_many_threads_are_the_same_as_alone(core: EngineCore) -> None:
    expected = {index: answer(core, prompt(index, 20)) for index in range(6)}
    engine = EngineThread(core)
    engine.start()
    sinks = {index: Sink() for index in range(6)}
    submitters = [
        threading.Thread(target=engine.submit, args=(Request(f"r{index}", prompt(index, 20), GREEDY), sink))
        for index, sink in sinks.items()
    ]
    for submitter in submitters:
        submitter.start()
    for index, sink in sinks.items():
        assert tokens_of(sink.wait()) == expected[index]
    for submitter in submitters:
        submitter.join()
    engine.stop()


def test_outputs_of_a_step_come_together(core: EngineCore) -> None:
    steps: list[list[Output]] = []
    engine = EngineThread(core, steps.append)
    sink = Sink()
    for index in range(3):
        engine.submit(Request(f"r{index}", prompt(index, 9), GREEDY), sink if index == 2 else None)
    engine.start()
    sink.wait()
    assert engine.drain(10)
    engine.stop()
    assert max(map(len, steps)) == 3
    assert sum(len(output.token_ids) for step in steps for output in step) == 3 * GREEDY.max_tokens


def test_an_abort_ends_a_request_and_leaves_the_others_alone(engine: EngineThread) -> None:
    gone, kept = Sink(), Sink()
    engine.submit(Request("gone", prompt(1, 30), replace(GREEDY, max_tokens=400)), gone)
    engine.submit(Request("kept", prompt(2, 30), GREEDY), kept)
    engine.abort("gone")
    assert gone.wait()[-1].finish_reason == "abort"
    assert len(tokens_of(kept.wait())) == GREEDY.max_tokens
    engine.abort("gone")
    assert engine.drain(10)
    assert engine.stats().kv_blocks_used == 0


def test_drain_lets_requests_finish_and_takes_no_more(engine: EngineThread) -> None:
    sink = Sink()
    engine.submit(Request("last", prompt(1, 30), GREEDY), sink)
    assert engine.drain(30)
    assert sink.over.is_set()
    with pytest.raises(StoppedError):
        engine.submit(Request("late", prompt(1, 3), GREEDY))


def test_stop_ends_what_is_under_way(engine: EngineThread) -> None:
    sink = Sink()
    engine.submit(Request("long", prompt(1, 30), replace(GREEDY, max_tokens=400)), sink)
    engine.stop()
    assert sink.wait()[-1].finish_reason == "abort"


def test_refusals_come_at_once(core: EngineCore) -> None:
    engine = EngineThread(core)
    with pytest.raises(RequestError):
        engine.submit(Request("bad", (), GREEDY))
    engine.submit(Request("twice", (1,), GREEDY))
    with pytest.raises(RequestError) as caught:
        engine.submit(Request("twice", (1,), GREEDY))
    assert caught.value.field == "id"
    for index in range(SETTINGS.max_waiting + SETTINGS.max_batch - 1):
        engine.submit(Request(f"r{index}", (1,), GREEDY))
    with pytest.raises(QueueFullError):
        engine.submit(Request("too many", (1,), GREEDY))
    engine.start()
    assert engine.drain(30)
    engine.stop()


def test_a_failing_step_answers_everybody(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("broken kernel")

    monkeypatch.setattr(core._backend, "forward", fail)
    engine = EngineThread(core)
    sinks = [Sink() for _ in range(3)]
    for index, sink in enumerate(sinks):
        engine.submit(Request(f"r{index}", prompt(index, 9), GREEDY), sink)
    engine.start()
    for sink in sinks:
        last = sink.wait()[-1]
        assert last.finish_reason == "error"
        assert "broken kernel" in (last.error or "")
    assert "broken kernel" in (engine.failure or "")
    with pytest.raises(StoppedError, match="broken kernel"):
        engine.submit(Request("late", (1,), GREEDY))
    assert engine.drain(1)


def test_idle_time_is_counted(engine: EngineThread) -> None:
    for name in ("first", "second"):
        sink = Sink()
        engine.submit(Request(name, prompt(1, 9), GREEDY), sink)
        sink.wait()
    assert engine.stats().seconds["idle"] > 0
