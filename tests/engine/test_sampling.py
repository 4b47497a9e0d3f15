"""Sampling: what each parameter means, and that both draws (NumPy's and the kernels') mean the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.helpers import GREEDY, answer, finish, prompt, tokens_of
from tests.engine.models import save_model

from vibeserve.engine.core import EngineCore
from vibeserve.engine.errors import RequestError
from vibeserve.engine.sampling import adjust, choose, draw, logprobs_of, uniform
from vibeserve.engine.sequence import Sequence
from vibeserve.engine.settings import Settings
from vibeserve.engine.types import Request, SamplingParams

RANDOM = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)


def kept(logits: np.ndarray, params: SamplingParams) -> dict[int, float]:
    """The distribution by definition: sort, cut, renormalise in float64."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) / params.temperature)
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    if params.top_k:
        order = order[: params.top_k]
    total, reached, cut = sum(weights[i] for i in order), 0.0, []
    for i in order:
        cut.append(i)
        reached += weights[i]
        if reached >= params.top_p * total:
            break
    order = [i for i in cut if weights[i] >= params.min_p * weights[cut[0]]]
    total = sum(weights[i] for i in order)
    return {i: weights[i] / total for i in order}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> EngineCore:
    settings = Settings(max_batch=8, max_batch_tokens=64, kv_memory_bytes=2 << 20, threads=2)
    return EngineCore(save_model("llama", tmp_path_factory.mktemp("model")), settings)


CUTS = st.builds(
    SamplingParams,
    temperature=st.floats(0.2, 3.0),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.9),
)


@given(params=CUTS, seed=st.integers(0, 10**6), size=st.sampled_from([1, 7, 320, 5000]))
def test_draw_stays_within_the_cut_and_follows_the_weights(params: SamplingParams, seed: int, size: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 4, size).astype(np.float32)
    expected = kept(logits, params)
    edges = list(expected.items())
    assert draw(logits, params, 0.0) in expected
    assert draw(logits, params, np.nextafter(1.0, 0.0)) in expected
    if params.top_k or params.top_p < 1 or params.min_p > 0:
        # Likeliest first: the middle of each stretch of the line from 0 to 1 gives its own token.
        reached = 0.0
        for token, share in edges[:5]:
            if share > 1e-4:
                assert draw(logits, params, reached + share / 2) == token
            reached += share


@given(params=CUTS, seed=st.integers(0, 10**6), point=st.floats(0, 1, exclude_max=True))
def test_kernels_draw_the_same(core: EngineCore, params: SamplingParams, seed: int, point: float) -> None:
    if core.stats().info["backend"] != "compiled":
        pytest.skip("not run: no C++ compiler on this machine")
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 4, (5, core.limits.vocab_size)).astype(np.float32)
    logits[:, rng.integers(0, 320, 20)] = -np.inf
    rows = [4, 0, 2]
    got = core._backend.draw(logits, rows, [params] * 3, [point] * 3)
    for row, token in zip(rows, got, strict=True):
        distribution = kept(logits[row], params)
        assert token in distribution
        if token != draw(logits[row], params, point):
            # Two exponentials that differ in the last bit may fall on two sides of an edge.
            assert _on_an_edge(distribution, token, point, by_id=not _cuts(params))


def _cuts(params: SamplingParams) -> bool:
    return bool(params.top_k or params.top_p < 1 or params.min_p > 0)


def _on_an_edge(distribution: dict[int, float], token: int, point: float, by_id: bool) -> bool:
    ids = sorted(distribution) if by_id else list(distribution)
    edges = np.cumsum([distribution[i] for i in ids])
    index = ids.index(token)
    return bool(min(abs(edges[index] - point), abs(edges[index] - distribution[token] - point)) < 1e-5)


def test_uniform_is_uniform_and_depends_on_seed_and_index_alone() -> None:
    points = [uniform(7, index) for index in range(4000)]
    assert points == [uniform(7, index) for index in range(4000)]
    assert max(abs(np.histogram(points, 10, (0, 1))[0] / 400 - 1)) < 0.2
    assert len({uniform(seed, 0) for seed in range(1000)}) == 1000


