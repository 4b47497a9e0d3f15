"""Answers made before for the prompts of a seed: the shipped benchmark's fresh share shows them, and seeds are drawn."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from vibeserve.measure import run_benchmark
from vibeserve.measure.gates import known_faster

from .harness import BUNDLE, PROMPT_TOKENS, SHORT
from .honest import PrefixCache
from .llama import FOLDER, MODEL
from .server import Ask, Honest, Tokens, rendered, serving

SEED, LENGTH = 42, 15


class PrecomputedForTheSeed(Honest):
    """Has made its answers to the prompts of one seed with the benchmark's own program, at home."""

    def __init__(self) -> None:
        super().__init__()
        module = _benchmark()
        args = argparse.Namespace(
            shared_prefix=0, fresh_share=0.25, seed=SEED, fresh_seed=0, dataset=None, max_tokens=LENGTH
        )
        made = module.Prompts(module.Tokens(FOLDER), True, args, PROMPT_TOKENS, "0")
        known = [rendered({"messages": made.get(index).messages}) for index in range(-3, 400)]
        self.known = {prompt: list(MODEL.tokens(prompt, LENGTH)) for prompt in known[:160]}

    def tokens(self, ask: Ask) -> Tokens:
        return iter(self.known[ask.prompt]) if ask.prompt in self.known else super().tokens(ask)


def _benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("zoo_benchmark", BUNDLE.benchmark_script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cheat() -> PrecomputedForTheSeed:
    return PrecomputedForTheSeed()


def window(does: Honest, seed: int, output: Path) -> Any:
    with serving(does) as url:
        return run_benchmark(BUNDLE, url, FOLDER, seed=seed, window_s=1.0, output=output, extra_args=SHORT)


def test_the_known_seed_gives_no_value(cheat: PrecomputedForTheSeed, tmp_path: Path) -> None:
    result = window(cheat, SEED, tmp_path / "known.json")
    assert result.value is None
    assert "they were made before" in result.detail


def test_another_seed_is_worth_nothing_to_it(cheat: PrecomputedForTheSeed, tmp_path: Path) -> None:
    result = window(cheat, SEED + 1, tmp_path / "drawn.json")
    assert result.value is not None
    assert known_faster(result.document) == ""


def test_an_honest_server_is_not_accused(tmp_path: Path) -> None:
    assert window(PrefixCache(), SEED, tmp_path / "honest.json").value is not None


def requests(fresh_s: list[float], known_s: list[float]) -> dict[str, Any]:
    def one(span_s: float, fresh: bool) -> dict[str, Any]:
        return {"fresh": fresh, "state": "ok", "ttft_s": 0.5, "latency_s": 0.5 + span_s}

    return {"per_request": [*(one(s, True) for s in fresh_s), *(one(s, False) for s in known_s)]}


@pytest.mark.parametrize(
    ("fresh_s", "known_s", "told"),
    [
        ([0.1] * 4, [0.01] * 4, True),
        ([0.1] * 4, [0.0] * 4, False),  # no span: nothing to compare
        ([0.1] * 3, [0.01] * 9, False),  # too few fresh ones
        ([0.1] * 9, [0.01] * 3, False),
        ([0.1] * 4, [0.039] * 4, True),
        ([0.1] * 4, [0.041] * 4, False),
        ([0.01] * 4, [0.1] * 4, False),  # the other way round proves nothing
        ([0.0049] * 4, [0.0001] * 4, False),  # too short to time
        ([0.1, 0.1, 0.1, 0.1, 0.11], [0.01, 0.011, 0.1, 0.1], False),  # not surely
        ([0.1, 0.12, 0.09, 0.1, 0.11], [0.001, 0.0001, 0.002, 0.0004], True),  # below a fiftieth is all the same
    ],
)
def test_known_faster(fresh_s: list[float], known_s: list[float], told: bool) -> None:
    assert bool(known_faster(requests(fresh_s, known_s))) is told


@pytest.mark.parametrize("per_request", [None, "text", [], [None], [{"fresh": True}], [{"state": "ok", "fresh": 1}]])
def test_what_is_no_list_of_requests(per_request: Any) -> None:
    assert known_faster({"per_request": per_request}) == ""


def test_only_answers_that_ended_count() -> None:
    document = requests([0.1] * 4, [0.01] * 4)
    for one in document["per_request"][:1]:
        one["state"] = "cut off"
    assert known_faster(document) == ""
    document = requests([0.1] * 4, [0.01] * 4)
    document["per_request"][0]["latency_s"] = float("nan")
    assert known_faster(document) == ""
    assert "took 10% of the time of fresh ones" in known_faster(requests([0.1] * 4, [0.01] * 4))
