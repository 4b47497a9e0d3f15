"""Every family equals Hugging Face on small random weights: logits close, greedy ids exact in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.helpers import GREEDY, answer, finish, prompt
from tests.engine.models import CONFIGS, hf_greedy, hf_logits, save_model

from vibeserve.engine.core import EngineCore
from vibeserve.engine.settings import Settings
from vibeserve.engine.types import Request

SETTINGS = Settings(max_batch=4, max_batch_tokens=48, kv_memory_bytes=4 << 20, threads=1)


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_ids_and_logprobs_equal_hugging_face(name: str, backend: str, model_root: Path) -> None:
    core = EngineCore(save_model(name, model_root), replace(SETTINGS, backend=backend))
    ids = prompt(len(name), 57)
    assert answer(core, ids) == hf_greedy(name, list(ids), GREEDY.max_tokens)
    core.add(Request("scored", ids, replace(GREEDY, max_tokens=1, logprobs=0, prompt_logprobs=True)))
    scored = finish(core)["scored"][0].prompt_logprobs
    assert scored is not None
    assert scored[0] is None
    expected = torch.log_softmax(hf_logits(name, list(ids)), dim=-1)
    for position, entry in enumerate(scored[1:]):
        assert entry is not None
        assert entry.token_id == ids[position + 1]
        assert entry.logprob == pytest.approx(float(expected[position, ids[position + 1]]), abs=2e-4)
    core.close()


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral-sliding"])
def test_bfloat16_stays_near_float32(name: str, backend: str, model_root: Path) -> None:
    core = EngineCore(save_model(name, model_root), replace(SETTINGS, backend=backend, dtype="bfloat16"))
    ids = prompt(5, 40)
    core.add(Request("scored", ids, replace(GREEDY, max_tokens=1, prompt_logprobs=True)))
    scored = finish(core)["scored"][0].prompt_logprobs
    assert scored is not None
    expected = torch.log_softmax(hf_logits(name, list(ids)), dim=-1)
    gaps = [abs(entry.logprob - float(expected[i, ids[i + 1]])) for i, entry in enumerate(scored[1:]) if entry]
    assert np.mean(gaps) < 0.15
    core.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_torch_compile_gives_the_same_ids(model_root: Path) -> None:
    core = EngineCore(save_model("llama", model_root), replace(SETTINGS, backend="torch", compile=True))
    assert core.stats().features["torch_compile"]
    ids = prompt(5, 57)
    assert answer(core, ids) == hf_greedy("llama", list(ids), GREEDY.max_tokens)
    core.close()
