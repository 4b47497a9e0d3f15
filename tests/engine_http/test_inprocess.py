"""The engine from Python: the same ids as transformers' `generate`, in the shape that came in."""

from __future__ import annotations

import pytest
import torch

from vibeserve.engine.errors import EngineError, RequestError, SettingsError
from vibeserve.engine.inprocess import VibeServeModel

PROMPTS = [[5, 9, 17, 33], [200, 3, 41, 90, 100, 7, 8], [300, 11]]


@pytest.fixture(scope="module")
def model(tiny_model) -> VibeServeModel:
    return VibeServeModel.from_pretrained(tiny_model, backend="torch", threads=1, max_batch=4)


@pytest.fixture(scope="module")
def theirs(tiny_model):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


def generated(theirs, prompt: list[int], tokens: int) -> list[int]:
    given = torch.tensor([prompt])
    with torch.inference_mode():
        mask = torch.ones_like(given)
        return theirs.generate(given, attention_mask=mask, max_new_tokens=tokens, do_sample=False)[0].tolist()


def test_a_tensor_gives_a_tensor(model, theirs):
    for prompt in PROMPTS:
        given = torch.tensor([prompt])
        found = model.generate(given, max_new_tokens=12)
        assert found.dtype == given.dtype
        assert found[0].tolist() == generated(theirs, prompt, 12)


def test_rows_of_unequal_length_are_answered_together(model, theirs):
    expected = [generated(theirs, prompt, 8) for prompt in PROMPTS]
    found = model.generate(PROMPTS, max_new_tokens=8)
    for row, answer in zip(found, expected, strict=True):
        assert row[: len(answer)] == answer
        assert set(row[len(answer) :]) <= {2}
    width = max(map(len, PROMPTS))
    padded = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in PROMPTS])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    again = model.generate(padded, max_new_tokens=8, attention_mask=mask)
    assert again.shape[0] == 3
    for row, prompt, answer in zip(again.tolist(), PROMPTS, expected, strict=True):
        new = answer[len(prompt) :]
        assert row[width : width + len(new)] == new


def test_one_row_and_a_fixed_length(model):
    found = model.generate(PROMPTS[0], max_new_tokens=40, ignore_eos=True)
    assert len(found) == len(PROMPTS[0]) + 40
    assert found[:4] == PROMPTS[0]


def test_sampling_repeats_by_its_seed(model):
    asked = {"max_new_tokens": 10, "temperature": 1.0, "seed": 4}
    assert model.generate(PROMPTS[0], **asked) == model.generate(PROMPTS[0], **asked)
    assert model.generate(PROMPTS[0], **asked) != model.generate(PROMPTS[0], **(asked | {"seed": 5}))


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        ([], {}, "empty row"), ([[]], {}, "empty row"), ([1.5], {}, "whole numbers"), ([True], {}, "whole numbers"),
        ([9999], {}, "vocabulary"), ([1], {"max_new_tokens": 0}, "max_tokens"), ([1], {"max_new_tokens": 9999}, "context"),
        ([[1, 2]], {"attention_mask": [[1]]}, "another shape"), ([[1]], {"attention_mask": [[0]]}, "empty"),
    ],
)  # fmt: skip
def test_wrong_calls_are_said(model, given, more, said):
    with pytest.raises(RequestError, match=said):
        model.generate(given, **more)
    assert len(model.generate([1], max_new_tokens=1)) == 2


def test_wrong_settings_and_models_are_said(tiny_model, tmp_path):
    with pytest.raises(SettingsError, match="unknown key 'speed'"):
        VibeServeModel.from_pretrained(tiny_model, speed=3)
    with pytest.raises(EngineError):
        VibeServeModel.from_pretrained(tmp_path)


def test_settings_from_a_file(tiny_model, tmp_path):
    (tmp_path / "engine.toml").write_text("[engine]\nbackend = 'torch'\nmax_model_len = 64\nthreads = 1\n")
    model = VibeServeModel.from_pretrained(tiny_model, config=tmp_path / "engine.toml")
    with pytest.raises(RequestError, match="64"):
        model.generate([1], max_new_tokens=64)
    model.close()
