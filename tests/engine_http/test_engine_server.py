"""The whole server: HTTP over the real engine, on a small model with random weights, as a candidate starts it."""

from __future__ import annotations

import concurrent.futures
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

CONFIG = "[engine]\nbackend = 'torch'\nthreads = 1\nmax_batch = 8\nmax_batch_tokens = 64\n[http]\nmodel_name = 'tiny'\n"
NEEDLE = {"prompt": "The quick brown fox", "max_tokens": 40, "temperature": 0, "return_token_ids": True}


@pytest.fixture(scope="module")
def engine(tiny_model, start_script) -> Iterator:
    with start_script(tiny_model, CONFIG) as started:
        yield started


@pytest.fixture(scope="module")
def client(engine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def answer(server, asked: dict) -> dict:
    status, body = server.call("/v1/completions", asked)
    assert status == 200, body
    return json.loads(body)["choices"][0]


def streamed(server, asked: dict) -> tuple[str, list[int], list[str | None]]:
    status, body = server.call("/v1/completions", asked | {"stream": True})
    assert status == 200
    events = [json.loads(line[6:]) for line in body.decode().split("\n\n") if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events]
    ids = [token for choice in choices for token in choice["token_ids"]]
    return "".join([choice["text"] for choice in choices]), ids, [choice["finish_reason"] for choice in choices]


def test_the_model_has_its_name(client):
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_ids_are_those_of_transformers(engine, tiny_model):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    from vibeserve.engine.tokenizer import Tokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    prompt = Tokenizer.load(tiny_model).encode(NEEDLE["prompt"])
    given = torch.tensor([prompt])
    with torch.inference_mode():
        mask = torch.ones_like(given)
        out = model.generate(given, attention_mask=mask, max_new_tokens=40, do_sample=False)[0, len(prompt) :].tolist()
        logits = model(given).logits[0].log_softmax(-1)
    assert answer(engine, NEEDLE)["token_ids"] == out
    scored = answer(engine, NEEDLE | {"echo": True, "logprobs": 2, "max_tokens": 1})["logprobs"]
    expected = [float(logits[at, token]) for at, token in enumerate(prompt[1:])]
    assert scored["token_logprobs"][0] is None
    assert scored["token_logprobs"][1 : len(prompt)] == pytest.approx(expected, abs=1e-4)


def test_a_needle_in_company(engine):
    """Greedy answers are the same alone and among 64 others that come, go and are cut off."""
    alone = answer(engine, NEEDLE)
    assert len(set(alone["token_ids"])) > 5

    def other(at: int) -> None:
        asked = {"prompt": [at % 400 + 3] * (at % 30 + 1), "max_tokens": 30, "temperature": 0.9, "seed": at,
                 "ignore_eos": True, "stream": at % 2 == 0}  # fmt: skip
        if at % 3:
            assert engine.call("/v1/completions", asked)[0] == 200
            return
        body = json.dumps(asked | {"max_tokens": 400}).encode()
        with socket.create_connection(("127.0.0.1", engine.port)) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            time.sleep(0.02 * (at % 4))

    with concurrent.futures.ThreadPoolExecutor(72) as pool:
        others = [pool.submit(other, at) for at in range(64)]
        needles = [pool.submit(answer, engine, NEEDLE) for _ in range(8)]
        for future in others:
            future.result()
        for future in needles:
            assert future.result() == alone
    engine.wait_for(engine.idle)


@pytest.mark.parametrize(
    "extra",
    [{}, {"temperature": 0.8, "seed": 11}, {"temperature": 1.2, "seed": 3, "top_p": 0.9, "top_k": 40, "min_p": 0.02},
     {"stop": ["e", "qu"]}, {"ignore_eos": True}, {"frequency_penalty": 1, "presence_penalty": 0.5},
     {"repetition_penalty": 1.3}, {"logprobs": 3}, {"min_tokens": 20, "temperature": 1, "seed": 1}],
)  # fmt: skip
def test_streamed_is_whole(engine, extra):
    whole = answer(engine, NEEDLE | extra)
    text, ids, reasons = streamed(engine, NEEDLE | extra)
    assert (text, ids, reasons[-1]) == (whole["text"], whole["token_ids"], whole["finish_reason"])
    assert set(reasons[:-1]) <= {None}


def test_a_stop_string_ends_where_it_is_completed(engine, tiny_model):
    from vibeserve.engine.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(tiny_model)
    free = answer(engine, NEEDLE | {"ignore_eos": True})
    stop = free["text"][6:9]
    cut = answer(engine, NEEDLE | {"ignore_eos": True, "stop": stop})
    at = free["text"].index(stop)
    assert (cut["text"], cut["finish_reason"]) == (free["text"][:at], "stop")
    count = next(n for n in range(1, 41) if stop in tokenizer.decode(free["token_ids"][:n]))
    assert cut["token_ids"] == free["token_ids"][:count]


def test_leaving_gives_slot_and_blocks_back(client, engine):
    for _ in range(3):
        with client.completions.create(
            model="tiny", prompt="The", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        ) as stream:
            next(iter(stream))
    engine.wait_for(engine.idle, 5)


def test_a_shared_prefix_is_told_in_the_usage(client):
    prompt = [5 + at % 300 for at in range(200)]
    first, second = (client.completions.create(model="tiny", prompt=prompt, max_tokens=4, temperature=0) for _ in "ab")
    assert second.usage.prompt_tokens_details.cached_tokens >= 160
    assert first.choices[0].text == second.choices[0].text


def test_metrics_tell_what_happened(engine):
    page = engine.get("/metrics")[1].decode()
    for name in ("engine_seconds_total", "engine_batch_rows_total", "engine_queue_wait_seconds_total",
                 "engine_prefill_tokens_total", "engine_decode_tokens_total", "engine_prefix_hit_tokens_total",
                 "engine_kv_blocks_used", "engine_feature_active"):  # fmt: skip
        assert f"# TYPE {name} " in page
    assert engine.metric("engine_output_tokens_total") > 0
    assert engine.metric('engine_seconds_total{phase="linear"}') > 0


def test_a_copy_stands_alone(tiny_model, start_script):
    config = "[engine]\nbackend = 'torch'\nthreads = 1\n"
    with start_script(tiny_model, config, parts=["core", "http", "torch_backend", "prefix_tree"]) as server:
        asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0}
        assert server.call("/v1/chat/completions", asked)[0] == 200
        assert server.end() == 0


@pytest.mark.skipif("VIBESERVE_TEST_MODEL" not in os.environ, reason="not run: VIBESERVE_TEST_MODEL is unset")
def test_a_real_model_answers(start_script):
    folder = Path(os.environ["VIBESERVE_TEST_MODEL"])
    with start_script(folder, "[engine]\nbackend = 'torch'\n[http]\nmodel_name = 'real'\n") as server:
        asked = {
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 20,
            "temperature": 0,
        }
        status, body = server.call("/v1/chat/completions", asked)
        assert status == 200
        assert "Paris" in json.loads(body)["choices"][0]["message"]["content"]
