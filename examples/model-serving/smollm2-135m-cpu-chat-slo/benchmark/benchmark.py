"""Measure a text server from outside: latency, throughput and goodput through its OpenAI API.

    python benchmark.py --url http://localhost:8000 --concurrency 16 --window 15 --output-json result.json
    python benchmark.py --url http://localhost:8000 --rate 4 --duration 60
    python benchmark.py --url http://localhost:8000 --sweep concurrency=1,4,16 prompt-len=64,512 max-tokens=32,128

One file, the standard library, and two packages for the model's own tokens (tokenizers, jinja2), imported late.

How it counts:
* Load is a closed loop (--concurrency N: exactly N requests in flight) or an open loop (Poisson arrivals at --rate, or
  bursts: --burstiness); latencies run from the moment a request was *scheduled*, so that waiting for the client is part of them.
* Warm-up requests are sent before and never counted.
* Prompts have exactly --prompt-len tokens, chat template included. They are drawn from --seed, a share of them
  (--fresh-share) from fresh random numbers that no other run has used. Every request starts with words of its own.
* A request has succeeded when it has tokens, a finish reason, [DONE], and the length that was asked for. Everything
  else is a failure with its kind. A failed request is slower than any other in every percentile.
* Tokens are ids that the server returned *and* that decode to its text, else the text tokenised here. Never chunks.
* Throughput is the tokens that arrive within the window, over the window. A request that the window cuts off stays in
  the percentiles as one that took at least so long (Kaplan-Meier).
* The client measures its own overhead against a fake server in every run, and prints it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import math
import os
import random
import re
import secrets
import select
import selectors
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
now = time.perf_counter  # on Linux and macOS one clock for all processes: the calibration leans on it


class UsageError(Exception):
    """Wrong usage, or a server that cannot be measured at all: exit code 2, with a hint."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint


# ------------------------------------------------------------------------------------------------------- prompts

_PEOPLE = (
    "baker sailor doctor teacher farmer painter miller driver singer judge nurse pilot guard weaver hunter cook".split()
)
_PLACES = "river market harbor forest village tower bridge garden station valley island castle desert school mountain lake".split()
_THINGS = (
    "lamp rope clock letter basket hammer mirror candle ring map bottle drum coat key bell book wheel stone".split()
)
_VERBS = "found lost carried painted hid sold watched opened repaired traded broke borrowed cleaned followed".split()
_QUALITIES = "old small bright heavy quiet broken golden strange warm green narrow cheap rare empty soft tall".split()
_PAD = "and then so now here there again once more still soon just too very quite".split()
_SYLLABLES = "ba ve ro ki zu mar tel dor vin lo sha gre nok pel ras tu wen xi yor dak".split()


@dataclass
class Prompt:
    """A request's prompt: the text or the messages, its sentinel (an invented name), and its length in tokens."""

    index: int
    sentinel: str
    tokens: int
    fresh: bool
    text: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)


