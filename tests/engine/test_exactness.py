"""The needle test: in float32 a request's greedy tokens and logits are the same bits alone and in any company."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engine.helpers import GREEDY, answer, finish, prompt, tokens_of
from tests.engine.models import hf_greedy, save_model

from vibeserve.engine.core import EngineCore
from vibeserve.engine.settings import Settings
from vibeserve.engine.types import Output, Request

NEEDLE = prompt(1234, 75)
SCORED = replace(GREEDY, max_tokens=24, logprobs=3)
CONFIGURATIONS = {
    "plain": {"prefix_cache": False, "chunked_prefill": False},
    "chunked": {"prefix_cache": False, "chunked_prefill": True},
    "prefix": {"prefix_cache": True, "chunked_prefill": False},
    "both": {"prefix_cache": True, "chunked_prefill": True},
    "both-bfloat16": {"prefix_cache": True, "chunked_prefill": True, "dtype": "bfloat16"},
}


def settings(backend: str, **changes: object) -> Settings:
    # torch's own threads stand still whenever another program wants a core: one is quicker for small models.
    threads = 1 if backend == "torch" else 2
    base = Settings(backend=backend, max_batch=16, max_batch_tokens=40, kv_memory_bytes=3 << 20, threads=threads)
    return replace(base, **changes)  # type: ignore[arg-type]


def crowd(core: EngineCore, outputs: dict[str, list[Output]], rounds: int, seed: int) -> None:
    """64 neighbours, a third of them cancelled on the way and sent again, some sharing the needle's beginning."""
    rng = np.random.default_rng(seed)
    for index in range(64):
        shared = NEEDLE[: int(rng.integers(0, 70))] if index % 4 == 0 else ()
        ids = (*shared, *prompt(seed + index, int(rng.integers(1, 60))))
        core.add(Request(f"n{index}", ids, replace(GREEDY, max_tokens=int(rng.integers(1, 30)))))
    for turn in range(rounds):
        if not core.has_work():
            break
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
        alive = [name for name in core.request_ids() if name.startswith("n")]
        if alive and turn % 2:
            name = alive[int(rng.integers(len(alive)))]
            core.abort(name)
            core.add(Request(f"{name}-again{turn}", prompt(turn, 20), GREEDY))


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize(
    "name",
    ["llama", pytest.param("qwen3", marks=pytest.mark.slow), pytest.param("mistral-sliding", marks=pytest.mark.slow)],
)
def test_needle_among_64(name: str, configuration: str, backend: str, model_root: Path) -> None:
    """In bfloat16 too: both back ends fix the order of every sum."""
    core = EngineCore(save_model(name, model_root), settings(backend, **CONFIGURATIONS[configuration]))
    core.add(Request("alone", NEEDLE, SCORED))
    alone = finish(core)["alone"]
    for seed in (1, 2):
        outputs: dict[str, list[Output]] = {}
        crowd(core, outputs, 4 * seed, seed)
        core.add(Request(f"needle{seed}", NEEDLE, SCORED))
        crowd_2: dict[str, list[Output]] = finish(core)
        needle = [*outputs.get(f"needle{seed}", []), *crowd_2[f"needle{seed}"]]
        assert tokens_of(needle) == tokens_of(alone)
        assert [entry for output in needle for entry in output.logprobs or ()] == [
            entry for output in alone for entry in output.logprobs or ()
        ]
    core.close()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_every_neighbour_is_right_too(seed: int, backend: str, model_root: Path) -> None:
    """Under memory pressure: preemptions and evictions happen, and no answer changes."""
    core = EngineCore(save_model("llama", model_root), settings(backend, kv_memory_bytes=160 << 10, max_batch=8))
    rng = np.random.default_rng(seed)
    shared = prompt(99, 48)
    asked = {
        f"r{index}": (*shared[: int(rng.integers(0, 48))], *prompt(seed * 100 + index, int(rng.integers(1, 30))))
        for index in range(20)
    }
    for name, ids in asked.items():
        core.add(Request(name, ids, replace(GREEDY, max_tokens=40)))
    outputs = finish(core)
    assert core.stats().preemptions > 0
    assert core.stats().evicted_blocks > 0
    alone = EngineCore(save_model("llama", model_root), settings(backend, prefix_cache=False))
    for name, ids in asked.items():
        assert tokens_of(outputs[name]) == answer(alone, ids, max_tokens=40)
    name = next(iter(asked))
    assert tokens_of(outputs[name]) == hf_greedy("llama", list(asked[name]), 40)
    core.close()
    alone.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_bits(threads: int, model_root: Path, backend: str) -> None:
    if backend == "torch":
        pytest.skip("not run: torch's products are fixed by shape and thread count together")
    core = EngineCore(save_model("llama", model_root), settings(backend, threads=threads))
    core.add(Request("alone", NEEDLE, SCORED))
    got = [entry for output in finish(core)["alone"] for entry in output.logprobs or ()]
    one = EngineCore(save_model("llama", model_root), settings(backend, threads=1))
    one.add(Request("alone", NEEDLE, SCORED))
    assert got == [entry for output in finish(one)["alone"] for entry in output.logprobs or ()]
    core.close()
    one.close()
