"""A server whose engine is a double: tokens come from a rule instead of a model. Everything around it is the real thing.

The rule: a prompt that begins with "say:" is answered with the rest of it, then the end token; any other with a chain of
ids that depends on the prompt, the seed and the position alone. Runs as a script, or in a test's own process.
"""

from __future__ import annotations

import argparse
import json
import logging
import socket
import sys
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from vibeserve.engine.errors import RequestError
from vibeserve.engine.http.server import listen, serve
from vibeserve.engine.http.settings import HttpSettings, http_settings_from
from vibeserve.engine.serve import served_model
from vibeserve.engine.settings import Settings
from vibeserve.engine.stats import Counters, Stats
from vibeserve.engine.thread import EngineThread
from vibeserve.engine.tokenizer import Tokenizer
from vibeserve.engine.types import Limits, Output, Request, TokenLogprobs

BLOCK = 16


@dataclass
class Row:
    """A request that is being answered."""

    request: Request
    reply: list[int] | None
    out: list[int] = field(default_factory=list)


class FakeCore:
    """`EngineCore`'s interface with a rule for a model. `step_s` is what a step takes."""

    def __init__(self, tokenizer: Tokenizer, *, step_s: float = 0.0, max_batch: int = 8, max_waiting: int = 64,
                 max_model_len: int = 512, fail_at_step: int = 0):  # fmt: skip
        self.settings = Settings(max_batch=max_batch, max_waiting=max_waiting)
        self.limits = Limits(max_model_len, tokenizer.size, 20, max_waiting, tuple(sorted(tokenizer.eos_ids)))
        self._tokenizer = tokenizer
        self._step_s = step_s
        self._fail_at_step = fail_at_step
        self._waiting: list[Request] = []
        self._rows: list[Row] = []
        self._aborted: set[str] = set()
        self.counters = Counters()

    def check(self, request: Request) -> None:
        if len(request.prompt_ids) + request.params.max_tokens > self.limits.max_model_len:
            raise RequestError("max_tokens", "prompt and answer are longer than the context")

    def welcome(self, request: Request) -> None:
        pass

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        if request_id in self.request_ids():
            self._aborted.add(request_id)

    def abort_all(self) -> list[Output]:
        self._aborted |= set(self.request_ids())
        return self._drop_aborted()

    def has_work(self) -> bool:
        return bool(self._waiting or self._rows)

    def request_ids(self) -> list[str]:
        return [request.id for request in self._waiting] + [row.request.id for row in self._rows]

    def step(self) -> list[Output]:
        self.counters.steps += 1
        if self._fail_at_step and self.counters.steps >= self._fail_at_step:
            raise RuntimeError("the double was told to fail")
        outputs = self._drop_aborted()
        while self._waiting and len(self._rows) < self.settings.max_batch:
            request = self._waiting.pop(0)
            text = self._tokenizer.decode(request.prompt_ids)
            self._rows.append(Row(request, self._reply(text)))
            self.counters.admitted += 1
        if self._step_s:
            time.sleep(self._step_s)
        for row in list(self._rows):
            outputs.append(self._next(row))
            if outputs[-1].finish_reason is not None:
                self._rows.remove(row)
                self.counters.finished[outputs[-1].finish_reason] += 1
        return outputs

    def _reply(self, text: str) -> list[int] | None:
        if "say:" not in text:
            return None
        wanted = text.split("say:", 1)[1].split("<|", 1)[0]
        wanted = wanted.removesuffix("\nassistant\n")
        return [*self._tokenizer.encode(wanted, add_special_tokens=False), min(self.limits.eos_token_ids)]

    def _drop_aborted(self) -> list[Output]:
        outputs = [Output(name, (), None, "abort", 0, 0) for name in self.request_ids() if name in self._aborted]
        self._waiting = [request for request in self._waiting if request.id not in self._aborted]
        self._rows = [row for row in self._rows if row.request.id not in self._aborted]
        self.counters.finished["abort"] += len(outputs)
        self._aborted.clear()
        return outputs

    def _next(self, row: Row) -> Output:
        params = row.request.params
        first = not row.out
        token = self._token(row)
        row.out.append(token)
        self.counters.output_tokens += 1
        ends = token in (*(() if params.ignore_eos else self.limits.eos_token_ids), *params.stop_token_ids)
        reason = "stop" if ends else "length" if len(row.out) >= params.max_tokens else None
        scored = None if params.logprobs is None else (self._scored(token, params.logprobs),)
        prompt = None
        if params.prompt_logprobs and first:
            ids = row.request.prompt_ids
            prompt = (None, *(self._scored(entry, params.logprobs or 0) for entry in ids[1:]))
        return Output(row.request.id, (token,), scored, reason, len(row.request.prompt_ids), 0, prompt)

    def _token(self, row: Row) -> int:
        params, at = row.request.params, len(row.out)
        biased = [token for token, bias in params.logit_bias if bias >= 100]
        if biased:
            return biased[0]
        if row.reply is not None and at < len(row.reply):
            return row.reply[at]
        seed = 0 if params.temperature == 0 else params.seed or 0
        draw = zlib.crc32(f"{row.request.prompt_ids}{seed}{row.out[-2:]}{at}".encode())
        if draw % 40 == 0 and at >= params.min_tokens and not params.ignore_eos:
            return min(self.limits.eos_token_ids)
        while draw % self.limits.vocab_size in self._tokenizer.special_ids:
            draw += 1
        return draw % self.limits.vocab_size

    def _scored(self, token: int, top: int) -> TokenLogprobs:
        others = [(token + at) % self.limits.vocab_size for at in range(top)]
        return TokenLogprobs(token, -0.5, tuple((other, -0.5 - at) for at, other in enumerate(others)))

    def stats(self) -> Stats:
        counters = {name: getattr(self.counters, name) for name in self.counters.__slots__}
        used = sum(-(-(len(row.request.prompt_ids) + len(row.out)) // BLOCK) for row in list(self._rows))
        return Stats(**counters, running=len(self._rows), waiting=len(self._waiting), max_batch=self.settings.max_batch,
                     kv_blocks_used=used, kv_blocks_cached=0, kv_blocks_total=1024,
                     features={"continuous_batching": True}, info={"backend": "double"})  # fmt: skip

    def add_idle(self, seconds: float) -> None:
        self.counters.seconds["idle"] += seconds

    def rest(self) -> None:
        assert not self._rows

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--core", type=json.loads, default={})
    parser.add_argument("--http", type=json.loads, default={})
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--fail-to-load", action="store_true")
    parser.add_argument("--send-buffer", type=int, default=0, help="a small one makes a slow reader felt early")
    arguments = parser.parse_args()
    http: HttpSettings = http_settings_from(arguments.http)

    def load(on_step):
        time.sleep(arguments.load_s)
        if arguments.fail_to_load:
            raise RuntimeError("the double was told not to load")
        tokenizer = Tokenizer.load(arguments.model_dir)
        engine = EngineThread(FakeCore(tokenizer, **arguments.core), on_step)
        return engine, served_model(arguments.model_dir, tokenizer, engine.limits, {}, http)

    listener = listen("127.0.0.1", arguments.port)
    if arguments.send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, arguments.send_buffer)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    sys.exit(serve(load, http, listener))


if __name__ == "__main__":
    main()
