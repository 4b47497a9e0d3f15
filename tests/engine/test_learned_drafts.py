"""The learned draft model: it changes no answer, learns over requests, is silent in company and forgets in bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import chisquare
from tests.engine.helpers import GREEDY, answer, finish, prompt, tokens_of
from tests.engine.models import save_model

from vibeserve.engine.core import EngineCore
from vibeserve.engine.learned_drafts import NextTokens
from vibeserve.engine.settings import Settings
from vibeserve.engine.speculation import IDLE_SEQUENCES, Speculation
from vibeserve.engine.types import Request, SamplingParams

BASE = Settings(max_batch=8, max_batch_tokens=40, kv_memory_bytes=3 << 20, threads=1)
LEARNING = replace(BASE, learned_drafts=True, draft_rows=12)
LONG = replace(GREEDY, max_tokens=60)


def core_of(root: Path, backend: str, settings: Settings) -> EngineCore:
    return EngineCore(save_model("llama", root), replace(settings, backend=backend))


def test_greedy_answers_are_the_plain_ones_and_come_in_fewer_steps(model_root: Path, backend: str) -> None:
    plain, learning = core_of(model_root, backend, BASE), core_of(model_root, backend, LEARNING)
    for seed in range(3):
        assert answer(learning, prompt(seed, 20), LONG) == answer(plain, prompt(seed, 20), LONG)
    before = learning.stats()
    assert answer(learning, prompt(1, 20), LONG) == answer(plain, prompt(1, 20), LONG)
    after = learning.stats()
    assert after.accepted_tokens > before.accepted_tokens
    assert after.steps - before.steps < LONG.max_tokens - 10
    plain.close()
    learning.close()


def test_drawn_answers_are_the_plain_ones_by_seed(model_root: Path) -> None:
    plain, learning = core_of(model_root, "torch", BASE), core_of(model_root, "torch", LEARNING)
    answer(learning, prompt(1, 20), LONG)
    for seed in range(6):
        params = SamplingParams(temperature=0.4, seed=seed, max_tokens=40, ignore_eos=True)
        assert answer(learning, prompt(1, 20), params) == answer(plain, prompt(1, 20), params)
    assert learning.stats().proposed_tokens > learning.stats().accepted_tokens > 0


def test_drawn_answers_keep_their_distribution(model_root: Path) -> None:
    """The third token, over many seeds, with drafts of the likeliest answer and without."""
    plain, learning = core_of(model_root, "torch", BASE), core_of(model_root, "torch", LEARNING)
    for _ in range(3):
        answer(learning, prompt(1, 20), replace(GREEDY, max_tokens=8))
    counts: list[dict[int, int]] = []
    for first, core in ((0, plain), (10_000, learning)):
        seen: dict[int, int] = {}
        for seed in range(first, first + 300):
            params = SamplingParams(temperature=0.7, top_k=4, seed=seed, max_tokens=4, ignore_eos=True)
            token = answer(core, prompt(1, 20), params)[2]
            seen[token] = seen.get(token, 0) + 1
        counts.append(seen)
    common = [token for token in counts[0] if counts[0][token] >= 10]
    expected = [counts[0][token] for token in common]
    found = [counts[1].get(token, 0) for token in common]
    # Two samples are compared: their difference has twice the variance of one against a known distribution.
    scale = sum(found) / sum(expected)
    assert chisquare(found, [value * scale for value in expected]).statistic / 2 < 25


def test_in_company_it_is_silent(model_root: Path) -> None:
    core = core_of(model_root, "torch", LEARNING)
    for _ in range(2):
        answer(core, prompt(1, 20), LONG)
    before = core.stats().proposed_tokens
    for at in range(IDLE_SEQUENCES + 2):
        core.add(Request(f"r{at}", prompt(1, 20), replace(GREEDY, max_tokens=12)))
    found = finish(core)
    assert len({tuple(tokens_of(outputs)) for outputs in found.values()}) == 1
    assert core.stats().proposed_tokens == before


def test_it_speaks_only_where_it_is_sure() -> None:
    model = NextTokens()
    model.learn([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], 0)
    assert model.propose([9, 1, 2], 5) == [3, 4, 1, 2, 3]
    assert model.propose([9, 9, 9], 5) == []
    model.learn([7, 7, 5], 0)
    model.learn([7, 7, 6], 0)
    assert model.propose([7, 7], 3) == []


def test_it_forgets_in_bounds() -> None:
    model = NextTokens(most_contexts=50)
    for start in range(0, 2000, 10):
        model.learn(list(range(start, start + 10)), 0)
    assert len(model) == 50
    assert model.propose([1970, 1971], 2) == []
    assert model.propose([1997, 1998], 1) == [1999]


@pytest.mark.parametrize("most", [1, 8])
def test_a_drafter_backs_off_where_it_is_wrong(most: int) -> None:
    learned = NextTokens()
    learned.learn([1, 2, 3] * 8, 0)
    drafter = Speculation(predictions=False, lookup=False, longest=11, learned=learned).drafter(())
    assert drafter is not None
    asked = 0
    for _ in range(100):
        draft = drafter.propose([1, 2], 2, most)
        if draft:
            asked += 1
            drafter.record(len(draft), 0)
    assert asked < 12
