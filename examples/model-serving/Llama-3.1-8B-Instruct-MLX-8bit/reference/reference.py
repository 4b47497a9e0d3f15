"""The reference server: the model by mlx-lm, masked by llguidance, behind the OpenAI API, one request at a time.

    python reference.py --model-dir model --host 127.0.0.1 --port 8000
    python reference.py --prompt "What is the capital of France?"

This is what a user has on day one: a model, a cache, one token after another, and a queue. Nothing in it is slowed down on
purpose. Requests wait for their turn in the order in which they came. Weights in MLX's own form (quantised) are run by mlx-lm,
any other checkpoint by transformers.

With `response_format` of type json_object or json_schema, each token is chosen among those that the schema allows, one after
another: nothing is appended without being chosen. An answer ends when its value is complete. JSON has one layout here: `, `
between items, `: ` after keys, no other white space.
"""

from __future__ import annotations

import argparse
import json
import select
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DEFAULT_MAX_TOKENS = 256
PREFILL = 2048  # tokens of a prompt in one pass of MLX
MAX_BODY_BYTES = 16 << 20


class ApiError(Exception):
    """An error in OpenAI's shape: HTTP status, message, and the field (`param`) that it is about."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass
class Request:
    """One generation: the prompt's ids and everything that decides about the answer."""

    prompt_ids: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    n: int = 1
    grammar: str = ""


# ---------------------------------------------------------------------------------------------------- the model


class Answer:
    """Text and ids of an answer while it grows: emits text that is whole UTF-8 and can no longer become a stop string."""

    def __init__(self, decode: Callable[[list[int]], str], stop: list[str]):
        self._decode = decode
        self._stop = stop
        self.ids: list[int] = []
        self.text = ""
        self.sent = 0
        self.stopped = False

    def add(self, token: int) -> str:
        """Take one token; returns the text that may be sent now."""
        self.ids.append(token)
        self.text = self._decode(self.ids)
        ends = [at for at in (self.text.find(stop) for stop in self._stop) if at >= 0]
        if ends:
            self.text, self.stopped = self.text[: min(ends)], True
            return self._until(len(self.text))
        held = len(self.text) - len(self.text.rstrip("\ufffd"))  # bytes of a character that is not whole yet
        for stop in self._stop:
            for size in range(min(len(stop), len(self.text)), 0, -1):
                if self.text.endswith(stop[:size]):
                    held = max(held, size)
                    break
        return self._until(len(self.text) - held)

    def rest(self) -> str:
        """What was held back, when nothing more will come."""
        return self._until(len(self.text))

    def _until(self, end: int) -> str:
        piece = self.text[self.sent : end]
        self.sent = max(self.sent, end)
        return piece


