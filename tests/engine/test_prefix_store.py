"""The prefix cache over a restart: found again where everything fits, left aside where anything differs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.helpers import GREEDY, answer, finish, prompt, tokens_of
from tests.engine.models import save_model

from vibeserve.engine.core import EngineCore
from vibeserve.engine.errors import SettingsError
from vibeserve.engine.settings import Settings
from vibeserve.engine.types import Output, Request

BASE = Settings(max_batch=4, max_batch_tokens=64, kv_memory_bytes=1 << 20, threads=1)
SHARED = prompt(3, 64)


@pytest.fixture
def chosen(tmp_path: Path, backend: str) -> Settings:
    return replace(BASE, backend=backend, prefix_store=str(tmp_path / "deep" / "prefix.safetensors"))


def ask(core: EngineCore, seed: int) -> list[Output]:
    core.add(Request("asked", (*SHARED, *prompt(seed, 9)), GREEDY))
    return finish(core)["asked"]


def closed(model: Path, settings: Settings) -> None:
    core = EngineCore(model, settings)
    for seed in range(3):
        ask(core, seed)
    core.close()


def test_a_restart_begins_with_what_was_known(model_root: Path, chosen: Settings) -> None:
    model = save_model("llama", model_root)
    closed(model, chosen)
    cold, warm = EngineCore(model, replace(chosen, prefix_store="")), EngineCore(model, chosen)
    assert warm.stats().restored_blocks >= 4
    warm.rest()
    found = ask(warm, 77)
    assert found[0].cached_tokens == 64
    assert tokens_of(found) == answer(cold, (*SHARED, *prompt(77, 9)))
    # What is evicted goes leaf by leaf: every block comes back.
    for seed in range(100, 130):
        answer(warm, prompt(seed, 90))
    warm.rest()
    warm.close()


def test_another_models_file_is_left_aside(model_root: Path, chosen: Settings, tmp_path: Path) -> None:
    model = save_model("llama", model_root)
    closed(model, chosen)
    other = Path(shutil.copytree(model, tmp_path / "other"))
    raw = bytearray((other / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (other / "model.safetensors").write_bytes(raw)
    assert EngineCore(other, chosen).stats().restored_blocks == 0
    assert EngineCore(model, replace(chosen, dtype="bfloat16")).stats().restored_blocks == 0


@pytest.mark.parametrize("how", ["flipped", "cut", "empty"])
def test_a_damaged_file_is_left_aside(model_root: Path, chosen: Settings, how: str) -> None:
    model = save_model("llama", model_root)
    closed(model, chosen)
    path = Path(chosen.prefix_store)
    raw = bytearray(path.read_bytes())
    if how == "flipped":
        raw[len(raw) // 2] ^= 1
    path.write_bytes({"flipped": raw, "cut": raw[: len(raw) // 2], "empty": b""}[how])
    core = EngineCore(model, chosen)
    assert core.stats().restored_blocks == 0
    assert len(tokens_of(ask(core, 1))) == GREEDY.max_tokens


def test_less_memory_takes_what_fits(model_root: Path, chosen: Settings) -> None:
    model = save_model("llama", model_root)
    closed(model, chosen)
    core = EngineCore(model, replace(chosen, kv_memory_bytes=3 * 12288))
    assert core.stats().restored_blocks == 3
    core.rest()


def test_a_store_needs_a_cache() -> None:
    with pytest.raises(SettingsError, match="needs prefix_cache"):
        Settings(prefix_store="x", prefix_cache=False)
