"""Drafts change the time that an answer takes, never the answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tests.engine.helpers import GREEDY, answer, finish, prompt, tokens_of
from tests.engine.models import save_model

from vibeserve.engine.core import EngineCore
from vibeserve.engine.errors import RequestError
from vibeserve.engine.settings import Settings
from vibeserve.engine.speculation import FIRST_LENGTH, LONGEST_PAUSE, Appetite, Lookup, Prediction, Speculation
from vibeserve.engine.types import Output, Request, SamplingParams

BASE = Settings(max_batch=8, max_batch_tokens=40, kv_memory_bytes=3 << 20, threads=1)
DRAFTING = replace(BASE, predicted_outputs=True, ngram_speculation=True, draft_rows=12)
PROMPT = prompt(5, 40)
LONG = replace(GREEDY, max_tokens=60)


def core_of(root: Path, backend: str, **changes: object) -> EngineCore:
    return EngineCore(save_model("llama", root), replace(DRAFTING, backend=backend, **changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain(model_root: Path) -> EngineCore:
    """Without drafts."""
    return EngineCore(save_model("llama", model_root), replace(BASE, backend="torch"))


@pytest.fixture(scope="module")
def drafting(model_root: Path) -> EngineCore:
    """With both sources."""
    return core_of(model_root, "torch")


@pytest.fixture(scope="module")
def expected(plain: EngineCore) -> list[int]:
    return answer(plain, PROMPT, LONG)


def ask(
    core: EngineCore, params: SamplingParams, predicted: tuple[int, ...] = (), ids: tuple[int, ...] = PROMPT
) -> list[Output]:
    core.add(Request("asked", ids, params, prediction_ids=predicted))
    return finish(core)["asked"]


def edited(tokens: list[int], seed: int) -> tuple[int, ...]:
    """The same with a span inserted, one deleted and one replaced."""
    rng = np.random.default_rng(seed)
    made = list(tokens)
    for kind in rng.permutation(3):
        at, length = int(rng.integers(0, max(1, len(made) - 6))), int(rng.integers(1, 5))
        fresh = [int(token) for token in rng.integers(3, 320, length)]
        made[at : at + (0 if kind == 0 else length)] = [] if kind == 1 else fresh
    return tuple(made)


# -- the answer is the same


def test_a_right_prediction_saves_steps(backend: str, model_root: Path, expected: list[int]) -> None:
    core = core_of(model_root, backend)
    before = core.stats().steps
    outputs = ask(core, LONG, tuple(expected))
    assert tokens_of(outputs) == expected
    assert core.stats().steps - before <= 2 + len(expected) // 8
    assert outputs[-1].accepted_prediction_tokens >= 50
    assert outputs[-1].rejected_prediction_tokens == 0
    stats = core.stats()
    assert 0 < stats.accepted_tokens <= stats.proposed_tokens
    assert stats.output_tokens == len(expected)
    assert stats.features["predicted_outputs"]
    assert stats.features["ngram_speculation"]


@pytest.mark.parametrize("seed", range(6))
def test_edited_predictions_are_found_again(backend: str, model_root: Path, expected: list[int], seed: int) -> None:
    core = core_of(model_root, backend, ngram_speculation=False)
    before = core.stats().steps
    outputs = ask(core, LONG, edited(expected, seed))
    assert tokens_of(outputs) == expected
    assert outputs[-1].accepted_prediction_tokens >= 25
    assert core.stats().steps - before <= 35


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["right", "cut", "edited", "foreign", "empty", "doubled"]),
    most=st.integers(1, 40),
    temperature=st.sampled_from([0.0, 0.0, 1.0]),
    changes=st.sampled_from(
        [
            {},
            {"logprobs": 2},
            {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
            {"ignore_eos": False, "min_tokens": 4},
            {"logit_bias": ((7, 4.0), (9, -3.0))},
            {"top_k": 5},
            {"top_p": 0.7, "logprobs": 0},
            {"stop": True},
        ]
    ),
)
def test_any_proposal_gives_the_same_answer(
    plain: EngineCore,
    drafting: EngineCore,
    seed: int,
    kind: str,
    most: int,
    temperature: float,
    changes: dict[str, object],
) -> None:
    ids = prompt(seed % 7, 5 + seed % 30)
    params = replace(GREEDY, max_tokens=most, temperature=temperature, seed=seed)
    options = dict(changes)
    if options.pop("stop", None):
        first = tokens_of(ask(plain, params, ids=ids))
        options["stop_token_ids"] = (first[len(first) // 2],)
    if "min_tokens" in options:
        options["min_tokens"] = min(4, most)
    params = replace(params, **options)  # type: ignore[arg-type]
    alone = ask(plain, params, ids=ids)
    right = tokens_of(alone)
    predicted = {
        "right": tuple(right),
        "cut": tuple(right[: len(right) // 2]),
        "edited": edited(right, seed) if right else (),
        "foreign": prompt(seed + 1, 30),
        "empty": (),
        "doubled": tuple(right + right),
    }[kind]
    outputs = ask(drafting, params, predicted, ids)
    assert tokens_of(outputs) == right
    assert outputs[-1].finish_reason == alone[-1].finish_reason
    if params.logprobs is None:
        assert all(output.logprobs is None for output in outputs)
    else:
        assert [entry for output in outputs for entry in output.logprobs or ()] == [
            entry for output in alone for entry in output.logprobs or ()
        ]


def test_crowded_evicting_and_preempted(backend: str, model_root: Path) -> None:
    """Six at once in a cache that holds two: drafts take nobody's blocks, and every block comes back."""
    model = save_model("llama", model_root)
    tight = {"kv_memory_bytes": 11 * 16 * 3 * 2 * 2 * 16 * 4, "max_model_len": 128}
    alone = EngineCore(model, replace(BASE, backend=backend, max_model_len=128))
    core = core_of(model_root, backend, **tight)
    params = replace(GREEDY, max_tokens=40)
    wanted = {f"r{index}": answer(alone, prompt(index, 20), params) for index in range(6)}
    for index, (name, tokens) in enumerate(wanted.items()):
        core.add(Request(name, prompt(index, 20), params, prediction_ids=edited(tokens, index)))
    found = finish(core)
    assert {name: tokens_of(outputs) for name, outputs in found.items()} == wanted
    stats = core.stats()
    assert stats.preemptions > 0
    assert stats.accepted_tokens > 0
    assert stats.kv_blocks_used == 0


