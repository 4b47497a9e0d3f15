"""The judge's requests: as the benchmark sends them, one at a time, every arrival timed by our own clock."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ENDPOINTS = {"openai-chat": CHAT, "openai-completions": COMPLETIONS}
_OPTIONAL = ("return_token_ids", "ignore_eos", "stream_options")
_LIMIT_BYTES = 16_000_000


@dataclass(frozen=True)
class Answer:
    """One answer. Times in seconds from the send; `arrivals` are (time, text, number of ids) of each chunk.

    `error` says why there is none; everything else is then empty.
    """

    prompt: str
    asked: int
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    arrivals: tuple[tuple[float, str, int], ...] = ()
    total_s: float = 0.0
    error: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def first_s(self) -> float | None:
        """When the first text arrived."""
        return next((at for at, text, _ in self.arrivals if text), None)

    @property
    def last_s(self) -> float | None:
        """When the last text arrived."""
        return next((at for at, text, _ in reversed(self.arrivals) if text), None)


@dataclass
class Client:
    """Asks one server. Fields beyond OpenAI's that the server refuses are left out from then on, and said."""

    url: str
    endpoint: str
    timeout_s: float = 120.0
    left_out: list[str] = field(default_factory=list)
    model: str | None = None

    def ask(self, prompt: str, max_tokens: int, *, stream: bool = True, ignore_eos: bool = True) -> Answer:
        """One greedy answer; never raises for what the server does."""
        while True:
            answer = self._ask(prompt, max_tokens, stream=stream, ignore_eos=ignore_eos)
            refused = next((name for name in _OPTIONAL if name not in self.left_out), None)
            if refused is None or not answer.error.startswith(("http 400", "http 422")):
                return answer
            self.left_out.append(refused)

    def _body(self, prompt: str, max_tokens: int, stream: bool, ignore_eos: bool) -> bytes:
        if self.model is None:
            self.model = first_model(self.url)
        asked: dict[str, Any] = {"model": self.model} if self.model else {}
        asked |= {"messages": [{"role": "user", "content": prompt}]} if self.endpoint == CHAT else {"prompt": prompt}
        asked |= {"max_tokens": max_tokens, "temperature": 0.0, "stream": stream}
        if stream:
            asked["stream_options"] = {"include_usage": True}
        asked["return_token_ids"] = True
        if ignore_eos:
            asked["ignore_eos"] = True
        return json.dumps({name: value for name, value in asked.items() if name not in self.left_out}).encode()

    def _ask(self, prompt: str, max_tokens: int, *, stream: bool, ignore_eos: bool) -> Answer:
        parts = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=self.timeout_s)
        body = self._body(prompt, max_tokens, stream, ignore_eos)
        begin_s = time.perf_counter()
        try:
            # The very head that the benchmark sends: nothing of the form tells one from the other.
            connection.putrequest("POST", self.endpoint, skip_host=True, skip_accept_encoding=True)
            connection.putheader("Host", parts.netloc)
            connection.putheader("Content-Type", "application/json")
            connection.putheader("Accept", "text/event-stream")
            connection.putheader("Connection", "keep-alive")
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            if response.status != 200:
                said = response.read(2000).decode("utf-8", errors="replace")
                return Answer(prompt, max_tokens, error=f"http {response.status}: {' '.join(said.split())[:300]}")
            if stream:
                return self._streamed(prompt, max_tokens, response, begin_s)
            document = json.loads(response.read(_LIMIT_BYTES))
            return self._whole(prompt, max_tokens, document, time.perf_counter() - begin_s)
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
            KeyError,
            TypeError,
            IndexError,
            AttributeError,
        ) as error:
            return Answer(prompt, max_tokens, error=f"{type(error).__name__}: {str(error)[:200]}")
        finally:
            connection.close()

    def _whole(self, prompt: str, asked: int, document: dict[str, Any], total_s: float) -> Answer:
        choice = document["choices"][0]
        text = choice["message"]["content"] if self.endpoint == CHAT else choice["text"]
        ids = choice.get("token_ids")
        return Answer(
            prompt,
            asked,
            text=text or "",
            token_ids=None if ids is None else tuple(ids),
            finish_reason=choice.get("finish_reason"),
            usage=document.get("usage"),
            total_s=total_s,
            left_out=tuple(self.left_out),
        )

    def _streamed(self, prompt: str, asked: int, response: http.client.HTTPResponse, begin_s: float) -> Answer:
        text, reason, usage = "", None, None
        ids: list[int] = []
        arrivals: list[tuple[float, str, int]] = []
        with_ids = False
        for at_s, event in events(response, begin_s):
            usage = event.get("usage") or usage
            for choice in event.get("choices") or []:
                piece = choice.get("delta", {}).get("content") if self.endpoint == CHAT else choice.get("text")
                new = choice.get("token_ids")
                with_ids = with_ids or new is not None
                ids += new or []
                text += piece or ""
                arrivals.append((at_s, piece or "", len(new or [])))
                reason = choice.get("finish_reason") or reason
        return Answer(
            prompt,
            asked,
            text=text,
            token_ids=tuple(ids) if with_ids else None,
            finish_reason=reason,
            usage=usage,
            arrivals=tuple(arrivals),
            total_s=time.perf_counter() - begin_s,
            left_out=tuple(self.left_out),
        )


def first_model(url: str) -> str:
    """The id that /v1/models names first, as the benchmark asks for it; empty where the server has no such list."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=10)
    try:
        connection.request("GET", "/v1/models")
        return str(json.loads(connection.getresponse().read(_LIMIT_BYTES))["data"][0]["id"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError):
        return ""
    finally:
        connection.close()


def events(response: http.client.HTTPResponse, begin_s: float) -> Iterator[tuple[float, dict[str, Any]]]:
    """(seconds since `begin_s`, document) of each server-sent event. Raises ValueError where the stream is cut or wrong."""
    pending, done, seen = b"", False, 0
    while chunk := response.read1(65536):
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
