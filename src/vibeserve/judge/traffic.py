"""What the bundle's benchmark sends, learned from the benchmark itself: it is run for a moment against a recorder.

The judge asks in that very form: the same head, the same fields in the same order, prompts and lengths of the
benchmark's own making (with seeds that nobody has used), and as many requests at once.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from vibeserve.base.randomness import derive_seed
from vibeserve.measure.gates import run_benchmark
from vibeserve.targets.types import Bundle

Prompt = str | tuple[tuple[str, str], ...]

_WINDOW_S = 0.5
_ANSWER_S = 0.02
_TIMEOUT_S = 60.0
#: The head of the load client that every packaged bundle has, for where the bundle's own could not be learned.
HEAD = (
    ("Host", ""),
    ("Content-Type", "application/json"),
    ("Accept", "text/event-stream"),
    ("Connection", "keep-alive"),
    ("Content-Length", ""),
)
#: Requests at once where the bundle's number could not be learned, and the most of them.
WIDTH, MOST_AT_ONCE = 4, 32


@dataclass(frozen=True)
class Traffic:
    """`head`: names and values in order (Host and Content-Length without). `fields`: what a body has beside its prompt.

    `prompts`: fresh ones, as the benchmark would send next. `output_tokens`: what it asks for. `width`: requests at once.
    `learned`: empty where it is the benchmark's own; else why it is not.
    """

    head: tuple[tuple[str, str], ...] = HEAD
    fields: dict[str, Any] = field(default_factory=dict)
    prompts: tuple[Prompt, ...] = ()
    output_tokens: int | None = None
    width: int = WIDTH
    problem: str = ""


@dataclass
class _Seen:
    """What the recorder was sent."""

    requests: list[tuple[str, tuple[tuple[str, str], ...], dict[str, Any]]] = field(default_factory=list)
    running: int = 0
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def learn(bundle: Bundle, endpoint: str, seed: int, model_dir: Path | None = None) -> Traffic:
    """The benchmark's traffic to `endpoint`, with prompts drawn from `seed`; the judge's own form where it has none."""
    if not bundle.benchmark_script.is_file():
        return Traffic(problem="the bundle has no benchmark to learn the form from")
    with _recording() as (url, seen), tempfile.TemporaryDirectory(prefix="traffic-") as folder:
        result = run_benchmark(
            bundle,
            url,
            model_dir or bundle.reference / "model",
            seed=derive_seed(seed, "traffic") % 2**31,
            window_s=_WINDOW_S,
            output=Path(folder) / "traffic.json",
            timeout_s=_TIMEOUT_S,
        )
    return traffic_of(seen.requests, endpoint, seen.most, result.detail)


def traffic_of(
    requests: list[tuple[str, tuple[tuple[str, str], ...], dict[str, Any]]], endpoint: str, most: int, detail: str = ""
) -> Traffic:
    """What (path, head, body) of recorded requests have in common, and each one's prompt."""
    ours = [(head, body) for path, head, body in requests if path == endpoint and _prompt(body)]
    if not ours:
        return Traffic(problem=f"the benchmark sent nothing to {endpoint}" + (f": {detail}" if detail else ""))
    head, last = ours[-1]
    prompts = dict.fromkeys(_prompt(body) for _, body in ours)
    asked = last.get("max_tokens")
    return Traffic(
        tuple((name, "" if name.lower() in ("host", "content-length") else value) for name, value in head),
        {name: value for name, value in last.items() if name not in ("messages", "prompt")},
        tuple(prompt for prompt in prompts if prompt),
        asked if isinstance(asked, int) else None,
        min(MOST_AT_ONCE, max(1, most)),
    )


def _prompt(body: dict[str, Any]) -> Prompt:
    """The prompt of a body; empty for one that is neither text nor a conversation in text."""
    if isinstance(body.get("prompt"), str):
        return str(body["prompt"])
    messages = body.get("messages")
    if not isinstance(messages, list):
        return ""
    turns = [(turn.get("role"), turn.get("content")) for turn in messages if isinstance(turn, dict)]
    if not all(isinstance(role, str) and isinstance(content, str) for role, content in turns):
        return ""
    return tuple((str(role), str(content)) for role, content in turns)


class _Recorder(BaseHTTPRequestHandler):
    """Answers with a little text at once: what is recorded is what was asked."""

    seen: _Seen
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._document({"status": "ok", "object": "list", "data": [{"id": "recorder", "object": "model"}]})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            self._document({"error": {"message": "no JSON"}}, 400)
            return
        with self.seen.lock:
            self.seen.requests.append((self.path, tuple(self.headers.items()), body))
            self.seen.running += 1
            self.seen.most = max(self.seen.most, self.seen.running)
        time.sleep(_ANSWER_S)
        with self.seen.lock:
            self.seen.running -= 1
        asked = body.get("max_tokens")
        text = "x" * max(1, (asked if isinstance(asked, int) else 16) // 8)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        if not body.get("stream"):
            choice |= {"message": {"role": "assistant", "content": text}, "text": text}
            self._document({"choices": [choice]})
            return
        choice |= {"delta": {"content": text}} if "messages" in body else {"text": text}
        data = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _document(self, document: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A client that cuts its window off leaves; that is no error."""


@contextmanager
def _recording() -> Iterator[tuple[str, _Seen]]:
    """A recorder on a free port of the loopback: its address, and what it was sent."""
    seen = _Seen()
    server = _Server(("127.0.0.1", 0), type("OneRecorder", (_Recorder,), {"seen": seen}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
