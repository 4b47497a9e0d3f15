"""Model directories that are wrong, and settings that this machine or this copy cannot meet."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.helpers import GREEDY, answer, prompt
from tests.engine.models import CONFIGS, hf_greedy, hf_model, save_model

from vibeserve.engine.batch import StepBatch
from vibeserve.engine.core import EngineCore
from vibeserve.engine.errors import EngineError, ModelFilesError, SettingsError, UnsupportedModelError
from vibeserve.engine.loading import kv_size
from vibeserve.engine.model_config import config_from, read_config
from vibeserve.engine.native import build
from vibeserve.engine.settings import Settings

SETTINGS = Settings(backend="torch", max_batch=2, max_batch_tokens=32, kv_memory_bytes=1 << 20, threads=1)


@pytest.fixture
def model(model_root: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(save_model("llama-untied-biased", model_root), tmp_path / "model"))


def edit(path: Path, **changes: Any) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, **changes}))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "olmo_hybrid", "architectures": ["OlmoHybridForCausalLM"]}, "OlmoHybridForCausalLM"),
        ({"model_type": "qwen3_moe"}, "qwen3_moe"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial"),
    ],
)
def test_what_cannot_be_built_is_named(model: Path, changes: dict[str, Any], named: str) -> None:
    edit(model / "config.json", **changes)
    with pytest.raises(UnsupportedModelError, match=named):
        EngineCore(model, SETTINGS)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type": "llama"}', "\xff"])
def test_a_broken_configuration_is_a_clear_error(model: Path, text: str) -> None:
    (model / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(EngineError) as caught:
        EngineCore(model, SETTINGS)
    assert "config.json" in caught.value.message or "model_type" in caught.value.message


def test_broken_weights_are_named(model: Path) -> None:
    weights = model / "model.safetensors"
    tensors = load_file(weights)
    for change, named in (
        ({"model.norm.weight": torch.zeros(3)}, "model.norm.weight"),
        ({"model.extra.weight": torch.zeros(3)}, "model.extra.weight"),
        ({"model.layers.1.mlp.up_proj.weight": None}, "up_proj"),
    ):
        changed = {name: value for name, value in {**tensors, **change}.items() if value is not None}
        save_file(changed, weights)
        with pytest.raises(ModelFilesError, match=named):
            EngineCore(model, SETTINGS)
    data = weights.read_bytes()
    for broken in (data[:100], data[:-50], b"\0" * 64, b""):
        weights.write_bytes(broken)
        with pytest.raises(ModelFilesError, match=r"model\.safetensors"):
            EngineCore(model, SETTINGS)
    weights.unlink()
    with pytest.raises(ModelFilesError, match=r"holds no model\.safetensors"):
        EngineCore(model, SETTINGS)


def test_sharded_weights_and_the_older_form_of_rope(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    names = sorted(weights)
    for index, part in enumerate((names[::2], names[1::2])):
        save_file({name: weights[name] for name in part}, model / f"part-{index}.safetensors")
    placed = {name: f"part-{position % 2}.safetensors" for position, name in enumerate(names)}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (model / "model.safetensors").unlink()
    edit(model / "config.json", rope_parameters=None, rope_theta=10000.0, rope_scaling={"type": "default"})
    core = EngineCore(model, SETTINGS)
    ids = prompt(1, 20)
    assert answer(core, ids) == hf_greedy("llama-untied-biased", list(ids), GREEDY.max_tokens)


def test_end_tokens_come_from_the_generation_configuration_first(model: Path) -> None:
    (model / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert read_config(model).eos_token_ids == (5, 6)
    (model / "generation_config.json").unlink()
    assert read_config(model).eos_token_ids == (2,)


def test_windows_by_layer() -> None:
    config = config_from(CONFIGS["qwen2-sliding"].to_dict())
    assert config.windows == (0, 20, 20)
    assert config_from({**CONFIGS["qwen2-sliding"].to_dict(), "layer_types": None}).windows == (0, 20, 20)
    with pytest.raises(UnsupportedModelError, match="linear_attention"):
        config_from({**CONFIGS["qwen2-sliding"].to_dict(), "layer_types": ["linear_attention"] * 3})


def test_the_kv_cache_is_sized_and_said_beforehand() -> None:
    config = config_from(CONFIGS["llama"].to_dict())
    block = config.kv_bytes_per_token(4) * 16
    assert kv_size(config, replace(SETTINGS, kv_memory_bytes=10 * block)) == (160, 10)
    assert kv_size(config, replace(SETTINGS, kv_memory_bytes=0)) == (512, 64)
    assert kv_size(config, replace(SETTINGS, kv_memory_bytes=0, max_model_len=100)) == (100, 14)
    with pytest.raises(SettingsError, match="holds no block"):
        kv_size(config, replace(SETTINGS, kv_memory_bytes=block - 1))


def test_without_a_compiler_auto_falls_back_and_says_so(
    model_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "compiler", lambda: None)
    monkeypatch.setenv("VIBESERVE_KERNEL_CACHE", str(tmp_path))
    build.library.cache_clear()
    folder = save_model("llama", model_root)
    core = EngineCore(folder, replace(SETTINGS, backend="auto"))
    info = core.stats().info
    assert (info["backend"], info["fallback"]) == ("torch", "no C++ compiler is on this machine")
    assert not core.stats().features["compiled_kernels"]
    assert "falling back" in caplog.text
    with pytest.raises(EngineError, match="no C"):
        EngineCore(folder, replace(SETTINGS, backend="compiled"))
    build.library.cache_clear()


def test_a_compiler_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "cxx"
    broken.write_text("#!/bin/sh\necho 'no such flag' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(build, "compiler", lambda: str(broken))
    monkeypatch.setenv("VIBESERVE_KERNEL_CACHE", str(tmp_path / "cache"))
    build.library.cache_clear()
    with pytest.raises(EngineError, match="no such flag"):
        build.library("Float")
    assert list((tmp_path / "cache").iterdir()) == []
    build.library.cache_clear()


def test_settings_that_the_kernels_cannot_meet(model_root: Path) -> None:
    folder = save_model("llama", model_root)
    with pytest.raises(SettingsError, match="block_size"):
        EngineCore(folder, replace(SETTINGS, backend="compiled", block_size=8))
    with pytest.raises(SettingsError, match="compile"):
        EngineCore(folder, replace(SETTINGS, backend="compiled", compile=True))


@pytest.mark.parametrize(
    "change",
    [{"tokens": 320}, {"tokens": -1}, {"positions": 512}, {"tables": 10_000}, {"tables": -1}, {"logit_rows": 1}],
)
def test_kernels_refuse_what_is_not_there(change: dict[str, int], model_root: Path) -> None:
    if build.compiler() is None:
        pytest.skip("not run: no C++ compiler on this machine")
    core = EngineCore(save_model("llama", model_root), replace(SETTINGS, backend="compiled"))
    values = {"tokens": 5, "positions": 0, "tables": 0, "logit_rows": 0} | change
    arrays = {name: np.array([value], dtype=np.int32) for name, value in values.items()}
    arrays["tables"] = arrays["tables"].reshape(1, 1)
    with pytest.raises(EngineError, match="refused"):
        core._backend.forward(StepBatch(**arrays, row_starts=np.array([0, 1], dtype=np.int32), full_logits=False))
    core.close()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-mno-avx512f",), ("-march=x86-64",)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_are_right_on_lesser_machines(
    flags: tuple[str, ...], dtype: str, model_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The AVX2 and the plain forms of the kernels, built here on purpose, against Hugging Face."""
    if build.compiler() is None:
        pytest.skip("not run: no C++ compiler on this machine")
    monkeypatch.setenv("VIBESERVE_KERNEL_CACHE", str(tmp_path))
    whole = tuple(flag for flag in build.FLAGS if flag != "-march=native" or flags[0].startswith("-mno"))
    from vibeserve.engine import compiled_backend

    monkeypatch.setattr(compiled_backend, "library", lambda precision: build.library(precision, (*whole, *flags)))
    core = EngineCore(save_model("qwen3", model_root), replace(SETTINGS, backend="compiled", dtype=dtype))
    assert core.stats().info["isa"] == ("avx2" if flags[0].startswith("-mno") else "generic")
    ids = prompt(2, 37)
    if dtype == "float32":
        assert answer(core, ids) == hf_greedy("qwen3", list(ids), GREEDY.max_tokens)
    else:
        first = hf_model("qwen3")(torch.tensor([ids])).logits[0, -1]
        assert first.topk(3).indices.tolist().count(answer(core, ids)[0]) == 1
    core.close()