def test_seeded_answers_do_not_depend_on_company(backend: str, model_root: Path) -> None:
    settings = Settings(backend=backend, max_batch=8, max_batch_tokens=64, kv_memory_bytes=2 << 20, threads=1)
    core = EngineCore(save_model("llama", model_root), settings)
    wanted = replace(RANDOM, seed=42, top_p=0.9, temperature=1.3)
    alone = answer(core, prompt(1, 30), wanted)
    for index in range(12):
        core.add(Request(f"other{index}", prompt(index, 10 + index), replace(RANDOM, max_tokens=5 + index)))
    core.add(Request("needle", prompt(1, 30), wanted))
    assert tokens_of(finish(core)["needle"]) == alone
    assert answer(core, prompt(1, 30), replace(wanted, seed=43)) != alone
    core.close()


def test_sampled_tokens_follow_the_model(core: EngineCore) -> None:
    """A thousand first tokens against the model's own probabilities (chi-square on the ten likeliest)."""
    ids = prompt(8, 20)
    core.add(Request("scored", ids, replace(GREEDY, max_tokens=1, logprobs=10)))
    entries = finish(core)["scored"][0].logprobs
    assert entries is not None
    for seed in range(1000):
        core.add(Request(f"s{seed}", ids, replace(RANDOM, max_tokens=1, seed=seed)))
    counts = Counter(tokens_of(outputs)[0] for outputs in finish(core).values())
    chi = sum((counts[token] - 1000 * np.exp(p)) ** 2 / (1000 * np.exp(p)) for token, p in entries[0].top)
    assert chi < 30  # 99.9 % of chi-square with 10 degrees of freedom


def test_logprobs_are_the_models_own(core: EngineCore) -> None:
    core.add(Request("plain", prompt(3, 9), replace(GREEDY, logprobs=5)))
    core.add(Request("biased", prompt(3, 9), replace(GREEDY, logprobs=5, logit_bias=((17, 100.0),))))
    outputs = finish(core)
    plain, biased = (outputs[name][0].logprobs for name in ("plain", "biased"))
    assert plain is not None
    assert biased is not None
    assert biased[0].token_id == 17
    assert biased[0].top == plain[0].top
    assert plain[0].top[0] == (plain[0].token_id, plain[0].logprob)
    assert list(plain[0].top) == sorted(plain[0].top, key=lambda pair: (-pair[1], pair[0]))


def test_logprobs_sum_to_one() -> None:
    logits = np.random.default_rng(0).normal(0, 3, 100).astype(np.float32)
    entry = logprobs_of(logits, 4, 100)
    assert sum(np.exp(p) for _, p in entry.top) == pytest.approx(1, abs=1e-5)


def sequence(params: SamplingParams, sampled: tuple[int, ...] = ()) -> Sequence:
    made = Sequence(Request("x", (1, 2, 3), params), 0.0)
    made.tokens += sampled
    for token in sampled:
        made.token_counts[token] = made.token_counts.get(token, 0) + 1
    return made


def test_penalties_by_their_definitions() -> None:
    logits = np.linspace(-2, 2, 10).astype(np.float32)
    row = logits.copy()
    adjust(sequence(SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), (4, 4, 9)), row, ())
    assert row[4] == pytest.approx(logits[4] - 0.5 - 0.5)
    assert row[9] == pytest.approx(logits[9] - 0.75)
    assert row[1] == logits[1]
    row = logits.copy()
    adjust(sequence(SamplingParams(repetition_penalty=2.0), (9,)), row, ())
    assert row[9] == pytest.approx(logits[9] / 2)
    assert row[1] == pytest.approx(logits[1] * 2)
    assert row[5] == logits[5]
    row = logits.copy()
    adjust(sequence(SamplingParams(min_tokens=2, max_tokens=4, stop_token_ids=(5,))), row, (7,))
    assert np.isneginf(row[[5, 7]]).all()


def test_greedy_takes_the_lowest_of_equals() -> None:
    params = SamplingParams(temperature=0.0, logit_bias=((2, 5.0), (6, 5.0)))
    logits = np.zeros((1, 8), dtype=np.float32)
    assert choose([(sequence(params), 0)], logits, np.array([0], dtype=np.int32), (), lambda *_: [])[0].token == 2


def test_min_tokens_holds_back_the_end(core: EngineCore) -> None:
    first = answer(core, prompt(2, 12), GREEDY, max_tokens=1)[0]
    stopping = replace(GREEDY, ignore_eos=False, stop_token_ids=(first,), max_tokens=9)
    assert answer(core, prompt(2, 12), stopping) == [first]
    held = answer(core, prompt(2, 12), replace(stopping, min_tokens=5))
    assert len(held) >= 5
    assert first not in held[:5]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("max_tokens", 0),
        ("logprobs", 21),
        ("seed", 2**64),
    ],
)
def test_values_out_of_range_name_their_field(field: str, value: float) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert field in caught.value.message