class Walk:
    """One answer's way through its grammar: the mask before each token, and whether anything may follow."""

    def __init__(self, matcher: Any, vocabulary: int):
        import numpy as np

        self._numpy, self._matcher, self._vocabulary = np, matcher, vocabulary
        self._bits = np.zeros(-(-vocabulary // 32), dtype=np.int32)

    def allowed(self) -> Any:
        """Which tokens may come next: booleans [vocabulary]."""
        np = self._numpy
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            raise ApiError(f"the grammar failed: {self._matcher.get_error()}", "response_format", 500)
        return np.unpackbits(self._bits.view(np.uint8), count=self._vocabulary, bitorder="little").astype(bool)

    def take(self, token: int) -> bool:
        """The answer went on with this token; returns whether it is complete."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())


class Grammars:
    """The vocabulary as llguidance sees it."""

    def __init__(self, folder: Path, vocabulary: int, ends: set[int]):
        from llguidance import LLTokenizer

        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self._vocabulary = vocabulary
        self._tokenizer = LLTokenizer(text, n_vocab=vocabulary, eos_token=sorted(ends) or None)

    def grammar(self, wanted: Any) -> str:
        """The grammar of a `response_format`; empty for plain text. An ApiError (400) where no answer can keep to it."""
        from llguidance import LLMatcher

        if wanted is None or wanted == {"type": "text"}:
            return ""
        kind = wanted.get("type") if isinstance(wanted, dict) else None
        if kind == "json_object":
            schema: Any = {"type": "object"}
        elif kind == "json_schema":
            block = wanted.get("json_schema")
            schema = block.get("schema") if isinstance(block, dict) else None
        else:
            raise ApiError("'response_format.type' must be text, json_object or json_schema", "response_format")
        if not isinstance(schema, dict):
            raise ApiError("'response_format.json_schema.schema' must be an object", "response_format")
        layout = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        try:
            grammar = str(LLMatcher.grammar_from_json_schema(schema, overrides=layout))
            hopeless = not self.walk(grammar).allowed().any()
        except (ValueError, ApiError) as error:
            raise ApiError(f"the schema cannot be used: {str(error).splitlines()[0]}", "response_format") from None
        if hopeless:
            raise ApiError("no answer can keep to this schema", "response_format")
        return grammar

    def walk(self, grammar: str) -> Walk:
        """A grammar at its beginning. Raises ValueError for one that is none."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(str(matcher.get_error()))
        return Walk(matcher, self._vocabulary)


def best_device(torch: Any) -> str:
    """The accelerator that torch sees, else the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


class Model:
    """Tokenizer and model, as transformers loads them."""

    def __init__(self, folder: Path, trust_remote_code: bool = False, device: str = "cpu", dtype: str = "float32"):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch = torch
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
        ).eval()
        self.device = best_device(torch) if device == "auto" else device
        self.model.to(self.device)
        ends = self.model.generation_config.eos_token_id
        self.end_ids = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
        self.context = int(getattr(self.model.config, "max_position_embeddings", 0) or 1 << 30)
        self.vocab = int(self.model.config.vocab_size)
        self.grammars = Grammars(folder, self.vocab, self.end_ids)
        # One thread generates, so that requests take turns in the order in which they came; a thread for each would
        # give each its own pool of OpenMP threads, which slows all of them down.
        self.turns = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generate")
        self.stopping = threading.Event()

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def chat_ids(self, messages: list[dict[str, str]]) -> list[int]:
        """The prompt of a conversation by the model's chat template."""
        if not self.tokenizer.chat_template:
            raise ApiError("this model has no chat template; use /v1/completions", "messages")
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def generate(
        self, request: Request, seed: int | None, emit: Callable[[str, list[int]], None], gone: Callable[[], bool]
    ) -> tuple[Answer, str]:
        """Generate one answer, calling `emit(text, new ids)` for each token; returns it and its finish reason."""
        torch, answer = self.torch, Answer(self.decode, request.stop)
        options: dict[str, Any] = {"max_new_tokens": request.max_tokens, "do_sample": request.temperature > 0}
        if request.temperature > 0:
            options |= {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k}
            torch.manual_seed(seed) if seed is not None else torch.seed()
        if request.ignore_eos:
            options["eos_token_id"] = None
        options["pad_token_id"] = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0

        walk = self.grammars.walk(request.grammar) if request.grammar else None
        complete = False
        if walk is not None:
            options["logits_processor"] = [
                lambda _ids, scores: scores.masked_fill(
                    ~torch.from_numpy(walk.allowed()).to(scores.device), float("-inf")
                )
            ]

        def step(ids: Any, _scores: Any, **_: Any) -> Any:
            nonlocal complete
            token = int(ids[0, -1])
            complete = walk is not None and walk.take(token)
            # The end token has no text; the text after a stop string is not the client's.
            piece = answer.add(token)
            emit(piece, [token])
            return torch.tensor([answer.stopped or complete or gone()], dtype=torch.bool, device=self.device)

        prompt = torch.tensor([request.prompt_ids], device=self.device)
        with torch.inference_mode():
            self.model.generate(prompt, attention_mask=torch.ones_like(prompt), stopping_criteria=[step], **options)
        if rest := ("" if answer.stopped else answer.rest()):
            emit(rest, [])
        ended = (
            answer.stopped
            or complete
            or (not request.ignore_eos and bool(answer.ids) and answer.ids[-1] in self.end_ids)
        )
        return answer, "stop" if ended else "length"


class MlxModel(Model):
    """A model whose weights are in MLX's own form, as mlx-lm loads it."""

    def __init__(self, folder: Path, trust_remote_code: bool = False):
        import mlx.core as mx
        import mlx_lm

        self.mx = mx
        self.model, wrapper = mlx_lm.load(str(folder), tokenizer_config={"trust_remote_code": trust_remote_code})
        self.tokenizer = wrapper._tokenizer
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.device = "mlx"
        self.end_ids = set(wrapper.eos_token_ids)
        self.context = int(config.get("max_position_embeddings", 0) or 1 << 30)
        self.vocab = int(config["vocab_size"])
        self.grammars = Grammars(folder, self.vocab, self.end_ids)
        self.turns = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generate")
        self.stopping = threading.Event()

    def generate(
        self, request: Request, seed: int | None, emit: Callable[[str, list[int]], None], gone: Callable[[], bool]
    ) -> tuple[Answer, str]:
        """Generate one answer, calling `emit(text, new ids)` for each token; returns it and its finish reason."""
        from mlx_lm.models.cache import make_prompt_cache
        from mlx_lm.sample_utils import make_sampler

        mx, answer = self.mx, Answer(self.decode, request.stop)
        if request.temperature > 0 and seed is not None:
            mx.random.seed(seed % 2**63)
        sampler = make_sampler(temp=request.temperature, top_p=request.top_p, top_k=request.top_k)
        walk = self.grammars.walk(request.grammar) if request.grammar else None
        cache, new, reason = make_prompt_cache(self.model), list(request.prompt_ids), "length"
        for start in range(0, len(new) - 1, PREFILL):  # all but the last token
            self.model(mx.array([new[start : min(start + PREFILL, len(new) - 1)]]), cache=cache)
            mx.eval([layer.state for layer in cache])
        new = new[-1:]
        for _ in range(request.max_tokens):
            scores = self.model(mx.array([new]), cache=cache)[:, -1, :].astype(mx.float32)
            if walk is not None:
                scores = mx.where(mx.array(walk.allowed()), scores[:, : self.vocab], -float("inf"))
            token = int(sampler(scores - mx.logsumexp(scores, axis=-1, keepdims=True)).item())
            new, complete = [token], walk is not None and walk.take(token)
            emit(answer.add(token), [token])
            if answer.stopped or complete or (token in self.end_ids and not request.ignore_eos):
                reason = "stop"
                break
            if gone():
                break
        if rest := ("" if answer.stopped else answer.rest()):
            emit(rest, [])
        return answer, reason


def load(folder: Path, trust_remote_code: bool, device: str, dtype: str) -> Model:
    """By mlx-lm where the config says that the weights are in its form, else by transformers."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "group_size" in (config.get("quantization") or {}):
        return MlxModel(folder, trust_remote_code)
    return Model(folder, trust_remote_code, device, dtype)


# ---------------------------------------------------------------------------------------------------- the API


def number(body: dict[str, Any], name: str, default: Any, low: float, high: float, whole: bool = False) -> Any:
    """A number out of the body; an ApiError that names the field where it is none, or out of range."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise ApiError(f"'{name}' must be {'an integer' if whole else 'a number'}", name)
    if not low <= value <= high:
        raise ApiError(f"'{name}' must be between {low:g} and {high:g}, not {value}", name)
    return value


def flag(body: dict[str, Any], name: str) -> bool:
    """A boolean out of the body."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(f"'{name}' must be true or false", name)
    return bool(value)


def parse_stop(body: dict[str, Any]) -> list[str]:
    """`stop` as a list."""
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or not all(isinstance(item, str) and item for item in stops):
        raise ApiError("'stop' must be a string or a list of strings, none empty", "stop")
    if len(stops) > 16:
        raise ApiError("'stop' may hold at most 16 strings", "stop")
    return stops


def parse_messages(body: dict[str, Any]) -> list[dict[str, str]]:
    """`messages` with plain text contents."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError("'messages' must be a list with at least one message", "messages")
    plain = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise ApiError(f"'{where}' must be an object", where)
        if message.get("role") not in ("system", "developer", "user", "assistant", "tool"):
            raise ApiError(f"'{where}.role' must be system, user or assistant", f"{where}.role")
        content = message.get("content")
        if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
            content = "".join(part["text"] for part in content)
        if not isinstance(content, str):
            raise ApiError(f"'{where}.content' must be a string, or a list of text parts", f"{where}.content")
        plain.append({"role": message["role"], "content": content})
    return plain


def parse_prompt(body: dict[str, Any], model: Model) -> list[int]:
    """`prompt`: a string, or a list of token ids."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        ids = list(model.tokenizer(prompt)["input_ids"])
    elif isinstance(prompt, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
        ids = list(prompt)
        if any(not 0 <= item < model.vocab for item in ids):
            raise ApiError(f"'prompt' holds ids outside 0..{model.vocab - 1}", "prompt")
    else:
        raise ApiError("'prompt' must be a string or a list of token ids (one prompt a request)", "prompt")
    if not ids:
        raise ApiError("'prompt' must not be empty", "prompt")
    return ids


def parse_request(body: Any, chat: bool, model: Model, name: str) -> Request:
    """A request out of a JSON body; raises ApiError that names the field."""
    if not isinstance(body, dict):
        raise ApiError("the body must be a JSON object")
    wanted = body.get("model")
    if wanted is not None and not isinstance(wanted, str):
        raise ApiError("'model' must be a string", "model")
    if wanted is not None and wanted != name:
        raise ApiError(
            f"the model '{wanted}' does not exist; this server has '{name}'", "model", 404, "model_not_found"
        )
    for unsupported in ("logprobs", "top_logprobs", "echo", "suffix", "tools", "best_of"):
        if body.get(unsupported) not in (None, False, 0, 1 if unsupported == "best_of" else None):
            raise ApiError(f"'{unsupported}' is not supported by the reference server", unsupported)
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ApiError("'stream_options' must be an object", "stream_options")
    ids = model.chat_ids(parse_messages(body)) if chat else parse_prompt(body, model)
    limit = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    room = model.context - len(ids)
    if room < 1:
        raise ApiError(
            f"the prompt has {len(ids)} tokens; this model's context holds {model.context}, answer included",
            "messages" if chat else "prompt", code="context_length_exceeded",
        )  # fmt: skip
    asked = number(body, limit, None, 1, float("inf"), whole=True)
    if asked is not None and asked > room:
        raise ApiError(
            f"'{limit}' is {asked}, but the prompt's {len(ids)} tokens leave room for {room}", limit,
            code="context_length_exceeded",
        )  # fmt: skip
    return Request(
        prompt_ids=ids,
        max_tokens=asked if asked is not None else min(room, DEFAULT_MAX_TOKENS if chat else 16),
        temperature=float(number(body, "temperature", 1.0, 0, 2)),
        top_p=float(number(body, "top_p", 1.0, 1e-6, 1)),
        top_k=max(0, number(body, "top_k", 0, -1, model.vocab, whole=True)),
        seed=number(body, "seed", None, -(2**63), 2**63 - 1, whole=True),
        stop=parse_stop(body),
        ignore_eos=flag(body, "ignore_eos"),
        stream=flag(body, "stream"),
        include_usage=flag(options or {}, "include_usage"),
        return_token_ids=flag(body, "return_token_ids"),
        n=number(body, "n", 1, 1, 16, whole=True),
        grammar=model.grammars.grammar(body.get("response_format")),
    )


class Handler(BaseHTTPRequestHandler):
    """One connection; its requests wait in the model's queue."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    model: Model
    name: str
    started: int

    def log_message(self, *_: Any) -> None:  # the access log would be most of the output
        pass

    def do_GET(self) -> None:
        path = self.path.split("?")[0].rstrip("/")
        if path == "/health":
            self.send_json(200, {"status": "ok"})
        elif path == "/v1/models":
            self.send_json(200, {"object": "list", "data": [self.card()]})
        elif path == f"/v1/models/{self.name}":
            self.send_json(200, self.card())
        else:
            self.send_json(404, ApiError(f"no such path: {path}", status=404).body)

    def do_POST(self) -> None:
        path = self.path.split("?")[0].rstrip("/")
        self.head_sent = False
        try:
            raw = self.read_body()
            if path not in ("/v1/completions", "/v1/chat/completions"):
                raise ApiError(f"no such path: {path}", status=404)
            try:
                body = json.loads(raw)
            except ValueError as error:
                raise ApiError(f"the body is not JSON: {error}") from None
            chat = path.endswith("chat/completions")
            self.answer(parse_request(body, chat, self.model, self.name), chat)
        except ApiError as error:
            self.send_json(error.status, error.body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception as error:  # a client always gets an answer; the log gets the cause
            print(f"reference: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            self.close_connection = True
            if not self.head_sent:
                self.send_json(500, ApiError("the server failed on this request", status=500).body)

    def read_body(self) -> bytes:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self.close_connection = True
            raise ApiError("Content-Length is needed", status=411) from None
        if not 0 <= length <= MAX_BODY_BYTES:
            self.close_connection = True
            raise ApiError(f"the body is larger than {MAX_BODY_BYTES} bytes", status=413)
        return self.rfile.read(length)

    def card(self) -> dict[str, Any]:
        return {
            "id": self.name, "object": "model", "created": self.started, "owned_by": "reference",
            "max_model_len": self.model.context,
        }  # fmt: skip

    def gone(self) -> bool:
        """Whether the answer is no longer wanted: the client's side is closed with nothing left to read, or we stop."""
        if self.model.stopping.is_set():
            return True
        try:
            ready, _, _ = select.select([self.connection], [], [], 0)
            return bool(ready) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True

    def answer(self, request: Request, chat: bool) -> None:
        base = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": ("chat.completion" if chat else "text_completion")
            + (".chunk" if chat and request.stream else ""),
            "created": int(time.time()),
            "model": self.name,
        }

        def work() -> list[tuple[Answer, str]]:
            if self.gone():
                return []
            return self.stream(request, chat, base) if request.stream else self.collect(request)

        answers = self.model.turns.submit(work).result()
        generated = sum(len(answer.ids) for answer, _ in answers)
        usage = {
            "prompt_tokens": len(request.prompt_ids),
            "completion_tokens": generated,
            "total_tokens": len(request.prompt_ids) + generated,
        }
        if self.gone():
            self.close_connection = True
        elif request.stream:
            if request.include_usage:
                self.send_event({**base, "choices": [], "usage": usage})
            self.send_chunk(b"data: [DONE]\n\n")
            self.send_chunk(b"")
        else:
            choices = [self.choice(i, answer, reason, request, chat) for i, (answer, reason) in enumerate(answers)]
            self.send_json(200, {**base, "choices": choices, "usage": usage})

    def seeds(self, request: Request) -> Iterator[tuple[int, int | None]]:
        for index in range(request.n):
            yield index, None if request.seed is None else (request.seed + index) % 2**63

    def collect(self, request: Request) -> list[tuple[Answer, str]]:
        return [self.model.generate(request, seed, lambda *_: None, self.gone) for _, seed in self.seeds(request)]

    def choice(self, index: int, answer: Answer, reason: str, request: Request, chat: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": answer.text}} if chat else {"text": answer.text}
        if request.return_token_ids:
            choice |= {"token_ids": answer.ids, "prompt_token_ids": request.prompt_ids}
        return choice

    def stream(self, request: Request, chat: bool, base: dict[str, Any]) -> list[tuple[Answer, str]]:
        self.send_response(200)
        for header in (
            ("Content-Type", "text/event-stream"),
            ("Cache-Control", "no-cache"),
            ("Transfer-Encoding", "chunked"),
        ):
            self.send_header(*header)
        self.end_headers()
        self.head_sent = True
        lost = False

        def event(index: int, text: str, ids: list[int], reason: str | None, **delta: str) -> None:
            nonlocal lost
            choice: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": None}
            choice |= {"delta": {**delta, **({"content": text} if text or delta else {})}} if chat else {"text": text}
            if request.return_token_ids:
                choice["token_ids"] = ids
            try:
                if not lost:
                    self.send_event({**base, "choices": [choice]})
            except OSError:
                lost = True

        answers = []
        for index, seed in self.seeds(request):
            if chat:
                event(index, "", [], None, role="assistant")
            emit = lambda text, ids, index=index: event(index, text, ids, None)  # noqa: E731
            answer, reason = self.model.generate(request, seed, emit, lambda: lost or self.gone())
            event(index, "", [], reason)
            answers.append((answer, reason))
        return answers

    def send_event(self, event: dict[str, Any]) -> None:
        self.send_chunk(f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode())

    def send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def send_json(self, status: int, value: Any) -> None:
        data = json.dumps(value, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """Connections have a thread each; a full backlog must not turn clients away."""

    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, *_: Any) -> None:  # a client that breaks off is no news
        pass


def serve(model: Model, name: str, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    handler = type("BoundHandler", (Handler,), {"model": model, "name": name, "started": int(time.time())})
    server = Server((host, port), handler)

    def stop(*_: Any) -> None:
        model.stopping.set()
        threading.Thread(target=server.shutdown, daemon=True).start()

    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, stop)
    print(f"reference: {name} on http://{host}:{server.server_address[1]}", file=sys.stderr, flush=True)
    server.serve_forever(poll_interval=0.1)
    server.server_close()
    model.turns.shutdown(cancel_futures=True)


def default_model_dir() -> Path:
    """`model` beside this file; `../model` where it exists."""
    above = HERE.parent / "model"
    return above if above.is_dir() else HERE / "model"


def model_name() -> str:
    """The model's id by meta.json."""
    try:
        return str(json.loads((HERE / "meta.json").read_text(encoding="utf-8"))["model_id"])
    except (OSError, ValueError, KeyError):
        return "reference"


def main() -> int:
    """Answer one prompt, or serve."""
    parser = argparse.ArgumentParser(description="the model behind the OpenAI API, one request at a time")
    parser.add_argument(
        "--model-dir", type=Path, default=default_model_dir(), help="directory with safetensors and tokenizer"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--device", default="auto", help="of transformers: cpu, cuda, mps, or auto (default %(default)s)"
    )
    parser.add_argument(
        "--dtype", default="float32", choices=("float32", "bfloat16", "float16"), help="(default %(default)s)"
    )
    parser.add_argument("--prompt", help="answer this once, greedily, and end")
    parser.add_argument("--max-tokens", type=int, default=DEFAULT_MAX_TOKENS, help="with --prompt: tokens at most")
    parser.add_argument(
        "--raw", action="store_true", help="with --prompt: continue the text, without the chat template"
    )
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that the model brings along")
    args = parser.parse_args()
    if not (args.model_dir / "config.json").is_file():
        print(f"error: no model in {args.model_dir}\nhint: vibeserve materialize {HERE.parent}", file=sys.stderr)
        return 2
    model = load(args.model_dir, args.trust_remote_code, args.device, args.dtype)
    if args.prompt is None:
        serve(model, model_name(), args.host, args.port)
        return 0
    chat = bool(model.tokenizer.chat_template) and not args.raw
    ids = (
        model.chat_ids([{"role": "user", "content": args.prompt}])
        if chat
        else list(model.tokenizer(args.prompt)["input_ids"])
    )
    request = Request(ids, args.max_tokens, temperature=0.0)
    model.generate(request, None, lambda text, _: print(text, end="", flush=True), lambda: False)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
