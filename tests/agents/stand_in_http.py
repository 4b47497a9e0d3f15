"""A stand-in for an OpenAI-compatible endpoint: streamed chat completions with tool calls, in pieces as real ones come."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.agents import stand_in


class Endpoint:
    """Listens on loopback until it is closed; `behaviour` as in stand_in.py."""

    def __init__(self, behaviour: dict[str, str]):
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.answer(self, body)

            def log_message(self, *_: Any) -> None:
                return

        self.behaviour = behaviour
        self.closed = threading.Event()
        self.requests: list[dict[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        self.requests.append(body)
        prompt = body["messages"][0]["content"]
        asked = stand_in.understand(prompt, self.behaviour)
        if asked.mode == "refused":
            text = json.dumps({"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}).encode()
            handler.send_response(401)
            handler.send_header("Content-Length", str(len(text)))
            handler.send_header("Content-Type", "application/json")
            handler.end_headers()
            handler.wfile.write(text)
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        try:
            for event in self.events(asked, body):
                handler.wfile.write(f"data: {json.dumps(event) if event else '[DONE]'}\n\n".encode())
                handler.wfile.flush()
        except OSError:
            return

    def events(self, asked: stand_in.Asked, body: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
        done = sum(message["role"] == "tool" for message in body["messages"])
        if asked.mode == "hang":
            yield chunk({"content": "one moment"})
            self.closed.wait(60)
            return
        if asked.mode == "crash":
            yield chunk({"content": "one mo"})
            return
        while asked.mode == "flood" and not self.closed.is_set():
            yield chunk({"content": "x" * 100_000})
        steps = TOOLS[asked.mode if asked.mode in TOOLS else asked.role]
        if done < len(steps):
            name, arguments = steps[done]
            text = json.dumps(arguments).replace("TITLE", asked.title)
        else:
            name, text = "answer", json.dumps(asked.document)
            if asked.mode == "half":
                text = text[: len(text) // 2]
        yield chunk({"role": "assistant", "content": None})
        for start in range(0, len(text), 20):
            first = {"id": f"call-{done}", "type": "function"} if start == 0 else {}
            function = {"arguments": text[start : start + 20], **({"name": name} if start == 0 else {})}
            yield chunk({"tool_calls": [{"index": 0, **first, "function": function}]})
        yield chunk({}, "tool_calls")
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        yield {**chunk({}), "choices": [], "usage": usage}
        yield None


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    created = int(time.time())
    return {"id": "c", "object": "chat.completion.chunk", "created": created, "model": "m", "choices": [choice]}


CANDIDATE = 'start = ["python", "server.py"]\nhealth = "/health"\n'
TOOLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "ready": [],
    "design": [("list", {}), ("search", {"text": "print"})],
    "implement": [
        ("read", {"path": "reference.py"}),
        ("edit", {"path": "server.py", "old": "", "new": "# TITLE\nold = 1\n"}),
        ("edit", {"path": "server.py", "old": "old = 1", "new": "new = 2"}),
        ("edit", {"path": "candidate.toml", "old": "", "new": CANDIDATE}),
        ("run", {"command": "python server.py && cat server.py > copy.txt"}),
    ],
    "review": [("read", {"path": "server.py"}), ("edit", {"path": "server.py", "old": "", "new": "reviewed"})],
    "outside": [
        ("edit", {"path": "server.py", "old": "", "new": "# TITLE\n"}),
        ("edit", {"path": "../escaped.txt", "old": "", "new": "I was here"}),
        ("read", {"path": "/etc/passwd"}),
        ("run", {"command": "ln -s /etc/passwd link; echo out > ../escaped.txt; ls ../../.."}),
        ("read", {"path": "link"}),
        ("run", {"command": "rm link"}),
        ("edit", {"path": "x", "nothing": 1}),
        ("no-such-tool", {}),
    ],
}