def test_cached_blocks_hold_accepted_tokens_only(backend: str, model_root: Path, expected: list[int]) -> None:
    """A second request that goes on from the first answer finds its blocks, and they are right."""
    core = core_of(model_root, backend)
    ask(core, LONG, edited(expected, 3))
    following = PROMPT + tuple(expected[:-2])
    outputs = ask(core, replace(LONG, max_tokens=2), (), following)
    assert tokens_of(outputs) == expected[-2:]
    assert outputs[0].cached_tokens >= 80


def test_abort_in_the_middle_frees_blocks(drafting: EngineCore, expected: list[int]) -> None:
    drafting.add(Request("left", PROMPT, LONG, prediction_ids=tuple(expected)))
    for _ in range(3):
        drafting.step()
    drafting.abort("left")
    assert finish(drafting)["left"][-1].finish_reason == "abort"
    assert drafting.stats().kv_blocks_used == 0


def test_a_token_outside_the_vocabulary_is_refused(drafting: EngineCore) -> None:
    with pytest.raises(RequestError, match="token id 320"):
        drafting.check(Request("wrong", PROMPT, GREEDY, prediction_ids=(3, 320)))


def test_a_full_batch_has_no_drafts(model_root: Path, expected: list[int]) -> None:
    core = core_of(model_root, "torch", draft_rows=4)
    for index in range(4):
        core.add(Request(f"r{index}", PROMPT, replace(LONG, max_tokens=20), prediction_ids=tuple(expected)))
    finish(core)
    assert core.stats().proposed_tokens <= 12  # only while some of the four were still in their prompts


