"""An in-process model behind a small HTTP server, so that the same gates apply to it: run as a script in its directory.

The candidate's class has `from_pretrained(model_dir)`, and `generate(input_ids, max_new_tokens=N)` (token ids of shape
[1, prompt] in, [1, prompt + new] out; torch tensors where torch is there, else lists) or `transcribe(audio,
sampling_rate=16000)` (float32 of shape [samples] in, text out). Requests are served one at a time, since nothing is
asked of the class beyond that.

`generate` may have more parameters, and is given what it names: `ignore_eos` (bool), `temperature` (float) with `seed`
(int or None), and `streamer`, an object with the methods of Hugging Face's streamers (`put(ids)`, first with the prompt,
then with each token, and `end()`). Without the last a stream is one event: its time to first token is its whole time.

This file imports nothing of its package: it runs in the candidate's process.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import io
import json
import sys
import time
import uuid
import wave
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

DEFAULT_MAX_TOKENS = 16
SAMPLING_RATE = 16_000


class BadRequestError(Exception):
    """What is wrong with a request, and with which field."""

    def __init__(self, message: str, param: str | None = None):
        super().__init__(message)
        self.param = param


@dataclass(frozen=True)
class Completion:
    """What was generated: token ids with the end token, text without it and before a stop string."""

    token_ids: list[int]
    text: str
    finish_reason: str
    prompt_tokens: int


@dataclass(frozen=True)
class Asked:
    """A request, read: token ids of the prompt, how many tokens at most, where to stop, what `generate` is given besides."""

    ids: list[int]
    limit: int
    stops: list[str]
    ignore_end: bool
    options: dict[str, Any]


class Streamer:
    """Hands on each token as it comes; the prompt, which comes first, is left out."""

    def __init__(self, say: Callable[[list[int]], None]):
        self.say, self.prompt = say, True

    def put(self, value: Any) -> None:
        """Ids, of any shape."""
        if not self.prompt:
            self.say(_flat(value))
        self.prompt = False

    def end(self) -> None:
        """Nothing: `generate` returns then."""


class Text:
    """Tokenizer and chat template of a model directory."""

    def __init__(self, model_dir: Path):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self.config = _json(model_dir / "tokenizer_config.json")
        self.ends = _end_ids(model_dir)
        template = model_dir / "chat_template.jinja"
        self.template = template.read_text("utf-8") if template.exists() else self.config.get("chat_template")

    def prompt_ids(self, body: dict[str, Any], chat: bool) -> list[int]:
        """The ids of a prompt: given as ids, as text, or as messages. Raises BadRequestError."""
        if chat:
            return list(self.tokenizer.encode(self._render(body.get("messages")), add_special_tokens=False).ids)
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return list(self.tokenizer.encode(prompt).ids)
        if isinstance(prompt, list) and prompt and all(type(item) is int for item in prompt):
            return prompt
        raise BadRequestError("prompt must be text or a list of token ids", "prompt")

    def _render(self, messages: Any) -> str:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if not self.template:
            raise BadRequestError("the model has no chat template", "messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise BadRequestError("messages must be a list of objects", "messages")
        tokens = {name: _content(self.config.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        try:
            return environment.from_string(self.template).render(
                messages=messages, add_generation_prompt=True, **tokens
            )
        except Exception as error:  # a template may raise whatever it likes about a message
            raise BadRequestError(f"the chat template refuses the messages: {error}", "messages") from error

    def cut(self, ids: list[int], stops: list[str], ignore_end: bool) -> tuple[list[int], str, str]:
        """(ids, text, finish_reason) up to the end token or the token that completes a stop string."""
        finish = "length"
        if not ignore_end:
            for place, token in enumerate(ids):
                if token in self.ends:
                    ids, finish = ids[: place + 1], "stop"
                    break
        text = self.decode(ids)
        if any(stop in text for stop in stops):
            count = next(n for n in range(1, len(ids) + 1) if any(stop in self.decode(ids[:n]) for stop in stops))
            ids, finish = ids[:count], "stop"
            text = self.decode(ids)
            text = text[: min(text.index(stop) for stop in stops if stop in text)]
        return ids, text, finish

    def decode(self, ids: list[int]) -> str:
        """Text of ids, without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


