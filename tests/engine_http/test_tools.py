"""Calls of tools over the wire, by the official client: whole and streamed, forced and free; and what is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator

import jsonschema
import openai
import pytest

from vibeserve.engine.http.tools import CallReader, call_text

CONFIG = (
    "[engine]\nbackend = 'torch'\nthreads = 1\nmax_batch = 8\nmax_batch_tokens = 64\n"
    "constrained_decoding = true\njump_forward = true\n[http]\nmodel_name = 'tiny'\n"
)
PARTS = ["core", "http", "torch_backend", "prefix_tree", "constraints"]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
STOP = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "the weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "stop", "parameters": STOP}},
]
SCHEMAS = {"get_weather": WEATHER, "stop": STOP}
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 300, "seed": 1}


@pytest.fixture(scope="module")
def server(tiny_model, start_script, tmp_path_factory) -> Iterator:
    """The tiny model with a context that holds the tools in words: its tokenizer cuts them into many tokens."""
    model = shutil.copytree(tiny_model, tmp_path_factory.mktemp("roomy") / "tiny")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    with start_script(model, CONFIG, parts=PARTS) as started:
        yield started


@pytest.fixture(scope="module")
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def check(calls) -> None:
    assert calls
    for call in calls:
        assert call.type == "function"
        assert call.id.startswith("call_")
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_call_is_forced_and_keeps_to_its_schema(client, temperature):
    asked = ASKED | {"tools": TOOLS, "temperature": temperature, "parallel_tool_calls": False}
    choice = client.chat.completions.create(**asked, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert len(choice.message.tool_calls) == 1
    check(choice.message.tool_calls)


def test_a_function_by_its_name_ends_with_stop(client):
    named = {"type": "function", "function": {"name": "get_weather"}}
    choice = client.chat.completions.create(**ASKED, tools=TOOLS, tool_choice=named).choices[0]
    assert choice.finish_reason == "stop"
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]
    check(choice.message.tool_calls)


@pytest.mark.parametrize("extra", [{}, {"n": 2}, {"logprobs": True}, {"temperature": 1.5, "seed": 9}])
def test_a_stream_says_what_the_whole_says(client, extra):
    asked = ASKED | {"tools": TOOLS, "tool_choice": "required", "temperature": 0} | extra
    whole = client.chat.completions.create(**asked)
    found: dict[int, dict[int, list[str]]] = {}
    ids: set[str] = set()
    reasons: dict[int, str] = {}
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            assert not choice.delta.content
            for piece in choice.delta.tool_calls or ():
                calls = found.setdefault(choice.index, {})
                if piece.id:
                    assert piece.index not in calls
                    assert piece.type == "function"
                    ids.add(piece.id)
                    calls[piece.index] = [piece.function.name, ""]
                calls[piece.index][1] += piece.function.arguments
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    for choice in whole.choices:
        shown = [[call.function.name, call.function.arguments] for call in choice.message.tool_calls]
        assert list(found[choice.index].values()) == shown
        assert reasons[choice.index] == choice.finish_reason
        # Many calls may run into `max_tokens`; those that are whole keep to their schemas.
        check(choice.message.tool_calls[: None if choice.finish_reason == "tool_calls" else -1] or
              [choice.message.tool_calls[0]])  # fmt: skip
    assert len(ids) == sum(map(len, found.values()))


def test_auto_is_text_or_a_call(client):
    for seed in range(4):
        asked = ASKED | {"seed": seed, "max_tokens": 40, "temperature": 1, "tools": TOOLS}
        choice = client.chat.completions.create(**asked).choices[0]
        assert choice.message.content or choice.message.tool_calls or choice.finish_reason == "stop"
        text = "".join(
            chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**asked, stream=True)
        )
        assert text == (choice.message.content or "")


def test_none_is_as_without(client):
    free = client.chat.completions.create(**ASKED | {"max_tokens": 12, "temperature": 0})
    none = client.chat.completions.create(
        **ASKED | {"max_tokens": 12, "temperature": 0}, tools=TOOLS, tool_choice="none"
    )
    assert none.choices[0].message.content == free.choices[0].message.content


def test_a_conversation_with_calls_and_results_goes_on(client):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Ulm", "days": 2}'},
    }
    messages = [
        *ASKED["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    found = client.chat.completions.create(**ASKED | {"messages": messages, "max_tokens": 8}, tools=TOOLS)
    alone = client.chat.completions.create(**ASKED | {"max_tokens": 8})
    assert found.usage.prompt_tokens > alone.usage.prompt_tokens + 20


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "retrieval", "function": {"name": "a"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"$ref": "#"}}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"properties": {"x": False}, "required": ["x"]}}}]},
         "tools"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_name(server, extra, param):
    status, body = server.call("/v1/chat/completions", ASKED | extra)
    assert status == 400, body
    assert json.loads(body)["error"]["param"] == param


@pytest.mark.parametrize("seed", range(20))
def test_calls_are_read_whatever_the_pieces(seed):
    generator = random.Random(seed)
    arguments = ['{"a": "}\\"{ \\\\", "b": [1, {"c": null}]}', "{}", '{"größe": "<tool_call>\\n"}']
    text = "\n".join(call_text(f"f{at}", one) for at, one in enumerate(arguments))
    reader, found, shown = CallReader(), ["", "", ""], ""
    while text:
        size = generator.randrange(1, 9)
        plain, pieces = reader.push(text[:size])
        shown, text = shown + plain, text[size:]
        for piece in pieces:
            assert piece.name in (None, f"f{piece.index}")
            found[piece.index] += piece.arguments
    assert (found, shown + reader.flush(), reader.calls) == (arguments, "", 3)


@pytest.mark.parametrize("text", ["", "<", "<tool", "<tool_calling> is fun", "plain", "<tool_call>\n[]"])
def test_what_is_no_call_is_text(text):
    reader, shown = CallReader(), ""
    for char in text:
        plain, pieces = reader.push(char)
        assert not pieces
        shown += plain
    assert shown + reader.flush() == text