def test_sampling_keeps_its_distribution(plain: EngineCore, drafting: EngineCore) -> None:
    """The third token over 600 seeds, drafted always with the likeliest answer: counts of plain and drafted agree."""
    params = replace(GREEDY, temperature=1.0, top_k=4, max_tokens=4)
    likeliest = tuple(answer(plain, PROMPT, replace(params, temperature=0.0)))
    counts: list[dict[int, int]] = [{}, {}]
    for which, core in enumerate((plain, drafting)):
        for start in range(0, 600, 8):
            for seed in range(start, start + 8):
                # Other seeds than the plain ones: equality would only show that the numbers are the same.
                request = replace(params, seed=seed + 10_000 * which)
                core.add(Request(f"{seed}", PROMPT, request, prediction_ids=likeliest))
            for outputs in finish(core).values():
                token = tokens_of(outputs)[2]
                counts[which][token] = counts[which].get(token, 0) + 1
    tokens = sorted(set(counts[0]) | set(counts[1]))
    often = [token for token in tokens if counts[0].get(token, 0) >= 10]
    table = [[each.get(token, 0) for token in often] for each in counts]
    rest = [600 - sum(row) for row in table]
    if min(rest) >= 5:
        table = [[*row, left] for row, left in zip(table, rest, strict=True)]
    pooled = np.array(table[0]) + np.array(table[1])
    for row in table:
        assert chisquare(row, pooled * (sum(row) / pooled.sum())).pvalue > 1e-4
    assert len(often) >= 4


# -- where it cannot help, it stops


def test_lookup_that_finds_nothing_stops(plain: EngineCore) -> None:
    """An adversary: every pair stood before, and nothing that followed it comes again."""
    speculation = Speculation(predictions=False, lookup=True, longest=15)
    rows = steps = 0
    for request in range(20):
        drafter = speculation.drafter(())
        assert drafter is not None
        for step in range(64):
            draft = drafter.propose([1, 2, 3 + step, 1, 2], 1, 15)
            steps += 1
            rows += len(draft)
            if draft:
                drafter.record(len(draft), 0)
        assert request < 19 or drafter.accepted == 0
    assert rows < 0.4 * steps


def test_appetite() -> None:
    appetite = Appetite()
    assert appetite.allow(99) == FIRST_LENGTH
    appetite.record(4, 4, 15)
    assert appetite.allow(99) == 8
    appetite.record(8, 3, 15)
    assert appetite.allow(99) == 4
    for _ in range(12):
        appetite.record(2, 0, 15)
    assert appetite.pause == LONGEST_PAUSE
    assert [appetite.allow(9) for _ in range(LONGEST_PAUSE)] == [0] * LONGEST_PAUSE
    assert appetite.allow(9) == 2


# -- the sources themselves


def test_prediction_is_followed_and_found_again() -> None:
    ids = list(range(100, 160))

    def after(answer: list[int], room: int = 4) -> list[int]:
        prediction = Prediction(ids)
        for token in answer:
            prediction.follow(token)
        return list(prediction.propose(room)) or list(prediction.guess(room))

    assert after([]) == [100, 101, 102, 103]
    assert after([100, 101, 102]) == [103, 104, 105, 106]
    assert after([100, 101, 1]) == [103, 104]  # perhaps one was replaced
    assert after([100, 101, 1, 2, 3, 102]) == [103, 104, 105, 106]  # inserted
    assert after([100, 101, 110, 111]) == [112, 113, 114, 115]  # deleted
    assert after([100, 101, 1, 2, 104]) == [105, 106, 107, 108]  # replaced
    assert after(ids) == []
    assert after([*ids, 7]) == []


def test_the_nearest_of_equal_places_is_taken() -> None:
    prediction = Prediction([1, 2, 3, 4, 5, 6, 2, 3, 9, 8, 7, 2, 3, 5, 5, 5])
    for token in (1, 2, 3, 4, 0, 2, 3):
        prediction.follow(token)
    assert list(prediction.propose(2)) == [9, 8]


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 3), max_size=30), tokens=st.lists(st.integers(0, 4), max_size=40))
def test_prediction_never_leaves_its_text(ids: list[int], tokens: list[int]) -> None:
    prediction = Prediction(ids)
    for token in tokens:
        prediction.follow(token)
        for draft in (tuple(prediction.propose(3)), tuple(prediction.guess(3))):
            assert not draft or any(tuple(ids[at : at + len(draft)]) == draft for at in range(len(ids)))


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_lookup_is_what_a_search_finds(tokens: list[int]) -> None:
    lookup = Lookup()
    for end in range(1, len(tokens) + 1):
        seen = tokens[:end]
        wanted: list[int] = []
        for size in (4, 3, 2):
            places = [at for at in range(size, end) if seen[at - size : at] == seen[end - size :]]
            if places:
                rounds = seen[places[-1] :] * 3
                wanted = rounds[:3]
                break
        assert lookup.propose(seen, 3) == wanted
