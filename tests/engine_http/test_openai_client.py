"""The official client against a real server process: what it expects of the API, it gets."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Iterator

import openai
import pytest

MODEL = "tiny-llama"


@pytest.fixture(scope="module")
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=30) as made:
        yield made


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"say:{text}"}]


def test_models(client):
    listed = client.models.list().data
    assert [model.id for model in listed] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "vibeserve"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat_whole(client):
    answer = client.chat.completions.create(model=MODEL, messages=say("Füße 🙂"), max_completion_tokens=50)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL
    assert answer.system_fingerprint.startswith("fp_")
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Füße 🙂", "stop")
    assert choice.logprobs is None
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 0


def test_chat_streamed(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=say("Füße 🙂"), stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert {chunk.id for chunk in (*chunks, last)} == {last.id}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert all(chunk.usage is None for chunk in chunks)
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    assert "".join([chunk.choices[0].delta.content or "" for chunk in chunks]) == "Füße 🙂"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert last.choices == []
    assert last.usage.completion_tokens > 1


def test_completion_whole_and_streamed_agree(client):
    asked = {"model": MODEL, "prompt": "The quick", "max_tokens": 40, "temperature": 0, "seed": 3}
    extra = {"return_token_ids": True, "ignore_eos": True}
    whole = client.completions.create(**asked, extra_body=extra)
    chunks = list(client.completions.create(**asked, extra_body=extra, stream=True))
    assert "".join([chunk.choices[0].text for chunk in chunks]) == whole.choices[0].text
    ids = [token for chunk in chunks for token in chunk.choices[0].token_ids]
    assert ids == whole.choices[0].token_ids
    assert len(ids) == whole.usage.completion_tokens == 40
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)


def test_n_choices_with_a_seed(client):
    asked = {"model": MODEL, "prompt": "The", "max_tokens": 12, "n": 3, "seed": 5}
    first, again = (client.completions.create(**asked) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert texts == [choice.text for choice in again.choices]
    assert len(set(texts)) == 3
    streamed = {0: "", 1: "", 2: ""}
    for chunk in client.completions.create(**asked, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert list(streamed.values()) == texts
    single = client.completions.create(**(asked | {"n": 1}))
    assert single.choices[0].text == texts[0]


def test_prompts_in_a_list_and_as_ids(client):
    answer = client.completions.create(
        model=MODEL, prompt=["say:one", "say:two"], max_tokens=20, n=2, extra_body={"return_token_ids": True}
    )
    assert [choice.text for choice in answer.choices] == ["one", "one", "two", "two"]
    ids = answer.choices[0].token_ids[:-1]
    by_ids = client.completions.create(model=MODEL, prompt=ids, max_tokens=4, temperature=0)
    lists = client.completions.create(model=MODEL, prompt=[ids, ids], max_tokens=4, temperature=0)
    assert [choice.text for choice in lists.choices] == [by_ids.choices[0].text] * 2
    assert by_ids.usage.prompt_tokens == len(ids)
    assert lists.usage.prompt_tokens == 2 * len(ids)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "expected"),
    [("fox", "a quick brown "), ([" brown", "zebra"], "a quick"), ("x", "a quick brown fo"), ("🙂", None)],
)
def test_stop_strings(client, stream, stop, expected):
    text = "a quick brown fox jumps"
    asked = {"model": MODEL, "messages": say(text), "stop": stop, "extra_body": {"return_token_ids": True}}
    if stream:
        chunks = list(client.chat.completions.create(**asked, stream=True))
        shown = "".join([chunk.choices[0].delta.content or "" for chunk in chunks])
        ids = [token for chunk in chunks for token in getattr(chunk.choices[0], "token_ids", None) or []]
        reason = chunks[-1].choices[0].finish_reason
    else:
        answer = client.chat.completions.create(**asked)
        shown, ids = answer.choices[0].message.content, answer.choices[0].token_ids
        reason = answer.choices[0].finish_reason
        assert answer.usage.completion_tokens == len(ids)
    assert shown == (text if expected is None else expected)
    assert reason == "stop"
    assert (ids[-1] == 2) == (expected is None)


def test_min_tokens_puts_stop_strings_off(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=say("a a a a a b"), stop=" a", extra_body={"min_tokens": 3, "return_token_ids": True}
    )
    assert answer.choices[0].message.content.startswith("a a")
    assert answer.usage.completion_tokens == 4


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(client, stream):
    asked = {"model": MODEL, "messages": say("ö"), "logprobs": True, "top_logprobs": 2}
    if stream:
        chunks = list(client.chat.completions.create(**asked, stream=True))
        entries = [e for chunk in chunks if chunk.choices[0].logprobs for e in chunk.choices[0].logprobs.content]
    else:
        entries = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert bytes(byte for entry in entries for byte in entry.bytes) == "ö<|im_end|>".encode()
    assert all(entry.logprob == -0.5 and len(entry.top_logprobs) == 2 for entry in entries)


def test_chat_logprobs_without_alternatives(client):
    answer = client.chat.completions.create(model=MODEL, messages=say("a"), logprobs=True)
    assert [entry.top_logprobs for entry in answer.choices[0].logprobs.content] == [[], []]


@pytest.mark.parametrize("stream", [False, True])
def test_completion_logprobs(client, stream):
    asked = {"model": MODEL, "prompt": "say:a quick 🙂", "logprobs": 1, "max_tokens": 50}
    if stream:
        parts = [chunk.choices[0].logprobs for chunk in client.completions.create(**asked, stream=True)]
        tokens = [token for part in parts if part for token in part.tokens]
        offsets = [offset for part in parts if part for offset in part.text_offset]
    else:
        choice = client.completions.create(**asked).choices[0]
        tokens, offsets = choice.logprobs.tokens, choice.logprobs.text_offset
        assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs) == len(tokens)
        assert all(top[token] == -0.5 for top, token in zip(choice.logprobs.top_logprobs, tokens, strict=True))
    assert any(token.startswith("bytes:\\x") for token in tokens)
    text = "a quick 🙂"
    for token, offset in zip(tokens[:-1], offsets, strict=False):
        if not token.startswith("bytes:"):
            assert text[offset : offset + len(token)] == token


@pytest.mark.parametrize("stream", [False, True])
def test_echo(client, stream):
    asked = {"model": MODEL, "prompt": "say:fox", "echo": True, "max_tokens": 9, "stream": stream}
    answer = client.completions.create(**asked)
    text = "".join([c.choices[0].text for c in answer]) if stream else answer.choices[0].text
    assert text == "say:foxfox"


def test_echo_scores_the_prompt(client):
    whole = client.completions.create(model=MODEL, prompt="say:fox", echo=True, max_tokens=2, logprobs=1)
    scored = whole.choices[0].logprobs
    assert scored.token_logprobs[0] is None
    assert scored.top_logprobs[0] is None
    assert all(value == -0.5 for value in scored.token_logprobs[1:])
    assert len(scored.tokens) == whole.usage.total_tokens
    assert "".join(scored.tokens).startswith("say:fox")
    assert scored.text_offset[whole.usage.prompt_tokens] == len("say:fox")
    only = client.completions.create(model=MODEL, prompt="say:fox", echo=True, max_tokens=0, logprobs=0)
    assert only.choices[0].logprobs.token_logprobs == scored.token_logprobs[: whole.usage.prompt_tokens]
    assert (only.choices[0].text, only.usage.completion_tokens) == ("say:fox", 0)
    nothing = client.completions.create(model=MODEL, prompt="say:fox", max_tokens=0)
    assert (nothing.choices[0].text, nothing.choices[0].finish_reason) == ("", "length")


def test_logit_bias_and_stop_token_ids(client):
    answer = client.completions.create(
        model=MODEL, prompt="x", max_tokens=5, logit_bias={"100": 100}, extra_body={"return_token_ids": True}
    )
    assert answer.choices[0].token_ids == [100] * 5
    stopped = client.completions.create(
        model=MODEL, prompt="x", max_tokens=5, logit_bias={"100": 100},
        extra_body={"return_token_ids": True, "stop_token_ids": [100]},
    )  # fmt: skip
    choice = stopped.choices[0]
    assert (choice.token_ids, choice.text, choice.finish_reason) == ([100], "", "stop")


def test_usage_in_every_chunk(client):
    asked = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.completions.create(
            model=MODEL, prompt="The", max_tokens=6, stream=True, stream_options=asked, extra_body={"ignore_eos": True}
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 6


def test_options_that_say_nothing_are_taken(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=say("a"), user="me", metadata={"a": "b"}, store=False, service_tier="auto", tools=[],
        response_format={"type": "text"}, extra_body={"stream_options": {"include_usage": True}, "top_k": 5, "min_p": 0},
    )  # fmt: skip
    assert answer.choices[0].message.content == "a"


def test_content_in_parts_and_the_developers_role(client):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "say:"}, {"type": "text", "text": "both"}]},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages)
    assert answer.choices[0].message.content == "both"


@pytest.mark.parametrize(
    ("asked", "kind", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "max_tokens"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "tools"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format"),
        ({"prediction": {"type": "text", "content": "a"}}, openai.BadRequestError, "prediction.type"),
    ],
)
def test_errors_name_their_field(client, asked, kind, param):
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**({"model": MODEL, "messages": say("a")} | asked))
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_leaving_a_stream_frees_its_slot(client, server):
    with client.completions.create(
        model=MODEL, prompt="The", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    server.wait_for(server.idle)


def test_64_clients_at_once_get_their_own_answers(client, server):
    texts = [f"answer number {at} {'x' * (at % 7)}🙂" for at in range(64)]
    barrier = threading.Barrier(16)

    def ask(at: int) -> str:
        if at < 16:
            barrier.wait()
        if at % 2:
            return client.chat.completions.create(model=MODEL, messages=say(texts[at])).choices[0].message.content
        stream = client.chat.completions.create(model=MODEL, messages=say(texts[at]), stream=True)
        return "".join([chunk.choices[0].delta.content or "" for chunk in stream])

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        assert list(pool.map(ask, range(64))) == texts
    server.wait_for(server.idle)
