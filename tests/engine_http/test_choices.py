"""One answer, however the engine's outputs are cut: the same text, ids, scores and reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.engine.http.choices import Choice, Delta
from vibeserve.engine.http.plan import Plan, Prompt, ServedModel
from vibeserve.engine.http.wire import ChatWire, CompletionWire, joined
from vibeserve.engine.tokenizer import Tokenizer
from vibeserve.engine.types import Limits, Output, SamplingParams, TokenLogprobs

IDS = st.lists(st.integers(0, 419), max_size=30)
TEXTS = st.text("ab é🙂qux", max_size=30)
STOPS = st.lists(st.text("ab é🙂qux", min_size=1, max_size=4), max_size=3)
SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def tokenizer(tiny_model) -> Tokenizer:
    return Tokenizer.load(tiny_model)


def outputs(ids: list[int], sizes: list[int], reason: str, scored: bool) -> list[Output]:
    """The ids as outputs of these sizes (in turn), the last with the reason."""
    found, at, turn = [], 0, 0
    sizes = sizes if any(sizes) else [1]
    while at < len(ids) or not found:
        part = tuple(ids[at : at + sizes[turn % len(sizes)]])
        at, turn = at + len(part), turn + 1
        scores = tuple(TokenLogprobs(token, -1.0) for token in part) if scored else None
        found.append(Output("r", part, scores, reason if at >= len(ids) else None, 1, 0))  # type: ignore[arg-type]
    return found


def run(tokenizer: Tokenizer, plan: Plan, given: list[Output]) -> tuple[Choice, list[Delta]]:
    choice = Choice(0, plan.prompts[0], plan, tokenizer)
    return choice, [delta for output in given if (delta := choice.push(output)) is not None]


@given(ids=IDS, text=TEXTS, stops=STOPS, sizes=SIZES, scored=st.booleans(), low=st.integers(0, 5))
def test_cuts_do_not_matter(tokenizer, ids, text, stops, sizes, scored, low):
    ids = [*ids, *tokenizer.encode(text)]
    params = SamplingParams(max_tokens=100, min_tokens=low, logprobs=1 if scored else None)
    plan = Plan((Prompt((1,)),), params, stops=tuple(stops))
    _, one = run(tokenizer, plan, outputs(ids, [1], "length", scored))
    choice, many = run(tokenizer, plan, outputs(ids, sizes, "length", scored))
    assert joined(one) == joined(many)
    assert choice.completion_tokens == len(joined(many).token_ids)


@given(text=TEXTS, stops=STOPS, sizes=SIZES)
def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it(tokenizer, text, stops, sizes):
    ids = tokenizer.encode(text)
    plan = Plan((Prompt((1,)),), SamplingParams(max_tokens=100), stops=tuple(stops))
    choice, deltas = run(tokenizer, plan, outputs(ids, sizes, "length", False))
    whole = joined(deltas)
    ends = [n for n in range(1, len(ids) + 1) if any(stop in tokenizer.decode(ids[:n]) for stop in stops)]
    if not ends:
        assert (whole.text, list(whole.token_ids), whole.finish_reason) == (text, ids, "length")
    else:
        assert list(whole.token_ids) == ids[: ends[0]]
        assert whole.finish_reason == choice.finish_reason == "stop"
        assert not any(stop in whole.text for stop in stops)
        assert text.startswith(whole.text)


def test_the_token_that_ends_an_answer_is_counted_but_not_shown(tokenizer):
    plan = Plan((Prompt((1,)),), SamplingParams(max_tokens=100), skip_special_tokens=False)
    ids = [*tokenizer.encode("fox"), 2]
    choice, deltas = run(tokenizer, plan, outputs(ids, [2], "stop", False))
    assert (joined(deltas).text, list(joined(deltas).token_ids)) == ("fox", ids)
    assert choice.completion_tokens == len(ids)


def test_nothing_is_said_after_the_end_or_on_a_failure(tokenizer):
    plan = Plan((Prompt((1,)),), SamplingParams())
    choice = Choice(0, plan.prompts[0], plan, tokenizer)
    assert choice.push(Output("r", (), None, "error", 0, 0, error="no memory")) is None
    assert (choice.failure, choice.finish_reason) == ("no memory", "error")
    assert choice.push(Output("r", (5,), None, None, 0, 0)) is None


def test_several_deltas_make_one_event_with_exact_ids(tokenizer):
    plan = Plan((Prompt((1,)),), SamplingParams(logprobs=0), return_token_ids=True, stream=True, include_usage=True)
    model = ServedModel(("m",), tokenizer, Limits(512, 420, 20, 64, (2,)), 1, "fp")
    given = outputs([74, 75, 2], [1], "stop", True)
    for wire in (ChatWire("id", 1, model, plan), CompletionWire("id", 1, model, plan)):
        choice, deltas = run(tokenizer, plan, given)
        events = [json.loads(event[6:]) for event in wire.chunk(choice, joined(deltas)).decode().split("\n\n")[:-1]]
        ids = [token for event in events for token in event["choices"][0]["token_ids"]]
        assert ids == [74, 75, 2]
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
        assert all(event["usage"] is None for event in events)
        *_, last, done, _ = wire.last([choice]).decode().split("\n\n")
        assert json.loads(last[6:])["usage"]["completion_tokens"] == 3
        assert done == "data: [DONE]"


def test_an_impossible_token_has_a_finite_logprob(tokenizer):
    plan = Plan((Prompt((1,)),), SamplingParams(logprobs=1))
    model = ServedModel(("m",), tokenizer, Limits(512, 420, 20, 64, (2,)), 1, "fp")
    scores = (TokenLogprobs(74, float("-inf"), ((75, float("-inf")),)),)
    choice, deltas = run(tokenizer, plan, [Output("r", (74,), scores, "length", 1, 0)])
    for wire in (ChatWire("id", 1, model, plan), CompletionWire("id", 1, model, plan)):
        assert b"-9999.0" in wire.whole([choice], [deltas])
