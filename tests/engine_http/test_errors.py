"""Every wrong request: an error in the API's shape that names the field, at once; a good request afterwards is served."""

from __future__ import annotations

import json
import socket

import pytest

CHAT = {"messages": [{"role": "user", "content": "say:a"}]}
COMPLETION = {"prompt": "say:a", "max_tokens": 3}


def error_of(body: bytes) -> dict:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


BOTH = [
    ({"model": "other"}, 404, "model", "does not exist"),
    ({"model": 3}, 400, "model", "got `int`"),
    ({"temperature": "hot"}, 400, "temperature", "expected `float"),
    ({"temperature": -0.1}, 400, "temperature", ">= 0"),
    ({"temperature": 2.5}, 400, "temperature", "<= 2"),
    ({"top_p": 1.5}, 400, "top_p", "<= 1"),
    ({"top_k": -2}, 400, "top_k", ">= -1"),
    ({"min_p": 2}, 400, "min_p", "<= 1"),
    ({"repetition_penalty": 0}, 400, "repetition_penalty", ">= 0.01"),
    ({"presence_penalty": 3}, 400, "presence_penalty", "<= 2"),
    ({"frequency_penalty": -3}, 400, "frequency_penalty", ">= -2"),
    ({"seed": 1.5}, 400, "seed", "got `float`"),
    ({"seed": 2**70}, 400, "seed", "<= "),
    ({"n": 0}, 400, "n", ">= 1"),
    ({"n": 100}, 400, "n", "at most 64"),
    ({"n": 2**100}, 400, "n", ""),
    ({"max_tokens": -1}, 400, "max_tokens", ">= 0"),
    ({"max_tokens": "ten"}, 400, "max_tokens", "got `str`"),
    ({"max_tokens": True}, 400, "max_tokens", "got `bool`"),
    ({"max_tokens": 512}, 400, "max_tokens", "context is 512 tokens"),
    ({"max_tokens": 10**18}, 400, "max_tokens", ""),
    ({"min_tokens": 9, "max_tokens": 3}, 400, "min_tokens", "above max_tokens"),
    ({"stop": ""}, 400, "stop", "length >= 1"),
    ({"stop": ["a", ""]}, 400, "stop[1]", "length >= 1"),
    ({"stop": ["a"] * 5}, 400, "stop", "length <= 4"),
    ({"stop": 5}, 400, "stop", "got `int`"),
    ({"stop_token_ids": [420]}, 400, "stop_token_ids", "ends at 419"),
    ({"stop_token_ids": [-1]}, 400, "stop_token_ids[0]", ">= 0"),
    ({"logit_bias": {"420": 1}}, 400, "logit_bias", "ends at 419"),
    ({"logit_bias": {"fox": 1}}, 400, "logit_bias", "no token id"),
    ({"logit_bias": {"²": 1}}, 400, "logit_bias", "no token id"),
    ({"logit_bias": {"5": 101}}, 400, "logit_bias", "<= 100"),
    ({"logit_bias": [1]}, 400, "logit_bias", "got `array`"),
    ({"stream": "yes"}, 400, "stream", "got `str`"),
    ({"stream_options": {"include_usage": 1}}, 400, "stream_options.include_usage", "got `int`"),
    ({"user": {}}, 400, "user", "got `object`"),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format", "not supported by this server"),
    ({"prediction": {"type": "content"}}, 400, "prediction.content", "required"),
    ({"prediction": {"type": "diff", "content": "a"}}, 400, "prediction.type", "diff"),
    ({"prediction": {"type": "content", "content": 5}}, 400, "prediction.content", "got `int`"),
    (
        {"prediction": {"type": "content", "content": [{"type": "image_url"}]}},
        400,
        "prediction.content[0].type",
        "not supported by this server",
    ),
    ({"max_token": 5}, 400, "max_token", "Did you mean `max_tokens`"),
    ({"": 5}, 400, "", "Unknown field"),
]
CHATS = [
    ({"messages": []}, 400, "messages", "length >= 1"),
    ({"messages": "hello"}, 400, "messages", "got `str`"),
    ({"messages": [{"content": "a"}]}, 400, "messages[0].role", "required"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content", "required"),
    ({"messages": [{"role": "king", "content": "a"}]}, 400, "messages[0].role", "must be one of"),
    ({"messages": [{"role": "tool", "content": "a"}]}, 400, "messages[0].tool_call_id", "required"),
    ({"messages": [{"role": "function", "content": "a"}]}, 400, "messages[0].role", "not supported by this server"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "messages[0].content[0].type",
        "not supported",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages[0].content[0].text", "required"),
    ({"messages": [{"role": "user", "content": "a" * 50_000}]}, 400, "messages", "context is 512 tokens"),
    ({"messages": [{"role": "user", "content": "a b " * 400}]}, 400, "messages", "context is 512 tokens"),
    ({"max_completion_tokens": 600}, 400, "max_completion_tokens", "context is 512 tokens"),
    ({"max_completion_tokens": 0}, 400, "max_completion_tokens", "at least 1"),
    ({"logprobs": 2}, 400, "logprobs", "got `int`"),
    ({"top_logprobs": 2}, 400, "top_logprobs", "needs `logprobs`"),
    ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "<= 20"),
    ({"tools": [{}]}, 400, "tools", "not supported by this server"),
    ({"tool_choice": "required"}, 400, "tool_choice", "there are no `tools`"),
    ({"priority": 1000}, 400, "priority", "<= 100"),
    ({"functions": [{}]}, 400, "functions", "not supported by this server"),
    ({"modalities": ["audio"]}, 400, "modalities", "not supported by this server"),
    ({"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs", "may not set"),
    ({"prompt": "a"}, 400, "prompt", "Unknown field"),
]
COMPLETIONS = [
    ({"prompt": None}, 400, "prompt", "got `null`"),
    ({"prompt": ""}, 400, "prompt", "empty"),
    ({"prompt": []}, 400, "prompt", "length >= 1"),
    ({"prompt": [[]]}, 400, "prompt", "empty"),
    ({"prompt": [1, "a"]}, 400, "prompt", "mixes"),
    ({"prompt": [1.5]}, 400, "prompt[0]", "got `float`"),
    ({"prompt": [420]}, 400, "prompt", "ends at 419"),
    ({"prompt": [-1]}, 400, "prompt[0]", ">= 0"),
    ({"prompt": [5] * 512}, 400, "prompt", "context is 512 tokens"),
    ({"prompt": ["a"] * 65}, 400, "prompt", "at most 64"),
    ({"logprobs": 21}, 400, "logprobs", "<= 20"),
    ({"logprobs": True}, 400, "logprobs", "got `bool`"),
    ({"best_of": 2}, 400, "best_of", "not supported by this server"),
    ({"suffix": "end"}, 400, "suffix", "not supported by this server"),
    ({"echo": "no"}, 400, "echo", "got `str`"),
]


def check(server, path: str, asked: dict, status: int, param: str, said: str) -> None:
    got, body = server.call(path, asked, timeout_s=5)
    assert got == status, body
    error = error_of(body)
    assert error["param"] == param
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(("asked", "status", "param", "said"), BOTH + CHATS)
def test_chat(server, asked, status, param, said):
    check(server, "/v1/chat/completions", CHAT | asked, status, param, said)


@pytest.mark.parametrize(("asked", "status", "param", "said"), BOTH + COMPLETIONS)
def test_completions(server, asked, status, param, said):
    check(server, "/v1/completions", COMPLETION | asked, status, param, said)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b'"text"', b"{}", b"\xff\xfe", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}',
        b'{"temperature": NaN}', b'{"temperature": Infinity}', b'{"temperature": 1e999}', b'{"prompt": 1e400}',
        b'{"prompt":' + b"[" * 100_000, b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "a", "response_format":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        b'{"messages": [{"role": "user", "content": "a"}], "tools":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"a":' + b"[" * 50_000
        + b"]" * 50_000 + b"}}",
        b"{" + b",".join([b'"a%d": 1' % at for at in range(10_000)]) + b"}",
    ],
    ids=lambda body: repr(body[:40]),
)  # fmt: skip
def test_what_is_no_request_at_all(server, path, body):
    status, answer = server.call(path, body, timeout_s=5)
    assert status == 400
    error_of(answer)
    assert server.call("/v1/completions", COMPLETION)[0] == 200


