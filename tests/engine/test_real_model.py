"""A real checkpoint (`VIBESERVE_TEST_MODEL`): greedy ids equal Hugging Face's in float32, alone and 16 at once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.helpers import GREEDY, finish, tokens_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from vibeserve.engine.core import EngineCore
from vibeserve.engine.settings import Settings
from vibeserve.engine.types import Request

pytestmark = pytest.mark.slow

TOPICS = [
    "a lighthouse",
    "prime numbers",
    "how bread rises",
    "Python lists",
    "the moon",
    "rivers",
    "chess",
    "honey bees",
]
ASKS = [
    "Write a short story about {}.",
    "Explain {} to a child.",
    "List five facts about {}.",
    "Why do people like {}?",
]


@pytest.fixture(scope="module")
def model_dir() -> Path:
    folder = os.environ.get("VIBESERVE_TEST_MODEL")
    if not folder:
        pytest.skip("not run: VIBESERVE_TEST_MODEL names no model directory")
    return Path(folder)


def chats(model_dir: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    texts = [ask.format(topic) for topic in TOPICS for ask in ASKS]
    turns = [
        [{"role": "system", "content": f"You know {i}."}, {"role": "user", "content": t}] for i, t in enumerate(texts)
    ]
    return [list(tokenizer.apply_chat_template(turn, add_generation_prompt=True)["input_ids"]) for turn in turns]


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


@torch.inference_mode()
def misses(reference: torch.nn.Module, prompt: list[int], tokens: list[int]) -> list[tuple[int, float]]:
    """Where the reference, given prompt and answer so far, would say something else: (position, its margin)."""
    logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    wanted = torch.tensor(tokens)
    margin = logits.max(-1).values - logits.gather(1, wanted[:, None])[:, 0]
    return [(int(i), float(margin[i])) for i in torch.nonzero(logits.argmax(-1) != wanted)[:, 0]]


@pytest.mark.parametrize("backend", ["compiled", "torch"])
def test_greedy_ids_equal_hugging_face(model_dir: Path, reference: torch.nn.Module, backend: str) -> None:
    core = EngineCore(model_dir, Settings(backend=backend, kv_memory_bytes=256 << 20))
    prompts = chats(model_dir)[: 16 if backend == "compiled" else 3]
    params = replace(GREEDY, max_tokens=96 if backend == "compiled" else 24, ignore_eos=False)
    for index, ids in enumerate(prompts):
        core.add(Request(f"r{index}", tuple(ids), params))
    together = {name: tokens_of(outputs) for name, outputs in finish(core).items()}
    for index, ids in enumerate(prompts):
        assert misses(reference, ids, together[f"r{index}"]) == []
    for index in (0, 2):
        core.add(Request("alone", tuple(prompts[index]), params))
        assert tokens_of(finish(core)["alone"]) == together[f"r{index}"]
    core.close()


def test_bfloat16_departs_only_at_near_ties(model_dir: Path, reference: torch.nn.Module) -> None:
    core = EngineCore(model_dir, Settings(backend="auto", dtype="bfloat16", kv_memory_bytes=256 << 20))
    prompts = chats(model_dir)[:16]
    params = replace(GREEDY, max_tokens=96, ignore_eos=False)
    for index, ids in enumerate(prompts):
        core.add(Request(f"r{index}", tuple(ids), params))
    answers = {name: tokens_of(outputs) for name, outputs in finish(core).items()}
    found = [miss for index, ids in enumerate(prompts) for miss in misses(reference, ids, answers[f"r{index}"])]
    total = sum(map(len, answers.values()))
    assert len(found) / total < 0.03
    assert max((margin for _, margin in found), default=0.0) < 0.5
    core.close()
