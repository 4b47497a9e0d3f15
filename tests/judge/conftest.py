"""Small servers that truly answer over HTTP, honest or with one trick each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

TOKEN_S = 0.004


def words_of(prompt: str, count: int) -> list[tuple[int, str]]:
    """An answer that depends on every character of the prompt: (id, text) of each token."""
    digest = hashlib.sha256(prompt.encode()).digest()
    return [(digest[place % 32] * 7 + place, f" w{digest[place % 32]}") for place in range(count)]


class Trick:
    """The honest server; each method is a place where a cheat may differ."""

    needs_refusals: tuple[str, ...] = ()

    def tokens(self, prompt: str, count: int) -> list[tuple[int, str]]:
        return words_of(prompt, count)

    def pause_s(self, prompt: str) -> float:
        return TOKEN_S

    def usage(self, prompt: str, sent: int) -> dict[str, Any] | None:
        read = len(prompt.split())
        return {"prompt_tokens": read, "completion_tokens": sent, "total_tokens": read + sent}

    def finish_reason(self) -> str:
        return "length"

    flush_at_the_end = False
    with_ids = True
    status = 200
    cut = False


class Handler(BaseHTTPRequestHandler):
    trick: Trick
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = "messages" in body
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        refused = [name for name in self.trick.needs_refusals if name in body]
        if refused or self.trick.status != 200:
            self.reply(400 if refused else self.trick.status, {"error": {"message": f"unknown {refused}"}})
            return
        by_chance = f"{prompt}{body['seed']}" if body.get("temperature") else prompt
        tokens = self.trick.tokens(by_chance, body["max_tokens"])
        if body.get("stop"):
            self.stopped(body["stop"][0], tokens, chat)
        elif body.get("stream"):
            self.stream(prompt, tokens, chat)
        else:
            time.sleep(self.trick.pause_s(prompt) * len(tokens))
            text = "".join(word for _, word in tokens)
            choice: dict[str, Any] = {"finish_reason": self.trick.finish_reason()}
            choice |= {"message": {"content": text}} if chat else {"text": text}
            if self.trick.with_ids:
                choice["token_ids"] = [number for number, _ in tokens]
            self.reply(200, {"choices": [choice], "usage": self.trick.usage(prompt, len(tokens))})

    def stopped(self, stop: str, tokens: list[tuple[int, str]], chat: bool) -> None:
        """The beginning of a stream that a stop string ends, all at once."""
        text, ids = "", []
        for number, word in tokens:
            ids.append(number)
            text += word
            if stop in text:
                break
        choice: dict[str, Any] = {"finish_reason": "stop", "token_ids": ids}
        choice |= {"delta": {"content": text[: text.find(stop)]}} if chat else {"text": text[: text.find(stop)]}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode())
        self.close_connection = True

    def reply(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, prompt: str, tokens: list[tuple[int, str]], chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        pause_s = self.trick.pause_s(prompt)
        held: list[bytes] = []
        for place, (number, word) in enumerate(tokens):
            last = place == len(tokens) - 1
            choice: dict[str, Any] = {"finish_reason": self.trick.finish_reason() if last else None}
            choice |= {"delta": {"content": word}} if chat else {"text": word}
            if self.trick.with_ids:
                choice["token_ids"] = [number]
            held.append(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            time.sleep(pause_s)
            if pause_s > 0 and not self.trick.flush_at_the_end:  # what takes no time goes in one piece
                self.wfile.write(held.pop())
                self.wfile.flush()
        self.close_connection = True
        self.wfile.write(b"".join(held))
        usage = self.trick.usage(prompt, len(tokens))
        if usage is not None:
            self.wfile.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        if not self.trick.cut:
            self.wfile.write(b"data: [DONE]\n\n")


@pytest.fixture
def serve() -> Iterator[Callable[[Trick], str]]:
    """Start a server with a trick and return its address; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(trick: Trick) -> str:
            handler = type("OneHandler", (Handler,), {"trick": trick})
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            thread.start()
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_address[1]}"

        yield start


@pytest.fixture
def trick() -> type[Trick]:
    """The honest server's class, to be changed in one place."""
    return Trick