def answer_of(raw: socket.socket) -> bytes:
    """A whole answer with a body of known length."""
    head = b""
    while b"\r\n\r\n" not in head:
        part = raw.recv(65536)
        assert part, head
        head += part
    head, body = head.split(b"\r\n\r\n", 1)
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += raw.recv(65536)
    return head + b"\r\n\r\n" + body


def test_a_long_body_is_refused_before_it_is_read(fake_server):
    with fake_server(http={"max_body_bytes": 1000}) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n{")
            answer = answer_of(raw)
        assert answer.startswith(b"HTTP/1.1 413")
        assert error_of(answer.split(b"\r\n\r\n", 1)[1])["code"] == "request_too_large"
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
            raw.sendall(b"800\r\n" + b"x" * 0x800 + b"\r\n")
            assert raw.recv(65536).startswith(b"HTTP/1.1 413")
        assert server.call("/v1/completions", COMPLETION)[0] == 200


def test_a_body_that_does_not_come_is_given_up(fake_server):
    with fake_server(http={"body_timeout_s": 0.2}) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{")
            assert raw.recv(65536).startswith(b"HTTP/1.1 408")
        assert server.call("/v1/completions", COMPLETION)[0] == 200


def test_unknown_paths_and_methods(server):
    status, body = server.get("/v2/nothing")
    assert (status, error_of(body)["code"]) == (404, "not_found")
    status, body = server.get("/v1/completions")
    assert (status, error_of(body)["code"]) == (405, "method_not_allowed")
    assert server.call("/health", b"{}")[0] == 405
    assert server.get("/v1/models/%F0%9F%99%82")[0] == 404


def test_a_compressed_body_is_refused(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}"
        )
        answer = answer_of(raw)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"compressed" in answer


def test_a_head_request_has_no_body(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.sendall(b"HEAD /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        answer = b""
        while part := raw.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")


def test_a_model_without_a_template_says_so(fake_server, tiny_model, tmp_path):
    import shutil

    folder = shutil.copytree(tiny_model, tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with fake_server("--model-dir", str(folder)) as server:
        status, body = server.call("/v1/chat/completions", CHAT)
        assert (status, error_of(body)["code"]) == (400, "no_chat_template")
        assert server.call("/v1/completions", COMPLETION)[0] == 200


def test_the_template_may_refuse(fake_server, tiny_model, tmp_path):
    import shutil

    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with fake_server("--model-dir", str(folder)) as server:
        status, body = server.call("/v1/chat/completions", CHAT)
        error = error_of(body)
        assert (status, error["param"]) == (400, "messages")
        assert "roles must alternate" in error["message"]
