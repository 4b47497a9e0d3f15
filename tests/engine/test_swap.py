"""Preemption by swap: what gives way is set aside and put back, and no answer, no block and no request is the worse for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engine.helpers import GREEDY, answer, finish, prompt, tokens_of
from tests.engine.models import save_model

from vibeserve.engine.core import EngineCore
from vibeserve.engine.settings import Settings
from vibeserve.engine.types import Request, SamplingParams

ROOMY = Settings(max_batch=6, max_batch_tokens=64, kv_memory_bytes=4 << 20, threads=1, prefix_cache=False)
TIGHT = replace(ROOMY, kv_memory_bytes=120 << 10)  # ten blocks of 16 tokens
SWAPPING = replace(TIGHT, swap_memory_bytes=1 << 20)


def core_of(root: Path, backend: str, settings: Settings) -> EngineCore:
    return EngineCore(save_model("llama", root), replace(settings, backend=backend))


def asked() -> list[Request]:
    """Greedy, drawn, with log-probabilities of prompt and answer."""
    params = [
        replace(GREEDY, max_tokens=60),
        SamplingParams(temperature=1.0, seed=7, max_tokens=60, ignore_eos=True),
        replace(GREEDY, max_tokens=40, logprobs=2, prompt_logprobs=True),
    ]
    return [Request(f"r{at}", prompt(at, 20 + 3 * at), params[at % 3]) for at in range(6)]


def told(core: EngineCore) -> dict[str, object]:
    for request in asked():
        core.add(request)
    return {
        name: (tokens_of(outputs), [o.logprobs for o in outputs if o.logprobs], outputs[0].prompt_logprobs)
        for name, outputs in finish(core).items()
    }


def test_blocks_are_read_and_put_back(model_root: Path, backend: str) -> None:
    core = core_of(model_root, backend, ROOMY)
    answer(core, prompt(1, 40))
    data = core.backend.read_blocks([0, 1, 2])
    assert data.shape == (3, core.backend.block_bytes)
    assert data.any(axis=1).all()
    core.backend.write_blocks([9, 7, 8], data)
    assert np.array_equal(core.backend.read_blocks([7, 8, 9]), data[[1, 2, 0]])
    core.close()


@pytest.mark.parametrize("tree", [False, True])
def test_answers_are_those_of_an_engine_with_room(model_root: Path, backend: str, tree: bool) -> None:
    roomy, swapping = (
        core_of(model_root, backend, ROOMY),
        core_of(model_root, backend, replace(SWAPPING, prefix_cache=tree)),
    )
    assert told(swapping) == told(roomy)
    stats = swapping.stats()
    assert stats.preemptions > 0
    assert stats.swapped > 0
    assert stats.kv_blocks_used == 0
    assert roomy.stats().preemptions == 0
    roomy.close()
    swapping.close()


def test_nothing_is_computed_twice(model_root: Path) -> None:
    """With room to set everything aside, a step computes only new tokens; without, prompts and answers come again."""
    done = {}
    for size in (0, 1 << 20):
        core = core_of(model_root, "torch", replace(TIGHT, swap_memory_bytes=size))
        told(core)
        stats = core.stats()
        assert stats.preemptions > 0
        done[size] = stats.prefill_tokens + stats.decode_tokens
        core.close()
    # Every token but the last of each answer is computed once.
    assert done[1 << 20] == sum(len(one.prompt_ids) + one.params.max_tokens - 1 for one in asked())
    assert done[0] > done[1 << 20]


def test_space_is_bounded_and_the_rest_is_computed_again(model_root: Path) -> None:
    core = core_of(model_root, "torch", replace(TIGHT, swap_memory_bytes=3 * 12288))
    roomy = core_of(model_root, "torch", ROOMY)
    assert told(core) == told(roomy)
    assert 0 < core.stats().swapped < core.stats().preemptions


def test_an_abort_lets_go_of_what_was_set_aside(model_root: Path) -> None:
    core = core_of(model_root, "torch", SWAPPING)
    for request in asked():
        core.add(request)
    while not core.stats().swapped:
        core.step()
    for request in asked():
        core.abort(request.id)
    finish(core)  # rest() finds nothing set aside
    assert core.stats().kv_blocks_used == 0


def test_nobody_starves(model_root: Path) -> None:
    """Newcomers keep coming for as long as the first is there; it is done after its own number of steps, or few more."""
    core = core_of(model_root, "torch", SWAPPING)
    core.add(Request("first", prompt(99, 30), replace(GREEDY, max_tokens=60)))
    ended: list[str] = []
    steps = came = 0
    while "first" not in ended:
        while len(core.request_ids()) < 6:
            core.add(Request(f"n{came}", prompt(came, 30), replace(GREEDY, max_tokens=60)))
            came += 1
        ended += [output.request_id for output in core.step() if output.finish_reason]
        steps += 1
    assert steps <= 61
    finish(core)
    assert core.stats().finished["length"] == came + 1
