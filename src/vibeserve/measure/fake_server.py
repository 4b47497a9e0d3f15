"""A server with an OpenAI-like API and no model, whose times and faults are scripted: `python -m vibeserve.measure.fake_server`.

It calibrates load clients (its own delays are known), makes noise for the verdict's tests, and fails in each way that a
candidate may. It needs the standard library alone and imports nothing of this package, so its file is a server by itself.

A request takes `ttft_s` to its first token and `tpot_s` for each further one, times `slow`, times a lognormal factor
with `noise` as its sigma. With `slots` above 0, that many are served at once and the rest wait in line, first come,
first served; with `work` each token also costs that many thousand additions, so that it feels the machine as a model
does. Its answer depends on the prompt alone. `service_s` instead makes a whole request take that long in its slot (an M/D/1 queue).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from typing import Any

WORDS = [
    "a",
    "as",
    "at",
    "be",
    "by",
    "do",
    "go",
    "he",
    "if",
    "in",
    "is",
    "it",
    "me",
    "my",
    "no",
    "of",
    "on",
    "or",
    "so",
    "to",
    "up",
    "us",
    "we",
    "day",
    "eye",
    "man",
    "one",
    "own",
    "red",
    "sea",
    "sun",
    "two",
    "way",
]
VOCABULARY = 32_000
FAULTS = {
    "never-ready": "health answers 503 for ever",
    "no-listen": "it runs and never opens its port",
    "early-exit": "it ends with exit code 3 before it is ready",
    "hang": "it takes a request and never answers",
    "die": "it ends with exit code 9 in the middle of request number `after`",
    "leak": "each request keeps `leak_mb` MB more",
    "garbage": "completions are no JSON",
    "not-http": "it answers bytes that are no HTTP",
    "content-type": "JSON and streams are said to be text/html",
    "half-close": "a stream ends in its middle, without [DONE]",
    "reset": "the connection is reset in the middle of an answer",
    "early-eos": "every answer has one token, whatever was asked",
    "error-500": "completions answer 500",
    "wrong-tokens": "tokens depend on the number of the request, not on the prompt",
    "deaf": "it ignores SIGTERM",
    "chatty": "it fills its log",
}


@dataclass(frozen=True)
class Settings:
    """Times in seconds. `fault` is one of `FAULTS`, in force from request number `after` on (0: at once)."""

    host: str = "127.0.0.1"
    port: int = 0
    model_dir: str = ""
    ttft_s: float = 0.005
    tpot_s: float = 0.001
    service_s: float = 0.0
    noise: float = 0.0
    slow: float = 1.0
    slots: int = 0
    work: int = 0
    ready_after_s: float = 0.0
    fault: str = ""
    after: int = 0
    leak_mb: int = 16
    bare: bool = False  # as a server that returns neither token ids nor usage
    default_tokens: int = 16
    seed: int = 0


class FakeServer:
    """The server. `start` opens the port and returns it; `requests` counts completions so far."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.requests = 0
        self.running = 0
        self.tokens = 0
        self.kept: list[bytearray] = []
        self.chance = random.Random(settings.seed)
        self.slots = asyncio.Semaphore(settings.slots) if settings.slots else None
        self.begin_s = time.monotonic()
        self.server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port."""
        self.server = await asyncio.start_server(self._connection, self.settings.host, self.settings.port, backlog=1024)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    def faulty(self, name: str) -> bool:
        """Whether this fault is in force for the request at hand."""
        return self.settings.fault == name and self.requests > self.settings.after

    # HTTP

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while await self._request(reader, writer):
                pass
        with contextlib.suppress(ConnectionError):
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection stays open."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, *_ = [*first.split(" "), "", ""]
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length") or 0))
        path = path.partition("?")[0]
        if method == "POST" and path.startswith("/v1/"):
            return await self._completion(path, body, writer)
        status, text, kind = self._page(path)
        writer.write(_response(status, text.encode(), kind))
        await writer.drain()
        return headers.get("connection", "").lower() != "close"

    def _page(self, path: str) -> tuple[int, str, str]:
        if path == "/health":
            late = time.monotonic() - self.begin_s < self.settings.ready_after_s
            ready = not late and self.settings.fault != "never-ready"
            return (200, '{"status": "ok"}', "application/json") if ready else (503, "starting", "text/plain")
        if path == "/v1/models":
            return 200, json.dumps({"object": "list", "data": [{"id": "fake", "object": "model"}]}), "application/json"
        if path == "/metrics":
            figures = (
                ("requests_total", "counter", self.requests),
                ("tokens_total", "counter", self.tokens),
                ("requests_running", "gauge", self.running),
            )
            text = "".join(f"# TYPE fake_{name} {kind}\nfake_{name} {value}\n" for name, kind, value in figures)
            return 200, text, "text/plain; version=0.0.4"
        return 404, json.dumps({"error": {"message": f"no such path: {path}", "type": "not_found"}}), "application/json"

    # Completions

    async def _completion(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        self.requests += 1
        number = self.requests
        if self.settings.fault == "chatty":
            sys.stderr.write("nothing to see here\n" * 2000)
        if self.faulty("hang"):
            await asyncio.sleep(1e6)
        if self.faulty("not-http"):
            writer.write(b"\x00\x01\x02 this is no HTTP\r\n\r\n")
            await writer.drain()
            return False
        if self.faulty("leak"):
            self.kept.append(bytearray(os.urandom(1 << 20) * self.settings.leak_mb))
        try:
            asked = json.loads(body)
            prompt = asked["messages"] if path.endswith("/chat/completions") else asked["prompt"]
            count = asked.get("max_completion_tokens", asked.get("max_tokens", self.settings.default_tokens))
            count = int(count)
            asked["return_token_ids"] = bool(asked.get("return_token_ids")) and not self.settings.bare
        except (ValueError, KeyError, TypeError) as error:
            said = {"error": {"message": f"bad request: {error}", "type": "invalid_request_error"}}
            writer.write(_response(400, json.dumps(said).encode(), "application/json"))
            return True
        if self.faulty("error-500"):
            said = {"error": {"message": "scripted failure", "type": "server_error"}}
            writer.write(_response(500, json.dumps(said).encode(), "application/json"))
            return True
        count = 1 if self.faulty("early-eos") else max(1, count)
        salt = number if self.faulty("wrong-tokens") else 0
        if self.settings.bare:
            asked["stream_options"] = None
        answer = _Answer(path, asked, prompt, count, salt)
        self.running += 1
        try:
            if asked.get("stream"):
                return await self._stream(answer, writer)
            return await self._whole(answer, writer)
        finally:
            self.running -= 1

    async def _tokens(self, answer: _Answer) -> AsyncIterator[int]:
        """The answer's tokens, each when its time has come."""
        factor = self.settings.slow
        if self.settings.noise:
            factor *= self.chance.lognormvariate(0.0, self.settings.noise)
        async with self.slots or contextlib.nullcontext():
            due_s = time.monotonic()
            if self.settings.service_s:
                await self._spend(due_s + self.settings.service_s * factor)
            for index in range(answer.count):
                if not self.settings.service_s:
                    due_s += (self.settings.tpot_s if index else self.settings.ttft_s) * factor
                    await self._spend(due_s)
                self.tokens += 1
                yield answer.token(index)

    async def _spend(self, due_s: float) -> None:
        for _ in range(self.settings.work):
            sum(range(1000))
        # The loop's timers are a millisecond coarse: a known service time is awaited turn by turn at its end.
        margin_s = 0.0015 if self.settings.service_s else 0.0
        await asyncio.sleep(max(0.0, due_s - margin_s - time.monotonic()))
        while margin_s and time.monotonic() < due_s:
            await asyncio.sleep(0)

    async def _whole(self, answer: _Answer, writer: asyncio.StreamWriter) -> bool:
        tokens = [token async for token in self._tokens(answer)]
        self._maybe_die()
        data = json.dumps(answer.whole(tokens)).encode()
        if self.faulty("garbage"):
            data = b"}{ not json \xff\xfe"
        response = _response(200, data, "text/html" if self.faulty("content-type") else "application/json")
        if self.faulty("half-close") or self.faulty("reset"):
            return await self._break_off(response[: len(response) // 2], writer)
        writer.write(response)
        await writer.drain()
        return True

    async def _stream(self, answer: _Answer, writer: asyncio.StreamWriter) -> bool:
        kind = "text/html" if self.faulty("content-type") else "text/event-stream"
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        sent = 0
        async for token in self._tokens(answer):
            data = b"data: }{ not json\n\n" if self.faulty("garbage") else answer.event(token, sent)
            writer.write(_chunk(data))
            await writer.drain()
            sent += 1
            if 2 * sent >= answer.count:
                self._maybe_die()
                if self.faulty("half-close") or self.faulty("reset"):
                    return await self._break_off(b"", writer)
        writer.write(b"".join(_chunk(event) for event in answer.last_events(sent)) + b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _break_off(self, data: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(data)
        await writer.drain()
        if self.settings.fault == "reset":
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # on, 0 s: closing sends RST
            writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        return False

    def _maybe_die(self) -> None:
        if self.faulty("die"):
            print("scripted death", file=sys.stderr, flush=True)
            os._exit(9)


class _Answer:
    """One completion: what was asked, and what is answered."""

    def __init__(self, path: str, asked: dict[str, Any], prompt: Any, count: int, salt: int):
        self.chat = path.endswith("/chat/completions")
        self.asked, self.count = asked, count
        self.prompt_tokens = len(prompt) if _ids(prompt) else len(json.dumps(prompt).split())
        self.root = zlib.crc32(json.dumps([prompt, salt]).encode())
        self.created = int(time.time())

    def token(self, index: int) -> int:
        """The id of a token: it depends on the prompt and the place alone."""
        return zlib.crc32(index.to_bytes(4, "little"), self.root) % VOCABULARY

    def whole(self, tokens: list[int]) -> dict[str, Any]:
        """The answer of a request that is not streamed."""
        text = "".join(_text(token) for token in tokens)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        if self.asked.get("return_token_ids"):
            choice["token_ids"] = tokens
        kind = "chat.completion" if self.chat else "text_completion"
        return self._envelope(kind) | {"choices": [choice], "usage": self._usage(len(tokens))}

    def event(self, token: int, index: int) -> bytes:
        """One token of a stream."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        if self.chat:
            choice["delta"] = {"content": _text(token)} | ({"role": "assistant"} if index == 0 else {})
        else:
            choice["text"] = _text(token)
        if self.asked.get("return_token_ids"):
            choice["token_ids"] = [token]
        return self._event({"choices": [choice]})

    def last_events(self, sent: int) -> list[bytes]:
        """What ends a stream: the reason, the usage where it was asked for, and [DONE]."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice["delta" if self.chat else "text"] = {} if self.chat else ""
        events = [self._event({"choices": [choice]})]
        if (self.asked.get("stream_options") or {}).get("include_usage"):
            events.append(self._event({"choices": [], "usage": self._usage(sent)}))
        return [*events, b"data: [DONE]\n\n"]

    def _event(self, document: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return b"data: " + json.dumps(self._envelope(kind) | document).encode() + b"\n\n"

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": f"fake-{self.root:08x}", "object": kind, "created": self.created, "model": "fake"}

    def _usage(self, tokens: int) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self.prompt_tokens + tokens,
        }


def _ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(isinstance(item, int) for item in prompt)


def _text(token: int) -> str:
    return " " + WORDS[token % len(WORDS)]


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _response(status: int, body: bytes, kind: str) -> bytes:
    reason = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error"}.get(status, "Unavailable")
    return f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, (lambda: None) if settings.fault == "deaf" else stop.set)
    if settings.fault != "no-listen":
        server = FakeServer(settings)
        print(f"listening on {settings.host}:{await server.start()}", flush=True)
    await stop.wait()


def main(argv: list[str] | None = None) -> int:
    """Parse the settings, each as a flag of its name, and serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    for field in fields(Settings):
        flag = "--" + field.name.replace("_", "-")
        if field.name == "fault":
            parser.add_argument(
                flag, choices=["", *FAULTS], default="", help="; ".join(f"{k}: {v}" for k, v in FAULTS.items())
            )
        elif isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(field.default), default=field.default, help="default: %(default)s")
    settings = Settings(**vars(parser.parse_args(argv)))
    if settings.fault == "early-exit":
        print("scripted: cannot load the model", file=sys.stderr)
        return 3
    try:
        asyncio.run(serve(settings))
    except OSError as error:
        print(f"cannot listen on {settings.host}:{settings.port}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
