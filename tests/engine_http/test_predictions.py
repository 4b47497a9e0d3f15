"""Predictions over the wire: the same answers, whole and streamed, with a usage that tells what they gave."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

PLAIN = "[engine]\nbackend = 'torch'\nthreads = 1\nmax_batch = 8\nmax_batch_tokens = 64\n[http]\nmodel_name = 'tiny'\n"
DRAFTING = PLAIN.replace("[http]", "predicted_outputs = true\nngram_speculation = true\n[http]")
PARTS = ["core", "http", "torch_backend", "prefix_tree", "speculation"]
ASKED = {"prompt": "The quick brown fox", "max_tokens": 40, "temperature": 0, "return_token_ids": True}


@pytest.fixture(scope="module")
def plain(tiny_model, start_script) -> Iterator:
    with start_script(tiny_model, PLAIN) as started:
        yield started


@pytest.fixture(scope="module")
def drafting(tiny_model, start_script) -> Iterator:
    """A copy of the parts alone, as a candidate carries them."""
    with start_script(tiny_model, DRAFTING, parts=PARTS) as started:
        yield started


def document(server, asked: dict) -> dict:
    status, body = server.call("/v1/completions", asked)
    assert status == 200, body
    return json.loads(body)


def streamed(server, asked: dict) -> tuple[str, list[int], dict]:
    status, body = server.call("/v1/completions", asked | {"stream": True, "stream_options": {"include_usage": True}})
    assert status == 200
    events = [json.loads(line[6:]) for line in body.decode().split("\n\n") if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events if event["choices"]]
    ids = [token for choice in choices for token in choice["token_ids"]]
    return "".join([choice["text"] for choice in choices]), ids, events[-1]["usage"]


def predicted(text: str) -> dict:
    return {"prediction": {"type": "content", "content": text}}


@pytest.mark.parametrize(
    "extra",
    [{}, {"temperature": 0.8, "seed": 11}, {"stop": ["e", "qu"]}, {"n": 3, "temperature": 1, "seed": 4}, {"logprobs": 2},
     {"frequency_penalty": 1, "presence_penalty": 0.5}, {"echo": True, "logprobs": 1}, {"min_tokens": 20}],
)  # fmt: skip
def test_the_answer_is_the_plain_one(plain, drafting, extra):
    asked = ASKED | extra
    right = document(plain, asked)
    text = right["choices"][0]["text"]
    for prediction in (text, text[10:], "something else", ""):
        found = document(drafting, asked | predicted(prediction))
        assert found["choices"] == right["choices"]
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert found["usage"][name] == right["usage"][name]
    if extra.get("n", 1) == 1:
        told = streamed(drafting, asked | predicted(text))
        assert told[:2] == (text, right["choices"][0]["token_ids"])


def test_stop_strings_end_inside_a_step(plain, drafting):
    free = document(plain, ASKED | {"ignore_eos": True})["choices"][0]["text"]
    stop = free[20:24]
    asked = ASKED | {"ignore_eos": True, "stop": stop}
    right = document(plain, asked)
    found = document(drafting, asked | predicted(free))
    assert found["choices"] == right["choices"]
    details = found["usage"]["completion_tokens_details"]
    assert 0 < details["accepted_prediction_tokens"] <= found["usage"]["completion_tokens"]
    drafting.wait_for(drafting.idle, 5)


def test_usage_tells_what_the_prediction_gave(plain, drafting):
    asked = ASKED | {"ignore_eos": True}
    text = document(plain, asked)["choices"][0]["text"]
    good = document(drafting, asked | predicted(text))["usage"]["completion_tokens_details"]
    wrong = document(drafting, asked | predicted("Zwölf Boxkämpfer jagen Viktor"))["usage"]["completion_tokens_details"]
    none = document(drafting, asked)["usage"]["completion_tokens_details"]
    without = document(plain, asked | predicted(text))["usage"]["completion_tokens_details"]
    # Random weights write broken characters: their text has other tokens than the answer in places.
    assert good["accepted_prediction_tokens"] >= 8
    assert wrong["accepted_prediction_tokens"] <= 2
    assert wrong["rejected_prediction_tokens"] > 0
    for details in (none, without):
        assert details["accepted_prediction_tokens"] == details["rejected_prediction_tokens"] == 0


def test_the_client_library_sends_predictions(drafting):
    with openai.OpenAI(base_url=drafting.url + "/v1", api_key="none", max_retries=0) as client:
        turns = [{"role": "user", "content": "Say it again: how vexingly quick"}]
        asked = {"model": "tiny", "messages": turns, "max_tokens": 30, "temperature": 0}
        first = client.chat.completions.create(**asked)
        parts = [{"type": "text", "text": first.choices[0].message.content}]
        second = client.chat.completions.create(**asked, prediction={"type": "content", "content": parts})
    assert second.choices[0].message.content == first.choices[0].message.content
    assert second.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_metrics_tell_that_it_is_at_work(plain, drafting):
    document(drafting, ASKED | predicted(document(plain, ASKED)["choices"][0]["text"]))
    assert drafting.metric('engine_feature_active{feature="predicted_outputs"}') == 1
    assert plain.metric('engine_feature_active{feature="predicted_outputs"}') == 0
    proposed, accepted = (drafting.metric(f"engine_{name}_tokens_total") for name in ("proposed", "accepted"))
    assert 0 < accepted <= proposed
