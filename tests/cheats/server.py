"""An OpenAI-compatible server that truly computes with a tiny Llama; each method is a place where one may do otherwise."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from .llama import END, MODEL

Tokens = Iterator[tuple[int, str]]


@dataclass(frozen=True)
class Ask:
    """One request. `gap_s`: seconds since the one before it came; `running`: how many are in work, this one included;
    `turn`: how many its connection carried before; `port`: the client's; `looked`: how often /v1/models was asked for."""

    prompt: str
    count: int
    stream: bool
    chat: bool
    body: dict[str, Any]
    headers: dict[str, str]
    number: int
    running: int
    gap_s: float
    turn: int
    port: int
    looked: int

    @property
    def reused(self) -> bool:
        """Whether its connection carried one before."""
        return self.turn > 0


@dataclass(frozen=True)
class Piece:
    """Some text with the ids that it came from."""

    text: str
    ids: list[int] = field(default_factory=list)


class Honest:
    """Serves the model."""

    #: What the benchmark that it is asked by has otherwise: fields more, fields less, requests at once.
    fields: ClassVar[dict[str, Any]] = {}
    lacks: ClassVar[tuple[str, ...]] = ()
    at_once = 0

    step_s = 0.0013
    with_ids = True
    with_usage = True
    refuses: tuple[str, ...] = ()
    burst = 1  # tokens in one event
    role_first = False
    heartbeat = False
    flushed = False
    cut = False
    closes = False
    lasts = 0  # requests after which a connection is closed; 0: never
    line_end = b"\n\n"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests = self.running = self.looked = 0
        self.begun_s = self.latest_s = time.monotonic()

    def tokens(self, ask: Ask) -> Tokens:
        """The greedy answer, token by token, each after its time."""
        for token in MODEL.tokens(ask.prompt, ask.count):
            time.sleep(self.step_s)
            yield token

    def sampled(self, ask: Ask) -> Tokens:
        """An answer by chance."""
        for token in MODEL.sampled(ask.prompt, ask.count, ask.body["temperature"], ask.body.get("seed")):
            time.sleep(self.step_s)
            yield token

    def penalised(self, ask: Ask) -> Tokens:
        """The greedy answer to who asks for a frequency_penalty."""
        for token in MODEL.penalised(ask.prompt, ask.count, ask.body["frequency_penalty"]):
            time.sleep(self.step_s)
            yield token

    def stops(self, ask: Ask) -> list[str]:
        """The stop strings that are heeded."""
        stop = ask.body.get("stop") or []
        return [stop] if isinstance(stop, str) else stop

    def ends(self, ask: Ask) -> bool:
        """Whether the end token ends the answer."""
        return not ask.body.get("ignore_eos")

    def usage(self, prompt: str, sent: int) -> dict[str, Any]:
        """What is claimed to have been used."""
        read = len(prompt.encode())
        return {"prompt_tokens": read, "completion_tokens": sent, "total_tokens": read + sent}

    def usage_of(self, ask: Ask, sent: int) -> dict[str, Any]:
        """The same, of one request."""
        return self.usage(ask.prompt, sent)

    def reason(self, reason: str) -> str:
        """Why the answer ended, as it is told."""
        return reason

    def shown(self, text: str) -> str:
        """The text that goes with ids."""
        return text

    def extra(self, ask: Ask, took_s: float) -> dict[str, Any]:
        """What else is said at the end of an answer."""
        del ask, took_s
        return {}

    def created(self) -> int:
        """When the answer was made."""
        return int(time.time())

    def status(self, prompt: str) -> int:
        """The HTTP status of an answer."""
        del prompt
        return 200

    def pieces(self, ask: Ask) -> Iterator[tuple[Piece, str | None]]:
        """The answer as it may be sent: text that can no longer become a stop string; with the last one, why it ended."""
        stops, text, sent = self.stops(ask), "", 0
        held: list[int] = []
        plain = self.penalised if ask.body.get("frequency_penalty") else self.tokens
        tokens = self.sampled(ask) if ask.body.get("temperature", 0) > 0 else plain(ask)
        for count, (number, piece) in enumerate(tokens, 1):
            held.append(number)
            text += piece
            if found := [at for stop in stops if (at := text.find(stop)) >= 0]:
                yield Piece(text[sent : max(sent, min(found))], held), "stop"
                return
            free = len(text) - max(
                (n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0
            )
            ended = number == END and self.ends(ask)
            if ended or count == ask.count:
                yield Piece(text[sent:], held), "stop" if ended else "length"
                return
            if free > sent or not stops:
                yield Piece(text[sent:free], held), None
                held, sent = [], max(sent, free)
        yield Piece(text[sent:], held), "stop"


class _Handler(BaseHTTPRequestHandler):
    does: Honest
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    answered = 0

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.does.looked += self.path == "/v1/models"
        self._document(200, {"status": "ok"} if self.path == "/health" else {"data": [{"id": "small"}]})

    def do_POST(self) -> None:
        does = self.does
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if any(name in body for name in does.refuses):
            self._document(400, {"error": {"message": "unknown field"}})
            return
        prompt = rendered(body)
        if (status := does.status(prompt)) != 200:
            self._document(status, {"error": {"message": "no"}})
            return
        begin_s = time.monotonic()
        with does.lock:
            does.requests += 1
            does.running += 1
            gap_s, does.latest_s = begin_s - does.latest_s, begin_s
            ask = Ask(
                prompt, body.get("max_tokens", 16), bool(body.get("stream")), "messages" in body, body,
                {name.lower(): value for name, value in self.headers.items()}, does.requests, does.running, gap_s,
                self.answered, self.client_address[1], does.looked,
            )  # fmt: skip
        try:
            (self._stream if ask.stream else self._whole)(ask, begin_s)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.answered += 1
            with does.lock:
                does.running -= 1

    def _base(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {"id": f"cmpl-{self.does.requests}", "created": self.does.created(), "choices": choices, **more}

    def _choice(self, piece: Piece, key: str, reason: str | None) -> dict[str, Any]:
        text = self.does.shown(piece.text)
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.does.reason(reason) if reason else None}
        choice |= {"text": text} if key == "text" else {key: {"content": text}}
        if self.does.with_ids:
            choice["token_ids"] = piece.ids
        return choice

    def _whole(self, ask: Ask, begin_s: float) -> None:
        pieces = list(self.does.pieces(ask))
        whole = Piece("".join(p.text for p, _ in pieces), [number for p, _ in pieces for number in p.ids])
        choice = self._choice(whole, "message" if ask.chat else "text", pieces[-1][1])
        if self.does.with_ids:
            choice["prompt_token_ids"] = list(ask.prompt.encode())
        more = {"usage": self.does.usage_of(ask, len(whole.ids))} if self.does.with_usage else {}
        self._document(200, self._base([choice], **more, **self.does.extra(ask, time.monotonic() - begin_s)))

    def _stream(self, ask: Ask, begin_s: float) -> None:
        does, key = self.does, "delta" if ask.chat else "text"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header(*(("Connection", "close") if does.closes else ("Transfer-Encoding", "chunked")))
        if ends := does.lasts > 0 and self.answered + 1 >= does.lasts:
            self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = does.closes or ends
        if does.role_first:
            self._event(self._base([self._choice(Piece(""), key, None)]))
        sent, text, ids = 0, "", list[int]()
        held = []
        for piece, reason in does.pieces(ask):
            sent += len(piece.ids)
            text, ids = text + piece.text, ids + piece.ids
            if len(ids) < does.burst and reason is None:
                continue
            event = self._base([self._choice(Piece(text, ids), key, reason)])
            text, ids = "", []
            if does.flushed:
                held.append(event)
                continue
            self._event(event)
            if does.heartbeat:
                self._send(b": still here" + does.line_end)
        if held:  # in one piece: what a busy machine makes of many is not what was done here
            self._send(b"".join(map(self._line, held)))
        if does.with_usage:
            said = does.extra(ask, time.monotonic() - begin_s)
            self._event(self._base([], usage=does.usage_of(ask, sent), **said))
        if not does.cut:
            self._send(b"data: [DONE]" + does.line_end)
        if not does.closes:
            self.wfile.write(b"0\r\n\r\n")

    def _event(self, document: dict[str, Any]) -> None:
        self._send(self._line(document))

    def _line(self, document: dict[str, Any]) -> bytes:
        return b"data: " + json.dumps(document).encode() + self.does.line_end

    def _send(self, data: bytes) -> None:
        self.wfile.write(data if self.does.closes else b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _document(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def rendered(body: dict[str, Any]) -> str:
    """The prompt under the tiny model's chat template."""
    if "messages" in body:
        return "".join(f"{m['role']}: {m['content']}\n" for m in body["messages"]) + "assistant:"
    prompt = body["prompt"]
    return prompt if isinstance(prompt, str) else bytes(prompt).decode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        with contextlib.suppress(OSError):
            super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(does: Honest) -> Iterator[str]:
    """The address of a server that does so, until the block ends."""
    server = _Server(("127.0.0.1", 0), type(f"Handler{uuid.uuid4().hex}", (_Handler,), {"does": does}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
