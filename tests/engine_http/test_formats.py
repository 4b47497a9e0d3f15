"""`response_format` over the wire: valid answers, whole and streamed, and refusals that name their field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import jsonschema
import openai
import pytest

CONFIG = (
    "[engine]\nbackend = 'torch'\nthreads = 1\nmax_batch = 8\nmax_batch_tokens = 64\n"
    "constrained_decoding = true\njump_forward = true\n[http]\nmodel_name = 'tiny'\n"
)
PARTS = ["core", "http", "torch_backend", "prefix_tree", "constraints"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "größe": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "größe", "tags"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "A thing"}], "max_tokens": 200, "seed": 3}


@pytest.fixture(scope="module")
def server(tiny_model, start_script) -> Iterator:
    """A copy of the parts alone, as a candidate carries them."""
    with start_script(tiny_model, CONFIG, parts=PARTS) as started:
        yield started


@pytest.fixture(scope="module")
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.mark.parametrize("temperature", [0, 1])
def test_chat_keeps_to_a_schema(client, temperature):
    asked = ASKED | {"temperature": temperature, "response_format": FORMAT}
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert "".join([chunk.choices[0].delta.content or "" for chunk in chunks]) == choice.message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({"type": "regex", "pattern": "[ab]{2}-[0-9]{3}"}, "[ab]{2}-[0-9]{3}"),
        ({"type": "grammar", "grammar": 'start: ("ja" | "nein") "!"'}, "(ja|nein)!"),
        ({"type": "grammar", "grammar": 'root ::= "a" [0-9] "z"'}, "a[0-9]z"),
    ],
)
@pytest.mark.parametrize("extra", [{}, {"n": 2}, {"logprobs": 1}, {"stop": ["#"]}, {"return_token_ids": True}])
def test_completions_keep_to_a_grammar(server, form, wanted, extra):
    status, body = server.call("/v1/completions", {"prompt": "x", "max_tokens": 40, "response_format": form} | extra)
    assert status == 200, body
    for choice in json.loads(body)["choices"]:
        assert re.fullmatch(wanted, choice["text"])
        assert choice["finish_reason"] == "stop"


def test_usage_counts_what_was_forced(server):
    form = {"type": "regex", "pattern": "Serving a language model: prefill reads the prompt"}
    asked = {"prompt": "x", "max_tokens": 60, "response_format": form, "return_token_ids": True}
    document = json.loads(server.call("/v1/completions", asked)[1])
    choice = document["choices"][0]
    assert choice["text"] == form["pattern"]
    assert document["usage"]["completion_tokens"] == len(choice["token_ids"])
    assert server.metric("engine_forced_tokens_total") > 5
    assert server.metric('engine_feature_active{feature="jump_forward"}') == 1


DEEP: dict = {"type": "string"}
for _ in range(70):
    DEEP = {"type": "object", "properties": {"a": DEEP}, "required": ["a"]}
SCHEMA_AT = "response_format.json_schema.schema"


def schema_form(schema: object) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize(
    ("form", "param", "part"),
    [
        (5, "response_format", "must be an object"),
        ({}, "response_format.type", "must be one of"),
        ({"type": "xml"}, "response_format.type", "json_schema"),
        ({"type": "json_schema"}, "response_format.json_schema", "required"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, SCHEMA_AT, "required"),
        ({"type": "json_schema", "json_schema": []}, SCHEMA_AT, "required"),
        (schema_form([]), SCHEMA_AT, "got `list`"),
        (schema_form({"type": "integer", "minimum": 5, "maximum": 3}), SCHEMA_AT, "Unsatisfiable"),
        (schema_form(False), SCHEMA_AT, "Unsatisfiable"),
        (schema_form(DEEP), SCHEMA_AT, "nested deeper"),
        ({"type": "regex"}, "response_format.pattern", "required"),
        ({"type": "regex", "pattern": "(["}, "response_format.pattern", "regex"),
        ({"type": "grammar", "grammar": "start: nowhere"}, "response_format.grammar", "unknown name"),
        ({"type": "grammar", "grammar": "root ::= ("}, "response_format.grammar", "grammar"),
    ],
)
def test_refusals_name_their_field(server, form, param, part):
    status, body = server.call("/v1/chat/completions", ASKED | {"response_format": form})
    error = json.loads(body)["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert part in error["message"]
    server.wait_for(server.idle, 5)
