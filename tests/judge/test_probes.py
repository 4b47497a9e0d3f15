"""Honest servers pass every probe; each trick is caught by the probe that is meant for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vibeserve.judge import ProbeResult, loops, probe
from vibeserve.judge.client import Answer
from vibeserve.judge.probes import streaming
from vibeserve.judge.probes.repeat import LEAST_SHARE, share_of
from vibeserve.judge.prompts import draw, twins_of
from vibeserve.targets import Bundle, Metric, ModelMeta

Serve = Callable[[Any], str]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference of these tests takes its time: few of its answers are looked at for loops."""
    monkeypatch.setattr(loops, "MOST", 2)


def bundle(**changes: Any) -> Bundle:
    here = Path("/nowhere")
    values: dict[str, Any] = {"api": "openai-chat", **changes}
    return Bundle(
        path=None,
        slug="probed",
        reference=here,
        checker=here,
        benchmark=here,
        objective=None,
        metric=Metric("output_tokens_per_s", "tokens/s", "higher"),
        meta=ModelMeta("none"),
        **values,
    )


def judged(url: str, oracle: str | None = None, **changes: Any) -> dict[str, ProbeResult]:
    results = probe(
        bundle(**changes), url, seed=7, oracle_url=oracle, prompt_tokens=40, output_tokens=24, timeout_s=20.0
    )
    return {result.name: result for result in results}


@pytest.mark.parametrize("api", ["openai-chat", "openai-completions"])
def test_an_honest_server_passes_them_all(serve: Serve, trick: Any, api: str) -> None:
    results = judged(serve(trick()), serve(trick()), api=api)
    assert {name: result.ok for name, result in results.items()} == dict.fromkeys(
        (
            "answers",
            "agreement",
            "sensitivity",
            "repeat",
            "batch",
            "streaming",
            "lengths",
            "stop",
            "sampling",
            "usage",
            "clock",
            "pace",
            "loops",
        ),
        True,
    ) | dict.fromkeys(("top1", "restart", "processes"))


def test_a_server_that_knows_less_is_asked_less(serve: Serve, trick: Any) -> None:
    class Plain(trick):
        needs_refusals = ("return_token_ids", "ignore_eos")
        with_ids = False

    results = judged(serve(Plain()), serve(trick()))
    assert results["lengths"].ok is None
    assert "not run" in results["lengths"].detail
    assert {name for name, result in results.items() if result.ok is False} == set()
    assert results["agreement"].ok is True


