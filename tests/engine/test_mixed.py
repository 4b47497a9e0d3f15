"""Everything at once, in any order: whatever comes, goes, gives way or is guessed, each answer is the one of a plain engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.engine.helpers import finish, prompt, tokens_of
from tests.engine_http.conftest import write_model

from vibeserve.engine.constraints import grammar_of
from vibeserve.engine.core import EngineCore
from vibeserve.engine.settings import Settings
from vibeserve.engine.types import Output, Request, SamplingParams

PLAIN = Settings(
    backend="torch", max_batch=1, max_batch_tokens=512, kv_memory_bytes=4 << 20, threads=1, prefix_cache=False,
    chunked_prefill=False, constrained_decoding=True, max_model_len=192,
)  # fmt: skip
# (Not paced: the time that steps take is no part of an example.)
EVERYTHING = replace(
    PLAIN, max_batch=5, max_batch_tokens=24, prefix_cache=True, chunked_prefill=True, predicted_outputs=True,
    ngram_speculation=True, learned_drafts=True, draft_rows=12,
)  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a long word", "another"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "n"],
    "additionalProperties": False,
}
PATTERNS = ("", grammar_of("json", SCHEMA, "response_format"), grammar_of("regex", "(ab|cd){2,9}", "regex"))

requests = st.fixed_dictionaries(
    {
        "shared": st.sampled_from([0, 7, 16, 33, 48]),
        "own": st.integers(1, 40),
        "seed": st.integers(0, 3),
        "temperature": st.sampled_from([0.0, 0.0, 0.7]),
        "tokens": st.integers(1, 40),
        "logprobs": st.sampled_from([None, None, None, 0, 2]),
        "prompt_logprobs": st.sampled_from([False, False, False, True]),
        "penalty": st.sampled_from([0.0, 0.0, 0.5]),
        "grammar": st.sampled_from([0, 0, 0, 1, 2]),
        "predicted": st.sampled_from([0, 0, 10, 30]),
        "priority": st.integers(-1, 1),
        "twins": st.sampled_from([1, 1, 2, 3]),
    }
)


def made(name: str, asked: dict[str, Any], twin: int) -> Request:
    """One request. Twins have one prompt and different seeds, as `n` answers to one question have."""
    params = SamplingParams(
        temperature=asked["temperature"], seed=asked["seed"] + 100 * twin, max_tokens=asked["tokens"],
        logprobs=asked["logprobs"], prompt_logprobs=asked["prompt_logprobs"], presence_penalty=asked["penalty"],
    )  # fmt: skip
    ids = (*prompt(1, asked["shared"]), *prompt(50 + asked["seed"], asked["own"]))
    guessed = prompt(9, asked["predicted"])
    return Request(
        name, ids, params, prediction_ids=guessed, grammar=PATTERNS[asked["grammar"]], priority=asked["priority"]
    )


def told(outputs: list[Output]) -> tuple[Any, ...]:
    """All that a client sees of an answer, but for the steps that it came in."""
    scored = [entry for output in outputs for entry in output.logprobs or ()]
    last = outputs[-1]
    return tokens_of(outputs), scored, outputs[0].prompt_logprobs, last.finish_reason, last.complete, last.error


class Mixed(RuleBasedStateMachine):
    """Requests of all kinds on an engine with all techniques and too little memory."""

    model: ClassVar[Path]
    plain: ClassVar[EngineCore]
    expected: ClassVar[dict[Request, tuple[Any, ...]]] = {}
    settings: ClassVar[Settings]
    backend: ClassVar[Any]
    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        # A core of its own for each example, over one set of weights: nothing is carried from one to the next.
        self.core = EngineCore(self.model, self.settings, self.backend)
        self.asked: dict[str, Request] = {}
        self.outputs: dict[str, list[Output]] = {}

    @rule(asked=requests)
    def ask(self, asked: dict[str, Any]) -> None:
        for twin in range(asked["twins"]):
            request = made(f"r{len(self.asked)}", asked, twin)
            self.asked[request.id] = request
            self.core.add(request)

    @precondition(lambda self: self.core.has_work())
    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            for output in self.core.step():
                self.outputs.setdefault(output.request_id, []).append(output)

    @precondition(lambda self: self.core.request_ids())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.core.abort(data.draw(st.sampled_from(self.core.request_ids())))

    @invariant()
    def every_block_is_somewhere(self) -> None:
        self.core._blocks.check(self.core._scheduler.running)

    def teardown(self) -> None:
        for name, outputs in finish(self.core).items():
            self.outputs.setdefault(name, []).extend(outputs)
        stats = self.core.stats()
        assert stats.kv_blocks_used == 0
        for name in ("preemptions", "swapped", "prefix_hit_tokens", "accepted_tokens"):
            self.seen[name] += getattr(stats, name)
        assert set(self.outputs) == set(self.asked)
        for name, request in self.asked.items():
            found, right = told(self.outputs[name]), self._right(request)
            if found[3] == "abort":
                assert found[0] == right[0][: len(found[0])]
            else:
                assert found == right, request

    def _right(self, request: Request) -> tuple[Any, ...]:
        alone = replace(request, id="alone", priority=0, prediction_ids=())
        if alone not in self.expected:
            self.plain.add(alone)
            self.expected[alone] = told(finish(self.plain)["alone"])
        return self.expected[alone]


@pytest.mark.parametrize(
    ("swap", "jump"),
    [
        pytest.param(0, True, id="recompute-jump-forward"),
        pytest.param(1 << 20, False, id="swap-masks"),
        pytest.param(0, False, id="recompute-masks", marks=pytest.mark.slow),
        pytest.param(1 << 20, True, id="swap-jump-forward", marks=pytest.mark.slow),
    ],
)
def test_mixed_traffic_is_answered_as_alone(
    model_root: Path, swap: int, jump: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(model_root / "tiny-with-tokenizer")
    alone = EngineCore(model, replace(PLAIN, jump_forward=jump))
    memory = 13 * alone.backend.block_bytes
    tight = replace(EVERYTHING, kv_memory_bytes=memory, swap_memory_bytes=swap, jump_forward=jump)
    shared = EngineCore(model, tight)
    for name, value in {
        "model": model, "plain": alone, "settings": tight, "backend": shared.backend, "expected": {}, "seen": Counter(),
    }.items():  # fmt: skip
        monkeypatch.setattr(Mixed, name, value, raising=False)
    case = Mixed.TestCase
    case.settings = hypothesis_settings(
        max_examples=5, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    case("runTest").debug()
    assert Mixed.seen["preemptions"] > 0
    assert Mixed.seen["prefix_hit_tokens"] > 0
    assert Mixed.seen["accepted_tokens"] > 0
    assert (Mixed.seen["swapped"] > 0) == bool(swap)