class Server:
    """The HTTP side of one model."""

    def __init__(self, model: Any, model_dir: Path, health: str):
        self.model, self.model_dir, self.health = model, model_dir, health
        self.text = Text(model_dir) if hasattr(model, "generate") and (model_dir / "tokenizer.json").exists() else None
        self.turn = asyncio.Lock()

    def app(self) -> Starlette:
        """Its routes."""
        return Starlette(
            routes=[
                Route(self.health, lambda request: JSONResponse({"status": "ok"})),
                Route(
                    "/v1/models",
                    lambda request: JSONResponse({"object": "list", "data": [{"id": self.model_dir.name}]}),
                ),
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.completions, methods=["POST"]),
                Route("/v1/audio/transcriptions", self.transcriptions, methods=["POST"]),
            ],
            exception_handlers={BadRequestError: _refuse},
        )

    async def completions(self, request: Request) -> Response:
        """Completions and chat completions, streamed or not."""
        chat = request.url.path.endswith("/chat/completions")
        try:
            body = json.loads(await request.body())
        except ValueError:
            raise BadRequestError("the body is not JSON") from None
        if not isinstance(body, dict):
            raise BadRequestError("the body must be an object")
        asked = self.read(body, chat)
        streamed = bool(body.get("stream"))
        kind = ("chat.completion.chunk" if streamed else "chat.completion") if chat else "text_completion"
        head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model_dir.name,
        }
        with_ids = bool(body.get("return_token_ids"))
        if not streamed:
            async with self.turn:
                done = await asyncio.to_thread(self.complete, asked)
            choice = _choice(done.token_ids, done.text, done.finish_reason, with_ids)
            choice |= {"message": {"role": "assistant", "content": choice.pop("text")}} if chat else {}
            return JSONResponse(head | {"choices": [choice], "usage": _usage(done)})

        async def events() -> AsyncIterator[bytes]:
            with_usage = (body.get("stream_options") or {}).get("include_usage")
            async for piece, whole in self.pieces(asked, with_ids):
                part = {"delta": {"role": "assistant", "content": piece.pop("text")}} if chat else {}
                yield _event(head | {"choices": [piece | part]})
                if whole is not None and with_usage:
                    yield _event(head | {"choices": [], "usage": _usage(whole)})
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def pieces(self, asked: Asked, with_ids: bool) -> AsyncIterator[tuple[dict[str, Any], Completion | None]]:
        """The choices of a stream, each with the whole completion where it is the last one."""
        loop, came = asyncio.get_running_loop(), asyncio.Queue[list[int] | None]()
        ids: list[int] = []
        sent_ids, sent = 0, ""

        def say(new: list[int]) -> None:
            loop.call_soon_threadsafe(came.put_nowait, new)

        async def generate() -> Completion:  # a task of its own: it keeps its turn to its end, whoever leaves
            async with self.turn:
                return await asyncio.to_thread(self.complete, asked, say)

        work = asyncio.create_task(generate())
        work.add_done_callback(lambda _: came.put_nowait(None))
        while (new := await came.get()) is not None:
            ids += new
            so_far, text, _ = self.text_of(ids, asked)
            text = _settled(text, asked.stops)
            if len(so_far) > sent_ids and text.startswith(sent):
                yield _choice(so_far[sent_ids:], text[len(sent) :], None, with_ids), None
                sent_ids, sent = len(so_far), text
        done = await work
        yield _choice(done.token_ids[sent_ids:], done.text[len(sent) :], done.finish_reason, with_ids), done

    def text_of(self, ids: list[int], asked: Asked) -> tuple[list[int], str, str]:
        """(ids, text, finish_reason) of what has come, up to where the request ends. Raises BadRequestError."""
        if self.text is None:
            raise BadRequestError("this model does not complete text: it has no generate(), or no tokenizer.json")
        return self.text.cut(ids[: asked.limit], asked.stops, asked.ignore_end)

    def read(self, body: dict[str, Any], chat: bool) -> Asked:
        """One request. Raises BadRequestError."""
        if self.text is None:
            raise BadRequestError("this model does not complete text: it has no generate(), or no tokenizer.json")
        limit = body.get("max_completion_tokens", body.get("max_tokens", DEFAULT_MAX_TOKENS))
        if type(limit) is not int or limit < 1:
            raise BadRequestError("max_tokens must be an integer above 0", "max_tokens")
        options: dict[str, Any] = {}
        temperature = body.get("temperature")
        if temperature not in (None, 0, 0.0):
            if type(temperature) not in (int, float) or temperature < 0:
                raise BadRequestError("temperature must be a number of at least 0", "temperature")
            if not (_names(self.model.generate, "temperature") and _names(self.model.generate, "seed")):
                raise BadRequestError(
                    "this in-process model generates greedily (its generate() takes no temperature and seed): "
                    "temperature must be 0",
                    "temperature",
                )
            options |= {"temperature": float(temperature), "seed": body.get("seed")}
        if body.get("ignore_eos"):
            if not _takes(self.model.generate, "ignore_eos"):
                raise BadRequestError("generate() of this model takes no ignore_eos", "ignore_eos")
            options["ignore_eos"] = True
        stops = body.get("stop") or []
        stops = [stops] if isinstance(stops, str) else list(stops)
        return Asked(self.text.prompt_ids(body, chat), limit, stops, bool(body.get("ignore_eos")), options)

    def complete(self, asked: Asked, say: Callable[[list[int]], None] | None = None) -> Completion:
        """Generate for one request; `say` is told each token as it comes, where the class can."""
        options = asked.options
        if say is not None and _names(self.model.generate, "streamer"):
            options = options | {"streamer": Streamer(say)}
        output = self.model.generate(_batch(asked.ids), max_new_tokens=asked.limit, **options)
        ids, text, finish = self.text_of(_flat(output)[len(asked.ids) :], asked)
        return Completion(ids, text, finish, len(asked.ids))

    async def transcriptions(self, request: Request) -> Response:
        """One WAV file, as the form field `file`, to text."""
        if not hasattr(self.model, "transcribe"):
            raise BadRequestError("this model has no transcribe()")
        async with request.form() as form:
            upload = form.get("file")
            if upload is None or isinstance(upload, str):
                raise BadRequestError("file is missing", "file")
            audio = _samples(await upload.read())
        async with self.turn:
            text = await asyncio.to_thread(self.model.transcribe, audio, sampling_rate=SAMPLING_RATE)
        return JSONResponse({"text": text})


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _choice(ids: list[int], text: str, finish_reason: str | None, with_ids: bool) -> dict[str, Any]:
    return {"index": 0, "finish_reason": finish_reason, "text": text} | ({"token_ids": ids} if with_ids else {})


