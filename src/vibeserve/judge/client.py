"""The judge's requests: as the benchmark sends them, on connections that are kept, every arrival timed by our own clock."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vibeserve.judge.traffic import Prompt, Traffic

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ENDPOINTS = {"openai-chat": CHAT, "openai-completions": COMPLETIONS}
_OPTIONAL = ("return_token_ids", "ignore_eos", "stream_options")
_LIMIT_BYTES = 16_000_000
#: What a response may still bring after [DONE].
_END_S = 1.0
_FAULTS = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError, AttributeError)


@dataclass(frozen=True)
class Answer:
    """One answer. Times in seconds from the send; `arrivals` are (time, text, number of ids) of each chunk.

    `said`: what else the server told with it. `at_s`: when it was sent, by the machine's wall clock. `error` says why
    there is none; everything else is then empty.
    """

    prompt: Prompt
    asked: int
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    arrivals: tuple[tuple[float, str, int], ...] = ()
    total_s: float = 0.0
    error: str = ""
    left_out: tuple[str, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    said: dict[str, Any] = field(default_factory=dict)
    at_s: float = 0.0

    @property
    def first_s(self) -> float | None:
        """When the first text arrived."""
        return next((at for at, text, _ in self.arrivals if text), None)

    @property
    def last_s(self) -> float | None:
        """When the last text arrived."""
        return next((at for at, text, _ in reversed(self.arrivals) if text), None)

    @property
    def refused(self) -> bool:
        """Whether the server does not know what was asked for."""
        return self.error.startswith(("http 400", "http 422"))


@dataclass
class Client:
    """Asks one server. Fields beyond OpenAI's that the server refuses are left out from then on, and said."""

    url: str
    endpoint: str
    timeout_s: float = 120.0
    left_out: list[str] = field(default_factory=list)
    model: str | None = None
    traffic: Traffic = field(default_factory=Traffic)
    idle: list[http.client.HTTPConnection] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def says_more(self) -> bool:
        """Whether the benchmark's requests, as far as they were learned, lack a field that the judge's have."""
        return bool(self.traffic.fields) and any(name not in self.traffic.fields for name in _OPTIONAL)

    def ask(
        self, prompt: Prompt, max_tokens: int, *, stream: bool = True, as_benchmark: bool = False, **fields: Any
    ) -> Answer:
        """One answer, greedy unless `fields` say otherwise; never raises for what the server does.

        `as_benchmark`: without the fields that the benchmark's own requests lack.
        """
        while True:
            known = tuple(self.left_out)
            unsaid = [name for name in _OPTIONAL if name not in self.traffic.fields] if as_benchmark else []
            body = self._body(prompt, max_tokens, stream, (*known, *unsaid), fields)
            answer = self._sent(prompt, max_tokens, stream, body)
            refused = next((name for name in _OPTIONAL if name not in known), None)
            if refused is None or not answer.refused or fields or as_benchmark:
                return answer
            with self.lock:
                if tuple(self.left_out) == known:
                    self.left_out.append(refused)

    def next_id(self, ids: tuple[int, ...]) -> int | None:
        """The token that comes after these, by /v1/completions; None where the server cannot say."""
        body = {"model": self._model(), "prompt": list(ids), "max_tokens": 1, "temperature": 0.0}
        body |= {"return_token_ids": True, "ignore_eos": True}
        elsewhere = Client(self.url, COMPLETIONS, self.timeout_s, idle=self.idle, lock=self.lock, model=self.model)
        answer = elsewhere._sent("", 1, False, json.dumps(body).encode())
        return answer.token_ids[0] if answer.token_ids else None

    def close(self) -> None:
        """Close the connections that were kept."""
        while self.idle:
            self.idle.pop().close()

    def _model(self) -> str:
        if self.model is None:
            self.model = first_model(self.url)
        return self.model

    def _body(
        self, prompt: Prompt, max_tokens: int, stream: bool, without: Sequence[str], fields: dict[str, Any]
    ) -> bytes:
        asked: dict[str, Any] = {"model": self._model()} if self._model() else {}
        turns = (("user", prompt),) if isinstance(prompt, str) else prompt
        messages = [{"role": role, "content": content} for role, content in turns]
        asked |= {"messages": messages} if self.endpoint == CHAT else {"prompt": prompt}
        asked |= {"max_tokens": max_tokens, "temperature": 0.0, "stream": stream}
        if stream:
            asked["stream_options"] = {"include_usage": True}
        asked |= {"return_token_ids": True, "ignore_eos": True}
        asked |= {name: value for name, value in self.traffic.fields.items() if name not in (*asked, *_OPTIONAL)}
        asked = {name: value for name, value in asked.items() if name not in without} | fields
        return json.dumps(asked).encode()

    def _sent(self, prompt: Prompt, max_tokens: int, stream: bool, body: bytes) -> Answer:
        """Send on a kept connection; where the server has closed that meanwhile, on a new one."""
        while True:
            connection, kept = self._connection()
            try:
                return self._on(connection, prompt, max_tokens, stream, body)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                connection.close()
                if not kept:
                    return Answer(prompt, max_tokens, error=f"{type(error).__name__}: {str(error)[:200]}")
            except _FAULTS as error:
                connection.close()
                return Answer(prompt, max_tokens, error=f"{type(error).__name__}: {str(error)[:200]}")

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        with self.lock:
            if self.idle:
                return self.idle.pop(), True
        parts = urllib.parse.urlsplit(self.url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=self.timeout_s), False

    def _on(
        self, connection: http.client.HTTPConnection, prompt: Prompt, asked: int, stream: bool, body: bytes
    ) -> Answer:
        begin_s, at_s = time.perf_counter(), time.time()
        # The very head that the benchmark sends: nothing of the form tells one from the other.
        connection.putrequest("POST", self.endpoint, skip_host=True, skip_accept_encoding=True)
        ours = {"host": urllib.parse.urlsplit(self.url).netloc, "content-length": str(len(body))}
        for name, value in self.traffic.head:
            connection.putheader(name, ours.get(name.lower(), value))
        connection.endheaders(body)
        response = connection.getresponse()
        if response.status != 200:
            said = response.read(2000).decode("utf-8", errors="replace")
            self._put_back(connection, response)
            return Answer(prompt, asked, error=f"http {response.status}: {' '.join(said.split())[:300]}")
        if stream:
            answer = self._streamed(prompt, asked, response, connection, begin_s, at_s)
        else:
            document = json.loads(response.read(_LIMIT_BYTES))
            answer = self._whole(prompt, asked, document, time.perf_counter() - begin_s, at_s)
        self._put_back(connection, response)
        return answer

    def _put_back(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        if not response.isclosed() or response.will_close:
            connection.close()
            return
        with self.lock:
            self.idle.append(connection)

    def _whole(self, prompt: Prompt, asked: int, document: dict[str, Any], total_s: float, at_s: float) -> Answer:
        choice = document["choices"][0]
        text = choice["message"]["content"] if self.endpoint == CHAT else choice["text"]
        ids, read = choice.get("token_ids"), choice.get("prompt_token_ids")
        return Answer(
            prompt,
            asked,
            text=text or "",
            token_ids=None if ids is None else tuple(ids),
            finish_reason=choice.get("finish_reason"),
            usage=document.get("usage"),
            total_s=total_s,
            left_out=tuple(self.left_out),
            prompt_ids=None if read is None else tuple(read),
            said=_said(document),
            at_s=at_s,
        )

    def _streamed(
        self,
        prompt: Prompt,
        asked: int,
        response: http.client.HTTPResponse,
        connection: http.client.HTTPConnection,
        begin_s: float,
        at_s: float,
    ) -> Answer:
        text, reason, usage = "", None, None
        ids: list[int] = []
        arrivals: list[tuple[float, str, int]] = []
        said: dict[str, Any] = {}
        with_ids, total_s = False, 0.0
        for total_s, event in events(response, connection, begin_s):
            usage = event.get("usage") or usage
            said |= _said(event)
            for choice in event.get("choices") or []:
                piece = choice.get("delta", {}).get("content") if self.endpoint == CHAT else choice.get("text")
                new = choice.get("token_ids")
                with_ids = with_ids or new is not None
                ids += new or []
                text += piece or ""
                arrivals.append((total_s, piece or "", len(new or [])))
                reason = choice.get("finish_reason") or reason
        return Answer(
            prompt,
            asked,
            text=text,
            token_ids=tuple(ids) if with_ids else None,
            finish_reason=reason,
            usage=usage,
            arrivals=tuple(arrivals),
            total_s=total_s,
            left_out=tuple(self.left_out),
            said=said,
            at_s=at_s,
        )


def _said(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in ("choices", "id", "object", "model")}


def first_model(url: str) -> str:
    """The id that /v1/models names first, asked for as the benchmark asks; empty where the server has no such list."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/v1/models", timeout=10) as response:
            return str(json.loads(response.read(_LIMIT_BYTES))["data"][0]["id"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError):
        return ""


def events(
    response: http.client.HTTPResponse, connection: http.client.HTTPConnection, begin_s: float
) -> Iterator[tuple[float, dict[str, Any]]]:
    """(seconds since `begin_s`, document) of each server-sent event. Raises ValueError where the stream is cut or wrong.

    A server that does not end its response after [DONE] is not waited for.
    """
    pending, done, seen = b"", False, 0
    while chunk := _more(response, connection, done):
        at_s = time.perf_counter() - begin_s
        seen += len(chunk)
        if seen > _LIMIT_BYTES:
            raise ValueError("the stream does not end")
        pending = (pending + chunk).replace(b"\r\n", b"\n")
        while (end := pending.find(b"\n\n")) >= 0:
            block, pending = pending[:end], pending[end + 2 :]
            data = b"\n".join(line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:"))
            if data == b"[DONE]":
                done = True
            elif data:
                event = json.loads(data)
                if "error" in event:
                    raise ValueError(f"the stream brought an error: {event['error']}")
                yield at_s, event
    if not done:
        raise ValueError("the stream ended without [DONE]")


def _more(response: http.client.HTTPResponse, connection: http.client.HTTPConnection, done: bool) -> bytes:
    if not done or connection.sock is None:
        return response.read1(65536)
    before = connection.sock.gettimeout()
    connection.sock.settimeout(_END_S)
    try:
        with contextlib.suppress(TimeoutError):
            return response.read1(65536)
        return b""
    finally:
        if connection.sock is not None:
            connection.sock.settimeout(before)