def cheats(trick: Any) -> dict[str, Any]:
    class Constant(trick):
        def tokens(self, prompt: str, count: int) -> Any:
            return super().tokens("always the same", count)

    class AnotherModel(trick):
        def tokens(self, prompt: str, count: int) -> Any:
            return super().tokens(prompt + "!", count)

    class ResponseCache(trick):
        def __init__(self) -> None:
            self.seen: set[str] = set()

        def pause_s(self, prompt: str) -> float:
            known = prompt in self.seen
            self.seen.add(prompt)
            return 0.0 if known else super().pause_s(prompt)

    class Flushed(trick):
        flush_at_the_end = True

    class Short(trick):
        def tokens(self, prompt: str, count: int) -> Any:
            return super().tokens(prompt, max(1, count // 2))

        def usage(self, prompt: str, sent: int) -> Any:
            return super().usage(prompt, sent * 2)

    class Inflated(trick):
        def usage(self, prompt: str, sent: int) -> Any:
            return super().usage(prompt, sent + 10)

    class EarlyStop(trick):
        def finish_reason(self) -> str:
            return "stop"

    class Cut(trick):
        cut = True

    class Broken(trick):
        status = 500

    return {
        "sensitivity": Constant(),
        "agreement": AnotherModel(),
        "repeat": ResponseCache(),
        "streaming": Flushed(),
        "lengths": Short(),
        "usage": Inflated(),
        "lengths-reason": EarlyStop(),
        "answers": Cut(),
        "answers-500": Broken(),
    }


@pytest.mark.parametrize(
    "name",
    [
        "sensitivity",
        "agreement",
        "repeat",
        "streaming",
        "lengths",
        "usage",
        "lengths-reason",
        "answers",
        "answers-500",
    ],
)
def test_each_trick_is_caught(serve: Serve, trick: Any, name: str) -> None:
    probe_name = name.partition("-")[0]
    # Probes of time say nothing sure of a machine whose cores others take: such a session is looked at again.
    seen = (judged(serve(cheats(trick)[name]), serve(trick()))[probe_name] for _ in range(3))
    assert any(result.ok is False for result in seen)


def streamed(first_s: float, last_s: float) -> Answer:
    return Answer(("a",), 24, text="ab", arrivals=((first_s, "a", 12), (last_s, "b", 12)), total_s=1.0)


@pytest.mark.parametrize(
    ("held_back", "ok"),
    [(10, False), (8, False), (7, True), (2, True)],  # of ten answers; the others took half their time to arrive
)
def test_a_few_answers_with_a_gap_clear_nobody_and_a_few_without_accuse_nobody(held_back: int, ok: bool) -> None:
    answers = [streamed(0.97, 0.98)] * held_back + [streamed(0.48, 0.98)] * (10 - held_back)
    session = SimpleNamespace(
        cold=answers[:5], warm=answers[5:], exact=True, whole=Answer(("a",), 24, text="ab"), alone=()
    )
    assert streaming.look(session).ok is ok  # type: ignore[arg-type]


def test_an_answer_that_is_over_at_once_tells_nothing() -> None:
    quick = Answer(("a",), 24, text="ab", arrivals=((0.0097, "a", 12), (0.0098, "b", 12)), total_s=0.01)
    session = SimpleNamespace(cold=[quick], warm=[quick], exact=True, whole=Answer(("a",), 24, text="ab"))
    assert streaming.look(session).ok is None  # type: ignore[arg-type]


def test_nothing_that_answers_is_found_out_too(serve: Serve) -> None:
    results = judged("http://127.0.0.1:9")
    assert results["answers"].ok is False
    assert all(result.ok is not True for result in results.values())


def test_without_an_oracle_agreement_is_not_run(serve: Serve, trick: Any) -> None:
    results = judged(serve(trick()))
    assert results["agreement"].ok is None


def test_a_lower_precision_may_part_late_but_not_at_once(serve: Serve, trick: Any) -> None:
    class Near(trick):
        def tokens(self, prompt: str, count: int) -> Any:
            return [*super().tokens(prompt, count)[:5], *super().tokens(prompt + "!", count)[5:]]

    dtypes = ("float32", "bfloat16")
    assert judged(serve(Near()), serve(trick()), dtypes=dtypes)["agreement"].ok is True
    assert judged(serve(cheats(trick)["agreement"]), serve(trick()), dtypes=dtypes)["agreement"].ok is False
    assert judged(serve(Near()), serve(trick()))["agreement"].ok is False


def test_an_api_that_the_judge_does_not_speak_is_not_judged() -> None:
    (result,) = probe(bundle(api="websocket-audio"), "http://127.0.0.1:9", seed=1)
    assert result.ok is None
    assert "websocket-audio" in result.detail


def test_prompts_are_drawn_from_the_seed() -> None:
    assert draw(1, 3, 64) == draw(1, 3, 64)
    assert set(draw(1, 3, 64)).isdisjoint(draw(2, 3, 64))


def test_one_disturbance_proves_no_cache() -> None:
    steady = [(0.1, 0.1), (0.1, 0.11), (0.1, 0.09)]
    assert share_of([*steady, (0.1, 0.002)])[1] >= LEAST_SHARE
    assert share_of([*steady, (3.0, 0.1)])[1] >= LEAST_SHARE
    assert share_of([(0.1, 0.004), (0.12, 0.006), (0.1, 0.005), (0.3, 0.004)])[1] < LEAST_SHARE
    assert share_of([(0.03, 0.0), (0.03, 0.0004), (0.03, 0.0), (0.03, 0.0007)])[1] < LEAST_SHARE


def test_twins_differ_at_one_end() -> None:
    (prompt,) = draw(1, 1, 64)
    first, last = twins_of(prompt, 1)
    assert first.split()[1:] == prompt.split()[1:]
    assert last.split()[:-1] == prompt.split()[:-1]
    assert len({first, last, prompt}) == 3