class Tokens:
    """The model's tokenizer and chat template, without transformers."""

    def __init__(self, folder: Path):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise UsageError("the package tokenizers is not installed", "pip install -r requirements.txt") from None
        if not (folder / "tokenizer.json").is_file():
            raise UsageError(
                f"no tokenizer.json in {folder}: prompts and answers are counted in the model's own tokens",
                "materialise the model (vibeserve materialize BUNDLE), or pass --model-dir",
            )
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.special = {id_ for id_, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        self._template = self._read_template(folder)

    def _read_template(self, folder: Path) -> Any:
        config = json.loads(self._text(folder / "tokenizer_config.json") or "{}")
        source = self._text(folder / "chat_template.jinja") or config.get("chat_template")
        if not isinstance(source, str):
            return None
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        names = {
            name: value["content"] if isinstance(value := config.get(name), dict) else value or ""
            for name in ("bos_token", "eos_token")
        }
        template = environment.from_string(source)
        return lambda messages: template.render(messages=messages, add_generation_prompt=True, **names)

    @staticmethod
    def _text(path: Path) -> str:
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def ids(self, text: str, special: bool = False) -> list[int]:
        """The ids of a text; with `special`, also the ones that the tokenizer puts around a prompt."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def chat_ids(self, messages: list[dict[str, str]]) -> list[int]:
        """The ids of a conversation under the chat template."""
        if self._template is None:
            raise UsageError("this model has no chat template", "measure --endpoint /v1/completions")
        return self.ids(self._template(messages))

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens left out."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


class Prompts:
    """Prompts of an exact length, from a seed, with a share that is fresh in this run."""

    def __init__(self, tokens: Tokens, chat: bool, args: argparse.Namespace, length: int, label: str):
        self.tokens, self.chat, self.length = tokens, chat, length + args.shared_prefix
        self.every = round(1 / args.fresh_share) if args.fresh_share > 0 else 0
        self.keys = (f"{args.seed}/{label}", f"{args.fresh_seed}/fresh/{label}")
        suffix = getattr(args, "ask_suffix", "")
        self.suffix = f" {suffix}" if suffix and chat else ""
        self.shared = ""
        if args.shared_prefix:
            generator = random.Random(f"{args.seed}/{args.fresh_seed}/shared/{label}")
            self.shared = self._words(generator, args.shared_prefix - 24)
            while len(tokens.ids(self.shared)) < args.shared_prefix:
                self.shared += f" {generator.choice(_PAD)}"
        self._made: dict[int, Prompt] = {}
        self._file = dataset(args.dataset, args.seed) if args.dataset else []

    def get(self, index: int) -> Prompt:
        """Prompt number `index` (warm-up takes the negative ones)."""
        if index not in self._made:
            self._made[index] = self._make(index)
        return self._made[index]

    def _make(self, index: int) -> Prompt:
        fresh = bool(self.every) and index % self.every == self.every - 1
        if self._file:
            return self._from_file(index)
        for attempt in range(50):
            generator = random.Random(f"{self.keys[fresh]}/{index}/{attempt}")
            if (prompt := self._fit(index, fresh, generator)) is not None:
                return prompt
        raise UsageError(f"no prompt of exactly {self.length} tokens was found", "choose another --prompt-len")

    def _from_file(self, index: int) -> Prompt:
        """A prompt out of the dataset, behind a fresh name; cut where it is longer than --prompt-len."""
        generator = random.Random(f"{self.keys[1]}/{index}")
        name = "".join(generator.sample(_SYLLABLES, 3)).capitalize()
        text = self._file[index % len(self._file)]
        head, tail = f"{name}: ", f" Begin your answer with the name {name}.{self.suffix}"
        room = self.length
        while True:
            body = self.tokens.decode(self.tokens.ids(text)[:room])
            prompt = Prompt(index, name, 0, True, "" if self.chat else head + body + tail)
            if self.chat:
                prompt.messages = [{"role": "user", "content": head + body + tail}]
            prompt.tokens = len(
                self.tokens.chat_ids(prompt.messages) if self.chat else self.tokens.ids(prompt.text, True)
            )
            if prompt.tokens <= self.length:
                return prompt
            room -= prompt.tokens - self.length
            if room < 1:
                raise UsageError(f"--prompt-len {self.length} leaves no room for the dataset's texts")

    def _fit(self, index: int, fresh: bool, generator: random.Random) -> Prompt | None:
        name = "".join(generator.sample(_SYLLABLES, 3)).capitalize()
        person, code = generator.choice(_PEOPLE), generator.randrange(1000, 9999)

        def build(middle: str) -> tuple[Prompt, int]:
            prompt = Prompt(index, name, self.length, fresh)
            if self.chat:
                system = self.shared or f"Desk {code}."
                ask = f"Write a long story about a {person} named {name}.{self.suffix}"
                user = f"{name}:{middle} {ask}" if middle else ask
                prompt.messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
                return prompt, len(self.tokens.chat_ids(prompt.messages))
            # After a heading with the name even a small model says it, whatever stood before.
            story = f"This is {name} the {person}.\n\n# The story of {name}\n\n"
            prompt.text = f"{self.shared}{code} {name}:{middle} {story}"
            return prompt, len(self.tokens.ids(prompt.text, special=True))

        prompt, count = build("")
        if count > self.length:
            if not self.chat and self.length >= 1:
                # Too short for a whole sentence: keep the name, cut the rest by tokens.
                return self._short(index, fresh, name)
            raise UsageError(f"--prompt-len {self.length} is too short: the chat template alone leaves no room",
                             f"at least {count}")  # fmt: skip
        middle = ""
        while count < self.length:
            room = self.length - count
            if room > 200:  # far away: many sentences at once, counted roughly
                step = self._words(generator, room - 100)
            else:
                pads = generator.sample(_PAD, 4)
                steps = [self._sentence(generator), *(f" {word}" for word in pads), "."]
                step = next((s for s in steps if len(self.tokens.ids(s)) <= room), ".")
            middle += step
            prompt, count = build(middle)
        return prompt if count == self.length else None

    def _short(self, index: int, fresh: bool, name: str) -> Prompt | None:
        ids = self.tokens.ids(f"{name} went to the market and then home", special=True)[: self.length]
        text = self.tokens.decode(ids)
        return (
            Prompt(index, name, self.length, fresh, text)
            if len(self.tokens.ids(text, special=True)) == self.length
            else None
        )

    def _words(self, generator: random.Random, count: int) -> str:
        text, have = "", 0
        while have < count:
            sentence = self._sentence(generator)
            have += len(self.tokens.ids(sentence))
            text += sentence
        return text

    @staticmethod
    def _sentence(generator: random.Random) -> str:
        pick = generator.choice
        return f" The {pick(_QUALITIES)} {pick(_PEOPLE)} {pick(_VERBS)} a {pick(_QUALITIES)} {pick(_THINGS)} near the {pick(_PLACES)}."


def dataset(path: Path, seed: int) -> list[str]:
    """The texts of a local file: JSON lines with "prompt" or "text", or plain text with blank lines between."""
    try:
        raw = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in raw.splitlines() if line.strip()]
            texts = [str(row.get("prompt") or row["text"]) for row in rows]
        else:
            texts = [part.strip() for part in re.split(r"\n\s*\n", raw) if part.strip()]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UsageError(
            f"--dataset {path}: cannot be read: {error}", 'JSON lines with "prompt" or "text", or plain text'
        ) from None
    if not texts:
        raise UsageError(f"--dataset {path}: holds no text")
    random.Random(seed).shuffle(texts)
    return texts


# ------------------------------------------------------------------------------------------------- HTTP and SSE


class Response:
    """An HTTP/1.1 response that is read as it comes; the payload keeps the time of each piece."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[tuple[float, bytes]] = []
        self.complete = False
        self._buffer = b""
        self._has_head = False
        self._left = 0  # bytes left of the body or chunk; -2: the line end after a chunk; -3: trailers
        self._chunked = self._until_close = False

    def feed(self, data: bytes, at: float) -> None:
        """Take bytes that arrived at `at`. Raises ValueError for what is not HTTP."""
        self._buffer += data
        if not self._has_head and not self._head():
            return
        if self._until_close:
            self._take(len(self._buffer), at)
        elif self._chunked:
            self._chunks(at)
        else:
            self._left -= self._take(min(self._left, len(self._buffer)), at)
            self.complete = self._left == 0

    def closed(self) -> None:
        """The server has closed: the end of a body without a length."""
        if self._until_close:
            self.complete = True

    def _take(self, size: int, at: float) -> int:
        if size:
            self.pieces.append((at, self._buffer[:size]))
            self._buffer = self._buffer[size:]
        return size

    def _head(self) -> bool:
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            if len(self._buffer) > 65536 or (self._buffer and not b"HTTP/1.".startswith(self._buffer[:7])):
                raise ValueError("not an HTTP response")
            return False
        lines = head.decode("latin-1").split("\r\n")
        match = re.match(r"HTTP/1\.[01] (\d{3})", lines[0])
        if not match:
            raise ValueError("not an HTTP response")
        self.status = int(match.group(1))
        self.headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        self._buffer, self._has_head = rest, True
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        self._until_close = not self._chunked and "content-length" not in self.headers
        self._left = 0 if self._chunked else int(self.headers.get("content-length", "0"))
        return True

    def _chunks(self, at: float) -> None:
        while not self.complete:
            if self._left > 0:
                if not self._buffer:
                    return
                self._left -= self._take(min(self._left, len(self._buffer)), at)
                if self._left == 0:
                    self._left = -2
                continue
            if self._left == -2:
                if len(self._buffer) < 2:
                    return
                self._buffer, self._left = self._buffer[2:], 0
                continue
            line, separator, rest = self._buffer.partition(b"\r\n")
            if not separator:
                return
            if self._left == -3:  # after the last chunk: trailers, then an empty line
                self._buffer = rest
                self.complete = not line
                continue
            size = int(line.split(b";")[0], 16)
            self._buffer, self._left = rest, size or -3

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may carry another request."""
        return self.complete and not self._until_close and self.headers.get("connection", "").lower() != "close"


class Connection(asyncio.Protocol):
    """One connection to the server, with at most one request on it."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.response: Response | None = None
        self.done: asyncio.Future[str | None] | None = None
        self.open = True
        self.kept = False  # it has carried a request before
        self.heard = False  # something of the answer came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        at = now()
        response, done = self.response, self.done
        if response is None or done is None or done.done():
            return
        self.heard = True
        try:
            response.feed(data, at)
        except ValueError:
            self._end("garbage: the answer is not HTTP")
            return
        if response.complete:
            self._end(None)
        elif b"[DONE]" in data:  # some servers forget to end the response: do not wait for it long
            asyncio.get_running_loop().call_later(1.0, self._end_of, done)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self.response is not None:
            self.response.closed()
        complete = self.response is not None and self.response.complete
        self._end(None if complete else "dropped: the connection ended before the answer did")

    def eof_received(self) -> bool:
        return False

    @staticmethod
    def _end_of(done: asyncio.Future[str | None]) -> None:
        if not done.done():
            done.set_result(None)

    def _end(self, error: str | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(error)


class Client:
    """Connections to one server, kept alive, as many as are needed."""

    def __init__(self, url: str, endpoint: str):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"--url {url!r}: not http://HOST:PORT", "for instance http://localhost:8000")
        self.host, self.port = parts.hostname, parts.port or 80
        path = parts.path.rstrip("/") + endpoint
        self.head = (
            f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            "Accept: text/event-stream\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n"
        )
        self.idle: list[Connection] = []

    async def send(self, body: bytes, call: Call, timeout_s: float) -> None:
        """Send one request and read its answer into `call`; never raises for what the server does."""
        while await self._attempt(body, call, timeout_s):
            pass

    async def _attempt(self, body: bytes, call: Call, timeout_s: float) -> bool:
        """Send it once. True where a kept connection turns out to have been closed meanwhile: it never reached the server."""
        connection = None
        try:
            connection = await self._connection(timeout_s)
            call.response = connection.response = Response()
            connection.done = asyncio.get_running_loop().create_future()
            call.sent = now()
            connection.transport.write((self.head % len(body)).encode() + body)
            call.error = await asyncio.wait_for(connection.done, timeout_s)
            return connection.kept and not connection.open and not connection.heard
        except TimeoutError:
            call.error = f"timeout: no whole answer within {timeout_s:g} s"
        except OSError as error:
            call.error = f"connect: {error.strerror or error}"
        except asyncio.CancelledError:
            call.cut = True
            raise
        finally:
            call.ended = now()
            if connection is not None:
                self._put_back(connection, call)
        return False

    async def _connection(self, timeout_s: float) -> Connection:
        while self.idle:
            if (connection := self.idle.pop()).open and not connection.transport.is_closing():
                return connection
        loop = asyncio.get_running_loop()
        _, connection = await asyncio.wait_for(loop.create_connection(Connection, self.host, self.port), timeout_s)
        return connection

    def _put_back(self, connection: Connection, call: Call) -> None:
        connection.response, connection.kept, connection.heard = None, True, False
        if call.error is None and not call.cut and call.response is not None and call.response.keep_alive:
            self.idle.append(connection)
        else:
            connection.transport.close()

    def close(self) -> None:
        """Close what is idle."""
        for connection in self.idle:
            connection.transport.close()


class PreciseSelector(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    """epoll rounds its time limit up to whole milliseconds; `select` on the epoll handle does not."""

    def select(self, timeout: float | None = None) -> Any:
        """Wait for events or for `timeout` seconds, to the microsecond."""
        if timeout is not None and timeout > 0 and hasattr(self, "fileno"):
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


# ------------------------------------------------------------------------------------------------ one request


@dataclass
class Call:
    """One request as the client saw it; `read` turns the raw answer into text, tokens and times afterwards."""

    prompt: Prompt
    asked: int
    scheduled: float = 0.0
    burstiness: float = 1.0
    long: bool = False
    sent: float = 0.0
    ended: float = 0.0
    error: str | None = None
    cut: bool = False
    response: Response | None = None
    text: str = ""
    ids: list[int] | None = None
    arrivals: list[tuple[float, str, int]] = field(default_factory=list)  # time, text, ids in it
    finish_reason: str | None = None
    done: bool = False
    usage: dict[str, Any] | None = None
    tokens: int = 0
    counted_by: str = ""

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.error is None and not self.cut

    @property
    def refused(self) -> bool:
        """Whether the server turned it away at once; asked for by --allow-refusals, else it is a failure like any other."""
        return (self.error or "").startswith("refused:")

    @property
    def first(self) -> float | None:
        """When the first text arrived (the first token of any kind, where the answer has no text)."""
        with_text = next((at for at, text, _ in self.arrivals if text), None)
        return with_text if with_text is not None else next((at for at, _, count in self.arrivals if count), None)

    @property
    def last(self) -> float | None:
        """When the last text or token arrived."""
        return next((at for at, text, count in reversed(self.arrivals) if text or count), None)

    def tokens_until(self, end: float, tokens: Tokens) -> int:
        """Tokens that had arrived by `end`."""
        if self.error is not None:
            return 0
        if self.last is None or self.last <= end:
            return self.tokens
        if self.ids is not None:
            return sum(count for at, _, count in self.arrivals if at <= end)
        return len(tokens.ids("".join(text for at, text, _ in self.arrivals if at <= end)))


def events(response: Response) -> Iterator[tuple[float, str]]:
    """The `data:` of each server-sent event, with the time at which its end arrived."""
    buffer = b""
    for at, piece in response.pieces:
        buffer += piece.replace(b"\r\n", b"\n")
        while b"\n\n" in buffer:
            block, _, buffer = buffer.partition(b"\n\n")
            lines = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield at, b"\n".join(lines).decode("utf-8", "replace")
    if buffer.strip().startswith(b"data:"):
        yield response.pieces[-1][0], buffer.strip()[5:].strip().decode("utf-8", "replace")


def read(call: Call, tokens: Tokens, exact: bool, refusals: bool = False) -> None:
    """Read the raw answer of a call: text, ids, times; sets `error` where it is no success."""
    response = call.response
    if response is not None and response.status:
        problem = _read_stream(call, response)
        if refusals and response.status == 429 and problem is not None:
            problem = f"refused: {problem}"
        if call.error is None:
            call.error = problem
    _count(call, tokens)
    if call.error is None and not call.cut:
        call.error = _check(call, exact)


def _read_stream(call: Call, response: Response) -> str | None:
    if response.status != 200:
        body = b"".join(piece for _, piece in response.pieces).decode("utf-8", "replace")
        return f"http {response.status}: {' '.join(body.split())[:200]}"
    if "text/event-stream" not in response.headers.get("content-type", ""):
        return f"content type: {response.headers.get('content-type', 'none')!r} instead of text/event-stream"
    for at, data in events(response):
        if data == "[DONE]":
            call.done = True
            continue
        try:
            event = json.loads(data)
            if event.get("error"):
                return f"error in the stream: {str(event['error'])[:200]}"
            call.usage = event.get("usage") or call.usage
            for choice in event.get("choices") or []:
                delta = choice.get("delta") or {}
                text = choice.get("text") or "".join(
                    delta.get(k) or "" for k in ("reasoning_content", "reasoning", "content")
                )
                ids = choice.get("token_ids")
                if ids is not None:
                    call.ids = [*(call.ids or []), *(int(item) for item in ids)]
                call.text += text
                call.finish_reason = choice.get("finish_reason") or call.finish_reason
                if text or ids:
                    call.arrivals.append((at, text, len(ids or [])))
        except (ValueError, TypeError, AttributeError):
            return f"garbage: an event is not OpenAI's JSON: {data[:100]!r}"
    return None


def _count(call: Call, tokens: Tokens) -> None:
    """Count the tokens: ids that decode to the text, else the text tokenised here."""
    if call.ids:
        decoded = tokens.decode(call.ids)
        # Some tokenizers drop a space at the start; an incomplete character at the end may be left out.
        known, got = decoded.lstrip().rstrip("\ufffd"), call.text.lstrip().rstrip("\ufffd")
        if (
            known == got
            or (call.cut and known.startswith(got))
            or (call.finish_reason == "stop" and known.startswith(got))
        ):
            call.tokens, call.counted_by = len(call.ids), "ids, verified against the text"
        else:
            call.error = call.error or "token ids: they do not decode to the text"
            call.ids = None
    else:
        call.ids = None
    if call.ids is None:
        call.tokens = len(tokens.ids(call.text))
        call.counted_by = "text, tokenised by the client" if call.text else ""
    elif call.tokens >= 8 and sum(item in tokens.special for item in call.ids) > call.tokens / 2:
        call.error = call.error or "token ids: most of them are special tokens, which have no text"


def _check(call: Call, exact: bool) -> str | None:
    if not call.tokens:
        return "empty: no token"
    if call.finish_reason is None:
        return "unfinished: no finish_reason"
    if not call.done:
        return "unfinished: no [DONE]"
    if "\ufffd" in call.text.rstrip("\ufffd"):
        return "text: replacement characters inside the answer"
    said = (call.usage or {}).get("completion_tokens")
    if call.ids is not None:
        if call.tokens > call.asked or (exact and call.tokens != call.asked):
            return f"length: {call.tokens} tokens, {call.asked} were asked for"
        if said is not None and said != call.tokens:
            return f"usage: the server says {said} tokens, {call.tokens} came"
    else:
        # Text that is tokenised again may come out a little shorter or longer than what was sampled.
        low = 0.7 * call.asked if exact else 0
        if not low <= call.tokens <= 1.3 * call.asked + 2:
            return f"length: about {call.tokens} tokens of text, {call.asked} were asked for"
        if said is not None and not 0.7 * said - 2 <= call.tokens <= 1.3 * said + 2:
            return f"usage: the server says {said} tokens, the text has about {call.tokens}"
    asked_prompt = (call.usage or {}).get("prompt_tokens")
    if asked_prompt is not None and abs(asked_prompt - call.prompt.tokens) > 1:
        return f"usage: the server says {asked_prompt} prompt tokens, {call.prompt.tokens} were sent"
    return None


# ----------------------------------------------------------------------------------------------------- the load


@dataclass
class Level:
    """One level of load: what is sent, how often, for how long."""

    prompt_len: int
    max_tokens: int
    concurrency: int | None
    rate: float | None
    label: str = "0"


class Dialect:
    """What the server understands of the fields beyond OpenAI's; found out before anything is measured."""

    OPTIONAL = ("return_token_ids", "ignore_eos", "stream_options")

    def __init__(self, args: argparse.Namespace, model: str):
        self.args, self.model = args, model
        self.left_out: list[str] = []

    def body(self, prompt: Prompt, max_tokens: int) -> bytes:
        """The request's JSON."""
        body: dict[str, Any] = {"model": self.model} if self.model else {}
        body |= {"messages": prompt.messages} if prompt.messages else {"prompt": prompt.text}
        body |= {"max_tokens": max_tokens, "temperature": self.args.temperature, "stream": True}
        if self.args.temperature > 0:
            body["seed"] = self.args.seed + prompt.index
        body |= {"stream_options": {"include_usage": True}, "return_token_ids": True}
        if not self.args.allow_eos:
            body["ignore_eos"] = True
        return json.dumps({k: v for k, v in body.items() if k not in self.left_out}).encode()

    async def learn(self, client: Client, prompts: Prompts, tokens: Tokens) -> Call:
        """Send warm-up requests, leaving out the optional fields that the server refuses."""
        for left_out in ([], ["return_token_ids"], ["return_token_ids", "ignore_eos"], list(self.OPTIONAL)):
            self.left_out = left_out
            call = Call(prompts.get(-1), 4, scheduled=now())
            await client.send(self.body(call.prompt, 4), call, self.args.timeout)
            read(call, tokens, exact=False)
            if not (call.error or "").startswith(("http 400", "http 422")):
                break
        if call.error is not None:
            raise UsageError(f"the server does not answer: {call.error}", "is it up, and is --endpoint right?")
        return call


async def warm_up(client: Client, dialect: Dialect, prompts: Prompts, level: Level, args: argparse.Namespace) -> int:
    """Requests before the measurement, as many at once as later; returns how many. A failure among them ends the run."""
    width = min(args.warmup, level.concurrency or args.warmup) or 1
    for start in range(0, args.warmup, width):
        calls = [
            Call(prompts.get(-2 - i), level.max_tokens, scheduled=now())
            for i in range(start, min(start + width, args.warmup))
        ]
        await asyncio.gather(*(client.send(dialect.body(c.prompt, c.asked), c, args.timeout) for c in calls))
        for call in calls:
            read(call, prompts.tokens, exact=False)
            if call.error is not None:
                raise UsageError(f"a warm-up request failed: {call.error}", "the server is not ready to be measured")
    return args.warmup


async def closed_loop(
    client: Client, dialect: Dialect, prompts: Prompts, long: Prompts | None, level: Level, args: argparse.Namespace
) -> tuple[list[Call], float, float]:
    """Exactly N requests in flight, until the window, the duration or the number of requests is through.

    Where there are `long` prompts, --long-concurrency of the N have one.
    """
    calls: list[Call] = []
    numbers = itertools.count()
    start = now()
    end = start + (args.window or args.duration)

    async def worker(own: Prompts) -> None:
        while True:
            index = next(numbers)
            if (args.num_requests is not None and index >= args.num_requests) or (
                args.num_requests is None and now() >= end
            ):
                return
            call = Call(own.get(index), level.max_tokens, scheduled=now(), long=own is long)
            calls.append(call)
            await client.send(dialect.body(call.prompt, call.asked), call, args.timeout)
            if call.error is not None:
                await asyncio.sleep(0.05)  # a server that refuses at once must not be hammered

    count = level.concurrency or 1
    kinds = [long if long is not None and i >= max(1, count - args.long_concurrency) else prompts for i in range(count)]
    await _until([asyncio.create_task(worker(own)) for own in kinds], end if args.window else None)
    return calls, start, end


def arrivals(
    gaps: random.Random, rate: float, shapes: list[float], length: float, count: int | None
) -> list[tuple[float, float]]:
    """(seconds from the start, burstiness) of each request: gaps of a gamma distribution of that shape, `rate` a second.

    Shape 1 is Poisson; below 1 requests come in bursts (the squared coefficient of variation of the gaps is 1 / shape).
    Several shapes follow one another, each for an equal part of `length` seconds, or of `count` requests.
    """

    def gap(shape: float) -> float:
        return gaps.expovariate(rate) if shape == 1 else gaps.gammavariate(shape, 1 / (rate * shape))

    times: list[tuple[float, float]] = []
    at = 0.0
    if count is not None:
        for index in range(count):
            shape = shapes[index * len(shapes) // count]
            times.append((at := at + gap(shape), shape))
        return times
    for part, shape in enumerate(shapes):
        at, until = length * part / len(shapes), length * (part + 1) / len(shapes)
        while (at := at + gap(shape)) < until:
            times.append((at, shape))
    return times


async def open_loop(
    client: Client, dialect: Dialect, prompts: Prompts, _long: Prompts | None, level: Level, args: argparse.Namespace
) -> tuple[list[Call], float, float]:
    """Arrivals by chance at the rate; each request is sent at its time whether or not earlier ones have ended."""
    gaps = random.Random(f"{args.seed}/arrivals/{level.label}")
    length = args.window or args.duration
    times = arrivals(gaps, level.rate or 1.0, args.burstiness, length, args.num_requests)
    prepared = [(offset, shape, prompts.get(i)) for i, (offset, shape) in enumerate(times)]
    bodies = [dialect.body(prompt, level.max_tokens) for *_, prompt in prepared]
    loop, start = asyncio.get_running_loop(), now() + 0.05
    calls, tasks = [], []
    for (offset, shape, prompt), body in zip(prepared, bodies, strict=True):
        call = Call(prompt, level.max_tokens, scheduled=start + offset, burstiness=shape)
        calls.append(call)
        await sleep_until(loop, call.scheduled)
        tasks.append(asyncio.create_task(client.send(body, call, args.timeout)))
    end = start + (times[-1][0] if args.num_requests is not None and times else length)
    await _until(tasks, end if args.window else None)
    return calls, start, end


async def sleep_until(loop: asyncio.AbstractEventLoop, moment: float) -> None:
    """Sleep until `moment` of `now`; the loop's own clock has its own zero."""
    while (left := moment - now()) > 0:
        waiter = loop.create_future()
        loop.call_later(left, lambda w=waiter: None if w.done() else w.set_result(None))
        await waiter


async def _until(tasks: list[asyncio.Task[None]], end: float | None) -> None:
    """Wait for the tasks; where there is an end, cut off what is still running then."""
    if not tasks:
        return
    _, pending = await asyncio.wait(tasks, timeout=None if end is None else max(0.0, end - now()))
    for task in pending:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# -------------------------------------------------------------------------------------------------- the figures


def quantile(values: list[float], at_least: list[float], never: int, share: float) -> tuple[float | None, bool]:
    """The value that `share` of the samples do not exceed, and whether it is only a lower bound.

    `values` are known; `at_least` are cut off there (Kaplan and Meier's estimate); `never` samples (failures) exceed
    everything. None where it falls among the failures, or there is no sample.
    """
    samples = sorted([(v, 0) for v in values] + [(v, 1) for v in at_least])
    at_risk, survival = len(samples) + never, 1.0
    if not at_risk:
        return None, False
    for value, is_cut in samples:
        if not is_cut:
            survival *= 1 - 1 / at_risk
            if survival <= 1 - share + 1e-12:
                return value, False
        at_risk -= 1
    return (max(at_least), True) if at_least and not never else (None, False)


def spread(values: list[float], at_least: Iterable[float] = (), never: int = 0) -> dict[str, Any]:
    """Percentiles with the number that they are taken over; null with a reason where there is none."""
    cut = list(at_least)
    out: dict[str, Any] = {"n": len(values) + len(cut) + never}
    if cut:
        out["cut_off"] = len(cut)
    if never:
        out["failed"] = never
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        out[name], bound = quantile(values, cut, never, share)
        if out[name] is None:
            out[f"{name}_reason"] = "it falls among the failed requests" if never else "no request reached it"
        elif bound:
            out[f"{name}_is_lower_bound"] = True
    out["mean"] = sum(values) / len(values) if values else None
    if not values:
        out["mean_reason"] = "no value"
    return out


def figures(
    calls: list[Call], start: float, end: float, level: Level, args: argparse.Namespace, tokens: Tokens
) -> dict[str, Any]:
    """All numbers of one level."""
    for call in calls:
        read(call, tokens, exact=not args.allow_eos, refusals=args.allow_refusals)
    counted_to_end = bool(args.window) or args.num_requests is None
    finish = end if counted_to_end else max((c.ended for c in calls), default=start)
    ok, cut = [c for c in calls if c.ok], [c for c in calls if c.cut and c.error is None]
    refused = [c for c in calls if c.refused]
    failed = [c for c in calls if c.error is not None and not c.refused]
    duration = max(finish - start, 1e-9)
    in_time = [c for c in ok if c.ended <= finish]
    arrived = sum(c.tokens_until(finish, tokens) for c in calls)
    gaps = [
        b - a
        for c in calls
        if c.error is None
        for (a, *_), (b, *_) in itertools.pairwise([x for x in c.arrivals if x[1]])
    ]
    result: dict[str, Any] = {
        "requests": len(calls), "completed": len(ok), "failed": len(failed), "refused": len(refused), "cut_off": len(cut),
        "duration_s": duration,
        "output_tokens": arrived, "output_tokens_per_s": arrived / duration, "request_throughput": len(in_time) / duration,
        "success_rate": len(ok) / max(1, len(ok) + len(failed) + len(refused)),
        **spreads(calls, finish),
        "itl_s": spread(gaps),
        "send_lateness_s": spread([c.sent - c.scheduled for c in calls if c.sent]),
        "failures": dict(Counter((c.error or "").split(":")[0] for c in failed)),
        "failure_examples": list(dict.fromkeys(c.error for c in failed))[:5],
        "missing_usage": sum(c.usage is None for c in ok),
        "counted_by": dict(Counter(c.counted_by for c in calls if c.counted_by)),
        "fresh_prompts": sum(c.prompt.fresh for c in calls),
    }  # fmt: skip
    result |= goodput(ok, in_time, duration, args)
    if any(c.long for c in calls):
        result |= by_length(calls, finish)
    result["plausibility"] = plausibility(ok, level)
    for name in ("ttft_s", "tpot_s", "itl_s", "latency_s"):
        for p in ("p50", "p90", "p95", "p99", "mean"):
            key = f"{p}_{name}"
            result[key] = result[name][p]
            for extra in ("reason", "is_lower_bound"):
                if f"{p}_{extra}" in result[name]:
                    result[f"{key}_{extra}"] = result[name][f"{p}_{extra}"]
    result["workload"] = {
        "prompt_tokens": level.prompt_len, "output_tokens": level.max_tokens, "concurrency": level.concurrency,
        "rate": level.rate, "shared_prefix_tokens": args.shared_prefix,
        **({"burstiness": args.burstiness} if args.burstiness != [1.0] else {}),
        **({"long_prompt_tokens": args.long_len} if args.long_concurrency else {}),
        "features": (["chat"] if "chat" in args.endpoint else []) + (["shared-prefix"] if args.shared_prefix else [])
        + (["long-context"] if args.long_concurrency else []),
    }  # fmt: skip
    result["per_request"] = [record(c, start) for c in calls]
    result["samples"] = samples(ok, tokens, args)
    return result


def spreads(calls: list[Call], finish: float) -> dict[str, Any]:
    """ttft_s, tpot_s and latency_s of calls that have been read; failed and refused ones are slower than any other."""
    ok, cut = [c for c in calls if c.ok], [c for c in calls if c.cut and c.error is None]
    never = sum(c.error is not None for c in calls)
    firsts = [c.first - c.scheduled for c in calls if c.error is None and c.first is not None]
    waiting = [finish - c.scheduled for c in cut if c.first is None]
    tpots = [
        (c.last - c.first) / (c.tokens - 1) for c in ok if c.tokens > 1 and c.first is not None and c.last is not None
    ]
    return {
        "ttft_s": spread(firsts, waiting, never),
        "tpot_s": spread(tpots, (), never),
        "latency_s": spread([c.ended - c.scheduled for c in ok], [finish - c.scheduled for c in cut], never),
    }


def by_length(calls: list[Call], finish: float) -> dict[str, Any]:
    """The same figures of the short prompts and of the long ones apart: `short_p95_tpot_s`, `long_p50_ttft_s` …"""
    out: dict[str, Any] = {}
    for kind, some in (("short", [c for c in calls if not c.long]), ("long", [c for c in calls if c.long])):
        out[kind] = {
            "requests": len(some), "completed": sum(c.ok for c in some), "cut_off": sum(c.cut for c in some), **spreads(some, finish),
        }  # fmt: skip
        for name in ("ttft_s", "tpot_s", "latency_s"):
            for p in ("p50", "p95"):
                out[f"{kind}_{p}_{name}"] = out[kind][name][p]
                for extra in ("reason", "is_lower_bound"):
                    if f"{p}_{extra}" in out[kind][name]:
                        out[f"{kind}_{p}_{name}_{extra}"] = out[kind][name][f"{p}_{extra}"]
    return out


def goodput(ok: list[Call], in_time: list[Call], duration: float, args: argparse.Namespace) -> dict[str, Any]:
    """Requests a second that kept the SLO; with several values of --burstiness also of each one's part of the time."""
    if args.slo_ttft is None and args.slo_tpot is None:
        return {"goodput": None, "goodput_reason": "no SLO: pass --slo-ttft or --slo-tpot"}

    def within(call: Call) -> bool:
        if call.first is None or call.last is None:
            return False
        tpot = (call.last - call.first) / max(1, call.tokens - 1)
        return (args.slo_ttft is None or call.first - call.scheduled <= args.slo_ttft) and (
            args.slo_tpot is None or tpot <= args.slo_tpot
        )

    shapes = list(dict.fromkeys(args.burstiness))
    parts = {
        f"{shape:g}": sum(within(c) for c in in_time if c.burstiness == shape)
        / (duration * args.burstiness.count(shape) / len(args.burstiness))
        for shape in shapes
    }
    return {
        "goodput": sum(within(c) for c in in_time) / duration,
        "goodput_share": sum(within(c) for c in ok) / len(ok) if ok else 0.0,
        "slo": {"ttft_s": args.slo_ttft, "tpot_s": args.slo_tpot},
        **({"goodput_by_burstiness": parts} if len(shapes) > 1 and {c.burstiness for c in ok} == set(shapes) else {}),
    }


def plausibility(ok: list[Call], level: Level) -> dict[str, Any]:
    """Whether the answers belong to their prompts: most tell of the invented name, and hardly two are alike."""
    if level.max_tokens < 16 or len(ok) < 3:
        return {"ok": None, "reason": "not run: it needs 3 answers of at least 16 tokens"}
    own = sum(c.prompt.sentinel.lower() in c.text.lower() for c in ok) / len(ok)
    others = sum(ok[i - 1].prompt.sentinel.lower() in c.text.lower() for i, c in enumerate(ok)) / len(ok)
    distinct = len({c.text for c in ok}) / len({(c.prompt.text, str(c.prompt.messages)) for c in ok})
    good = own >= 0.3 and own > others + 0.2 and distinct >= 0.9
    return {"ok": good, "names_own": own, "names_another": others, "distinct": distinct, "n": len(ok)}


def record(call: Call, start: float) -> dict[str, Any]:
    """One request for the per-request list; times in seconds from the start of the measurement."""
    return {
        "index": call.prompt.index, "prompt_tokens": call.prompt.tokens, "fresh": call.prompt.fresh,
        "scheduled_s": call.scheduled - start, "sent_s": call.sent - start if call.sent else None,
        "ttft_s": call.first - call.scheduled if call.first is not None else None,
        "latency_s": call.ended - call.scheduled if call.ok else None,
        "output_tokens": call.tokens, "finish_reason": call.finish_reason, "error": call.error,
        "state": "ok" if call.ok else "cut off" if call.error is None else "refused" if call.refused else "failed",
    }  # fmt: skip


def samples(ok: list[Call], tokens: Tokens, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A few whole answers, chosen by chance: the checker can prove them against the reference (--answers)."""
    chosen = random.Random(args.fresh_seed).sample(ok, min(args.samples, len(ok)))
    return [
        {
            "prompt_ids": tokens.chat_ids(c.prompt.messages) if c.prompt.messages else tokens.ids(c.prompt.text, special=True),
            "token_ids": c.ids, "text": c.text, "finish_reason": c.finish_reason, "temperature": args.temperature,
            "ignore_eos": not args.allow_eos,
        }
        for c in chosen
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------- calibration


class FakeServer(asyncio.Protocol):
    """A server that does nothing: it answers with a stream that says when each piece was sent."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        arrived = now()
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        for step in range(4):
            loop.call_later(0.004 * (step + 1), self._event, arrived, step == 3)

    def _event(self, arrived: float, last: bool) -> None:
        data = b'data: {"arrived": %.7f, "sent": %.7f}\n\n' % (arrived, now())
        self.transport.write(b"%x\r\n%s\r\n" % (len(data), data) + (b"0\r\n\r\n" if last else b""))


async def fake_server() -> None:
    """Serve until the parent closes our input."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(FakeServer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    os._exit(0)


async def calibrate(rate: float, seconds: float) -> dict[str, Any]:
    """The client's own overhead: how late it sends and how late it sees an answer, against the fake server."""
    child = subprocess.Popen(
        [sys.executable, __file__, "--internal-fake-server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        client = Client(f"http://127.0.0.1:{port}", "/")
        loop, gaps = asyncio.get_running_loop(), random.Random(0)
        gc.collect()
        gc.disable()  # as in the measurement
        start, at, calls, tasks = now() + 0.1, 0.0, [], []
        while (at := at + gaps.expovariate(rate)) < seconds:
            call = Call(Prompt(0, "", 0, False), 0, scheduled=start + at)
            await sleep_until(loop, call.scheduled)
            calls.append(call)
            tasks.append(asyncio.create_task(client.send(b"{}", call, 5.0)))
        await asyncio.gather(*tasks)
        client.close()
    finally:
        gc.enable()
        child.kill()
        child.communicate()
    sends, sees = [], []
    for call in calls[len(calls) // 10 :]:  # the first ones open the connections
        for seen, data in events(call.response) if call.response else ():
            event = json.loads(data)
            sees.append(seen - event["sent"])
        sends.append(event["arrived"] - call.scheduled)
    return {
        "p50": quantile(sees, [], 0, 0.5)[0], "p99": quantile(sees, [], 0, 0.99)[0], "n": len(sees),
        "arrival_p50": quantile(sends, [], 0, 0.5)[0], "arrival_p99": quantile(sends, [], 0, 0.99)[0], "arrivals": len(sends),
        "rate": rate,
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------------- main


def first_model(url: str) -> str:
    """The id that /v1/models names first; empty where the server has no such list."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/v1/models", timeout=10) as response:
            return str(json.load(response)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def levels(args: argparse.Namespace) -> list[Level]:
    """The levels of load: one, or the product of a sweep's values."""
    base: dict[str, list[Any]] = {
        "prompt-len": [args.prompt_len], "max-tokens": [args.max_tokens], "concurrency": [args.concurrency], "rate": [args.rate]
    }  # fmt: skip
    for entry in args.sweep or []:
        name, _, values = entry.partition("=")
        try:
            if name not in base:
                raise ValueError(name)
            base[name] = [float(v) if name == "rate" else int(v) for v in values.split(",")]
            if any(v <= 0 for v in base[name]):
                raise ValueError(values)
        except ValueError:
            raise UsageError(
                f"--sweep {entry!r}: not NAME=V1,V2,…", f"names: {', '.join(base)}; values above 0"
            ) from None
        if name == "rate":
            base["concurrency"] = [None]
    combinations = list(itertools.product(*base.values()))
    return [Level(p, m, c, None if c is not None else r, str(i)) for i, (p, m, c, r) in enumerate(combinations)]


async def measure(args: argparse.Namespace, write: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run every level, writing the document after each one."""
    overhead = await calibrate(args.calibrate_rate, args.calibrate) if args.calibrate > 0 else {"reason": "not run"}
    tokens = Tokens(args.model_dir)
    client, dialect = Client(args.url, args.endpoint), Dialect(args, args.model or first_model(args.url))
    done: list[dict[str, Any]] = []
    document: dict[str, Any] = {}
    try:
        for level in levels(args):
            result = await measure_level(client, dialect, tokens, level, args)
            done.append({**result, "client_overhead_s": overhead, "left_out_fields": dialect.left_out})
            show(done[-1], level)
            config = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if "internal" not in k}
            document = {"config": config, "model": dialect.model, **headline(done)}
            if args.sweep:
                document["levels"] = done
            write(document)
    finally:
        client.close()
        await asyncio.sleep(0)  # closing happens at the loop's next turn
    return document


async def measure_level(
    client: Client, dialect: Dialect, tokens: Tokens, level: Level, args: argparse.Namespace
) -> dict[str, Any]:
    """Warm up, load, and count one level."""
    prompts = Prompts(tokens, "chat" in args.endpoint, args, level.prompt_len, level.label)
    await dialect.learn(client, prompts, tokens)
    warm = await warm_up(client, dialect, prompts, level, args)
    long = None
    if args.long_concurrency:
        long = Prompts(tokens, "chat" in args.endpoint, args, args.long_len, f"{level.label}/long")
    for index in range(args.num_requests or 4 * (level.concurrency or 1)):
        prompts.get(index)
        if long is not None and index < 2 * args.long_concurrency:
            long.get(index)
    gc.collect()
    gc.disable()
    try:
        run = open_loop if level.concurrency is None else closed_loop
        calls, start, end = await run(client, dialect, prompts, long, level, args)
    finally:
        gc.enable()
    return {**figures(calls, start, end, level, args, tokens), "warmup_requests": warm}


def headline(done: list[dict[str, Any]]) -> dict[str, Any]:
    """The top-level numbers: those of the level with the highest throughput; null where its answers are implausible."""
    best = max(done, key=lambda r: r["output_tokens_per_s"])
    if best["plausibility"]["ok"] is False:
        numbers = {k: None for k, v in best.items() if isinstance(v, float)}
        reasons = {f"{k}_reason": "the answers do not belong to their prompts" for k in numbers}
        return {**best, **numbers, **reasons}
    if best["completed"] == 0 and best["output_tokens"] == 0:
        return {**best, "output_tokens_per_s": None, "output_tokens_per_s_reason": "no request brought a token"}
    return best


def show(result: dict[str, Any], level: Level) -> None:
    """Print one level's figures."""

    def value(number: float | None, scale: float = 1e3) -> str:
        return "  –" if number is None else f"{number * scale:.4g}"

    load = f"{level.concurrency} in flight" if level.concurrency is not None else f"{level.rate:g} requests/s"
    print(f"\n{load}, {level.prompt_len} prompt tokens, {level.max_tokens} output tokens, {result['duration_s']:.2f} s")
    print(
        f"  requests {result['requests']}: {result['completed']} completed, {result['failed']} failed, "
        + (f"{result['refused']} refused, " if result["refused"] else "")
        + f"{result['cut_off']} cut off by the window; warm-up apart: {result['warmup_requests']}"
    )
    for example in result["failure_examples"]:
        print(f"    failed: {example}")
    print(
        f"  output tokens/s {result['output_tokens_per_s']:.4g}   requests/s {result['request_throughput']:.4g}", end=""
    )
    print("" if result["goodput"] is None else f"   goodput {result['goodput']:.4g} requests/s")
    for name in ("ttft_s", "tpot_s", "itl_s", "latency_s"):
        block = result[name]
        print(
            f"  {name[:-2]:8} ms  "
            + "  ".join(f"{p} {value(block[p])}" for p in ("p50", "p95", "p99"))
            + f"  over {block['n']}"
        )
    print(
        f"  counted by {result['counted_by']}; plausible: {result['plausibility']['ok']}; fresh prompts: {result['fresh_prompts']}"
    )
    own = result["client_overhead_s"]
    if "p99" in own:
        print(
            f"  client's own overhead: p99 {value(own['p99'])} ms over {own['n']} events, arrivals within "
            f"{value(own['arrival_p99'])} ms (p99) of schedule at {own['rate']:g} requests/s",
            flush=True,
        )


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write the document whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.resolve().parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1, ensure_ascii=False, allow_nan=False)
    os.replace(name, path)


def shapes(text: str) -> list[float]:
    """Numbers above 0, separated by commas."""
    found = [float(part) for part in text.split(",")]
    if not all(value > 0 and math.isfinite(value) for value in found):
        raise ValueError(text)
    return found


def slo_of_bundle() -> dict[str, float]:
    """[slo] of the bundle.toml above, where there is one."""
    try:
        import tomllib

        return dict(tomllib.loads((HERE.parent / "bundle.toml").read_text(encoding="utf-8")).get("slo", {}))
    except (ImportError, OSError, ValueError):
        return {}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    slo, above = slo_of_bundle(), HERE.parent / "model"
    default_model = above if above.is_dir() else HERE.parent / "reference" / "model"
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://localhost:8000", help="the server (default %(default)s)")
    p.add_argument(
        "--endpoint",
        default="/v1/chat/completions",
        help="/v1/chat/completions or /v1/completions (default %(default)s)",
    )
    p.add_argument(
        "--rate", type=float, default=8.0, help="open loop: requests a second, Poisson (default %(default)s)"
    )
    p.add_argument(
        "--duration",
        type=float,
        default=60.0,
        help="seconds of sending; what is in flight then is awaited (default 60)",
    )
    p.add_argument(
        "--burstiness", type=shapes, default=[1.0, 0.25], metavar="SHAPE[,SHAPE]",
        help="of the arrivals: shape of the gaps' gamma distribution; 1 is Poisson, below it they come in bursts; several "
        "take an equal part of the time each (default 1)",
    )  # fmt: skip
    p.add_argument(
        "--allow-refusals", action="store_true",
        help="an answer with status 429 is a refusal: it keeps no SLO and is slower than any other, but is no failure",
    )  # fmt: skip
    p.add_argument(
        "--long-concurrency",
        type=int,
        default=0,
        help="of the requests in flight, so many (all but one at most) have long prompts (default %(default)s)",
    )
    p.add_argument(
        "--long-len", type=int, default=4096, help="tokens of each long prompt, exactly (default %(default)s)"
    )
    p.add_argument("--num-requests", type=int, help="send exactly so many, instead of --duration")
    p.add_argument("--max-tokens", type=int, default=48, help="output tokens of each request (default %(default)s)")
    p.add_argument("--temperature", type=float, default=0.0)
    p.add_argument("--prompt-len", type=int, default=64, help="tokens of each prompt, exactly (default %(default)s)")
    p.add_argument("--seed", type=int, default=42, help="of prompts and arrivals (default 42)")
    p.add_argument("--output-json", type=Path, help="write everything here, after each level")
    p.add_argument(
        "--concurrency", type=int, help="closed loop: exactly so many in flight; overrules --rate (default %(default)s)"
    )
    p.add_argument("--warmup", type=int, default=2, help="requests before the measurement (default 2)")
    p.add_argument("--window", type=float, help="measure exactly so many seconds, cutting off what is in flight then")
    p.add_argument(
        "--model-dir", type=Path, default=default_model, help="tokenizer and chat template (default: the bundle's)"
    )
    p.add_argument("--model", default="", help="the model's name in requests (default: the first of /v1/models)")
    p.add_argument(
        "--slo-ttft", type=float, default=slo.get("ttft_s"), help="seconds to the first token (default: bundle.toml)"
    )
    p.add_argument(
        "--slo-tpot", type=float, default=slo.get("tpot_s"), help="seconds a further token (default: bundle.toml)"
    )
    p.add_argument(
        "--sweep", nargs="+", metavar="NAME=V1,V2", help="levels: prompt-len, max-tokens, concurrency or rate"
    )
    p.add_argument(
        "--shared-prefix", type=int, default=0, help="tokens that all prompts begin with, in addition (default 0)"
    )
    p.add_argument(
        "--ask-suffix", default="", help="ends each conversation's question, such as /no_think (default: nothing)"
    )
    p.add_argument(
        "--dataset", type=Path, help="take prompts from this file, cut to --prompt-len, instead of made ones"
    )
    p.add_argument(
        "--fresh-share", type=float, default=0.25, help="share of prompts that no other run has used (default 0.25)"
    )
    p.add_argument("--fresh-seed", type=int, help="of that share, to repeat it on another server (default: drawn now)")
    p.add_argument(
        "--allow-eos", action="store_true", help="answers may end early; without it, ignore_eos is asked for"
    )
    p.add_argument("--samples", type=int, default=6, help="whole answers kept in the JSON, for the checker (default 6)")
    p.add_argument("--timeout", type=float, default=300.0, help="seconds that a request may take (default 300)")
    p.add_argument("--calibrate", type=float, default=0.6, help="seconds of calibration; 0 leaves it out (default 0.6)")
    p.add_argument(
        "--calibrate-rate", type=float, default=500.0, help="requests a second of the calibration (default 500)"
    )
    p.add_argument("--internal-fake-server", action="store_true", help=argparse.SUPPRESS)
    return p


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse what makes no sense."""
    for name in ("rate", "duration", "max_tokens", "prompt_len", "num_requests", "concurrency", "window", "timeout"):
        value = getattr(args, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be above 0")
    if args.long_concurrency and args.concurrency is None:
        raise UsageError("--long-concurrency is for a closed loop", "pass --concurrency too")
    if not 0 <= args.fresh_share <= 1:
        raise UsageError(f"--fresh-share {args.fresh_share}: must be between 0 and 1")
    if args.fresh_seed is None:
        args.fresh_seed = secrets.randbits(48)


def main() -> int:
    """Exit 0: measured, failures included; 1: no token came, or answers are implausible; 2: could not be measured."""
    args = parser().parse_args()
    if args.internal_fake_server:
        asyncio.run(fake_server())
        return 0
    try:
        check_arguments(args)
        write = (lambda document: write_json(args.output_json, document)) if args.output_json else (lambda _: None)
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(PreciseSelector())) as runner:
            document = runner.run(measure(args, write))
    except UsageError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return 2
    if document["plausibility"]["ok"] is False:
        print(f"error: the answers do not belong to their prompts: {document['plausibility']}", file=sys.stderr)
        return 1
    return 1 if document["output_tokens_per_s"] is None else 0


if __name__ == "__main__":
    sys.exit(main())
