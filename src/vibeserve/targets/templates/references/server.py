"""A small HTTP server for a reference: JSON in, an answer out, one at a time in the order in which requests came."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MAX_BODY_BYTES = 64 << 20
Answer = Callable[[dict[str, Any]], tuple[str, bytes]]


class ApiError(Exception):
    """An error in OpenAI's shape; `param` is the field that it is about."""

    def __init__(self, message: str, param: str | None = None, status: int = 400):
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": None}}


def text_of(body: dict[str, Any], name: str) -> str:
    """A text of the request."""
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ApiError(f"{name} is missing", name)
    return value


def whole(body: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    """A whole number of the request, within its bounds."""
    value = body.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ApiError(f"{name} must be a whole number from {low} to {high}", name)
    return value


def json_of(value: Any) -> tuple[str, bytes]:
    """An answer in JSON."""
    return "application/json", json.dumps(value).encode()


def best_device(wanted: str) -> str:
    """`wanted`; for "auto" the accelerator that torch sees, else the CPU."""
    if wanted != "auto":
        return wanted
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def model_name(here: Path) -> str:
    """The model's name: meta.json's."""
    path = here / "meta.json"
    return str(json.loads(path.read_text(encoding="utf-8"))["model_id"]) if path.is_file() else "model"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    answers: dict[str, Answer]
    name: str
    turn = threading.Lock()

    def log_message(self, *_: Any) -> None:
        """No access log."""

    def do_GET(self) -> None:
        """Health and the list of models."""
        if self.path == "/health":
            self.send(200, *json_of({"status": "ok"}))
        elif self.path == "/v1/models":
            self.send(200, *json_of({"object": "list", "data": [{"id": self.name, "object": "model"}]}))
        else:
            self.send(404, *json_of(ApiError(f"no such path: {self.path}").body))

    def do_POST(self) -> None:
        """Answer."""
        try:
            size = int(self.headers.get("Content-Length") or 0)
            if size > MAX_BODY_BYTES:
                self.close_connection = True
                raise ApiError("the body is too large", status=413)
            try:
                body = json.loads(self.rfile.read(size))
            except ValueError:
                raise ApiError("the body is not JSON") from None
            if not isinstance(body, dict):
                raise ApiError("the body is not a JSON object")
            if self.path not in self.answers:
                raise ApiError(f"no such path: {self.path}", status=404)
            with self.turn:
                kind, data = self.answers[self.path](body)
            self.send(200, kind, data)
        except ApiError as error:
            self.send(error.status, *json_of(error.body))

    def send(self, status: int, kind: str, data: bytes) -> None:
        """Send a body."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """A thread a connection."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """A client that breaks off is no news."""


def serve(answers: dict[str, Answer], name: str, host: str, port: int) -> None:
    """Serve until SIGTERM."""
    server = Server((host, port), type("Bound", (Handler,), {"answers": answers, "name": name}))
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"serving {name} on http://{host}:{server.server_address[1]}", flush=True)
    server.serve_forever(poll_interval=0.1)
    server.server_close()
