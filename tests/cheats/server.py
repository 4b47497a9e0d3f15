"""A language model so small that an answer takes milliseconds, and an OpenAI-compatible server that computes with it.

The model is recurrent: the state takes in one character after the other, prompt and answer alike, and the next character
is the argmax over the state. Nothing about an answer is known before all characters ahead of it were taken in.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

WIDTH, LETTERS, FIRST = 48, 95, 32


class Model:
    """Weights drawn from a seed, float32; `bits` rounds them to so few."""

    def __init__(self, seed: int = 1, bits: int | None = None, wide: bool = False):
        draw = np.random.default_rng(seed)
        kind = np.float64 if wide else np.float32
        self.mix = (draw.standard_normal((WIDTH, WIDTH)) * 3.0 / WIDTH**0.5).astype(kind)
        self.embed = draw.standard_normal((LETTERS, WIDTH)).astype(kind)
        self.head = draw.standard_normal((LETTERS, WIDTH)).astype(kind)
        if bits is not None:
            self.mix, self.embed, self.head = (_rounded(each, bits) for each in (self.mix, self.embed, self.head))

    def read(self, text: str, state: Any = None) -> Any:
        """The state after `text`."""
        state = np.zeros(WIDTH, self.mix.dtype) if state is None else state
        for letter in text:
            state = np.tanh(self.mix @ state + self.embed[min(max(ord(letter) - FIRST, 0), LETTERS - 1)])
        return state

    def tokens(self, prompt: str, count: int, state: Any = None) -> Iterator[tuple[int, str]]:
        """Greedy tokens, one at a time: (id, text)."""
        state = self.read(prompt) if state is None else state
        for _ in range(count):
            number = int(np.argmax(self.head @ state))
            yield number, chr(FIRST + number)
            state = self.read(chr(FIRST + number), state)


def _rounded(weights: Any, bits: int) -> Any:
    step = np.abs(weights).max() / (2 ** (bits - 1) - 1)
    return (np.round(weights / step) * step).astype(weights.dtype)


MODEL, SMALL = Model(), Model(2)


class Honest:
    """Serves the model. Each method is a place where another server may do otherwise, honestly or not."""

    step_s = 0.0013
    with_ids = True
    with_usage = True
    refuses: tuple[str, ...] = ()
    burst = 1  # tokens in one event
    role_first = False
    heartbeat = False
    flushed = False
    cut = False
    line_end = b"\n\n"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests = 0
        self.running = 0
        self.begun_s = time.monotonic()

    def tokens(self, prompt: str, count: int, stream: bool) -> Iterator[tuple[int, str]]:
        """The answer, token by token, each after its time."""
        del stream
        for token in MODEL.tokens(prompt, count):
            time.sleep(self.step_s)
            yield token

    def usage(self, prompt: str, sent: int) -> dict[str, int]:
        """What is claimed to have been used."""
        return {"prompt_tokens": len(prompt), "completion_tokens": sent, "total_tokens": len(prompt) + sent}

    def reason(self, sent: int, asked: int) -> str:
        """Why the answer ended."""
        return "length" if sent == asked else "stop"

    def shown(self, text: str) -> str:
        """The text that goes with ids."""
        return text

    def status(self, prompt: str) -> int:
        """The HTTP status of an answer."""
        del prompt
        return 200


class _Handler(BaseHTTPRequestHandler):
    server_: Honest
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._document(200, {"data": [{"id": "small"}]})

    def do_POST(self) -> None:
        does = self.server_
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = "messages" in body
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        if any(name in body for name in does.refuses):
            self._document(400, {"error": {"message": "unknown field"}})
            return
        if (status := does.status(prompt)) != 200:
            self._document(status, {"error": {"message": "no"}})
            return
        with does.lock:
            does.requests += 1
            does.running += 1
        try:
            answer = does.tokens(prompt, body["max_tokens"], body["stream"])
            (self._stream if body["stream"] else self._whole)(prompt, answer, body["max_tokens"], chat)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with does.lock:
                does.running -= 1

    def _choice(self, tokens: list[tuple[int, str]], chat: bool, key: str, reason: str | None) -> dict[str, Any]:
        text = self.server_.shown("".join(text for _, text in tokens))
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
        choice |= {key: {"content": text}} if chat else {"text": text}
        if self.server_.with_ids:
            choice["token_ids"] = [number for number, _ in tokens]
        return choice

    def _whole(self, prompt: str, answer: Iterator[tuple[int, str]], asked: int, chat: bool) -> None:
        tokens = list(answer)
        choice = self._choice(tokens, chat, "message", self.server_.reason(len(tokens), asked))
        document = {"choices": [choice]}
        if self.server_.with_usage:
            document["usage"] = self.server_.usage(prompt, len(tokens))  # type: ignore[assignment]
        self._document(200, document)

    def _stream(self, prompt: str, answer: Iterator[tuple[int, str]], asked: int, chat: bool) -> None:
        does = self.server_
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if does.role_first:
            self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        sent, group = 0, []
        held = []
        for token in answer:
            group.append(token)
            sent += 1
            if len(group) == does.burst and sent < asked:
                held.append(self._choice(group, chat, "delta", None))
                group = []
                if not does.flushed:
                    self._event({"choices": [held.pop()]})
                if does.heartbeat:
                    self.wfile.write(b": still here" + does.line_end)
        held.append(self._choice(group, chat, "delta", does.reason(sent, asked)))
        for choice in held:
            self._event({"choices": [choice]})
        if does.with_usage:
            self._event({"choices": [], "usage": does.usage(prompt, sent)})
        if not does.cut:
            self.wfile.write(b"data: [DONE]" + does.line_end)

    def _event(self, document: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(document).encode() + self.server_.line_end)
        self.wfile.flush()

    def _document(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def serving(does: Honest) -> Iterator[str]:
    """The address of a server that does so, until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneHandler", (_Handler,), {"server_": does}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