def _usage(done: Completion) -> dict[str, int]:
    prompt, new = done.prompt_tokens, len(done.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def _settled(text: str, stops: list[str]) -> str:
    """The part of a growing text that further tokens cannot take back: no half character, no begun stop string."""
    text = text.rstrip("\ufffd")
    begun = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return text[: len(text) - max(begun, default=0)]


async def _refuse(request: Request, error: Exception) -> Response:
    param = error.param if isinstance(error, BadRequestError) else None
    said = {"message": str(error), "type": "invalid_request_error", "param": param, "code": None}
    return JSONResponse({"error": said}, status_code=400)


def _samples(data: bytes) -> Any:
    """Samples of a 16-bit mono WAV file at 16 kHz, float32 in [-1, 1]. Raises BadRequestError."""
    import numpy as np

    try:
        with wave.open(io.BytesIO(data)) as file:
            shape = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise BadRequestError(f"file is no WAV file: {error}", "file") from None
    if shape != (1, 2, SAMPLING_RATE):
        raise BadRequestError(f"file must be mono, 16 bits, {SAMPLING_RATE} Hz", "file")
    return np.frombuffer(frames, dtype="<i2").astype(np.float32) / 32768.0


def _batch(ids: list[int]) -> Any:
    """Ids of shape [1, n]: a torch tensor where the candidate has brought torch in, else a list."""
    return sys.modules["torch"].tensor([ids]) if "torch" in sys.modules else [ids]


def _flat(output: Any) -> list[int]:
    """The ids of the one sequence in `output` (tensor, array or list; [1, n] or [n])."""
    values = output.tolist() if hasattr(output, "tolist") else list(output)
    return [int(value) for value in (values[0] if values and isinstance(values[0], list | tuple) else values)]


def _takes(function: Any, name: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(one.name == name or one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)


def _names(function: Any, name: str) -> bool:
    return name in inspect.signature(function).parameters


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def _content(token: Any) -> str:
    return token.get("content", "") if isinstance(token, dict) else token or ""


def _end_ids(model_dir: Path) -> set[int]:
    for name in ("generation_config.json", "config.json"):
        found = _json(model_dir / name).get("eos_token_id")
        if found is not None:
            return set(found) if isinstance(found, list) else {found}
    return set()


def main() -> int:
    """Load the class, then serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", required=True, help="module:Class, in the current directory")
    parser.add_argument("--health", default="/health")
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    sys.path.insert(0, str(Path.cwd()))
    module, _, name = args.model.partition(":")
    model = getattr(importlib.import_module(module), name).from_pretrained(str(args.model_dir))
    if not hasattr(model, "generate") and not hasattr(model, "transcribe"):
        print(f"{args.model} has neither generate() nor transcribe()", file=sys.stderr)
        return 1

    import uvicorn

    app = Server(model, args.model_dir, args.health).app()
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning", timeout_graceful_shutdown=5)
    return 0


if __name__ == "__main__":
    sys.exit(main())
