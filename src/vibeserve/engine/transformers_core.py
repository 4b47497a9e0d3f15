"""The engine's interface over any causal language model that transformers can run: for families the engine lacks.

A prompt is computed alone, as it is, so that recurrent layers (hybrids) see no padding. Its cache then joins the batch:
keys and values are padded on the left to a common length and masked, recurrent states are stacked. Each step decodes one
token of every sequence. `batching = "off"` keeps one sequence at a time; greedy answers in float32 are then exactly those
of `generate`. In a batch they are those up to the rounding of products over more rows, which transformers' stock
kernels do not keep equal: a near tie may then fall the other way.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections import deque
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from .batch import Floats
from .cache_rows import RowCache, joinable
from .errors import RequestError, SettingsError, UnsupportedModelError
from .prompt_cache import PromptCache
from .sampling import Choice, choose, draw, logprobs_of
from .sequence import Sequence
from .settings import Settings
from .stats import PHASES, Counters, Stats
from .types import MAX_LOGPROBS, FinishReason, Limits, Output, Request, SamplingParams, TokenLogprobs

log = logging.getLogger(__name__)
BATCHING = ("continuous", "static", "off")
PROMPT_CACHE_BYTES = 1 << 30
APART = {"float32": 1e-3, "bfloat16": 5e-2}  # of the logits' length: rounding stays far below, another state far above
BLOCK_TOKENS = 16  # the cache has no blocks; its size is told in these, as the engine's own is


@dataclass(frozen=True, slots=True)
class TransformersSettings:
    """The `[transformers]` table of `engine.toml`; that it is there chooses this core.

    - `batching`: `continuous` admits a request whenever a place is free, `static` when the whole batch has ended,
      `off` one at a time. Dtype, batch size, context and threads are those of `[engine]`.
    - `prefix_cache`: beginnings that prompts share are computed once (see `prompt_cache`), where the model, tried at
      the start, goes on from a cache as if it had computed all at once.
    """

    batching: str = "continuous"
    prefix_cache: bool = False

    def __post_init__(self) -> None:
        if self.batching not in BATCHING:
            raise SettingsError(f"batching must be one of {', '.join(BATCHING)}, is {self.batching!r}")
        if not isinstance(self.prefix_cache, bool):
            raise SettingsError(f"prefix_cache must be true or false, is {self.prefix_cache!r}")


def transformers_settings_from(table: dict[str, Any], where: str = "[transformers]") -> TransformersSettings:
    """Read the table strictly. Raises SettingsError."""
    known = [entry.name for entry in fields(TransformersSettings)]
    for key in table:
        if key not in known:
            raise SettingsError(f"{where} has an unknown key {key!r}", f"known keys: {', '.join(known)}")
    return TransformersSettings(**table)


class TransformersCore:
    """A model of transformers behind `EngineCore`'s interface. Not thread-safe; see `EngineThread`."""

    def __init__(self, model_dir: Path, settings: Settings, own: TransformersSettings) -> None:
        """Load the model. Raises UnsupportedModelError where transformers cannot, or only by running remote code."""
        torch.set_num_threads(settings.thread_count)
        self.settings = settings
        self._model = _load(model_dir, settings.dtype)
        self._forward = _Forward(self._model)
        config = self._model.config.get_text_config()
        length = settings.max_model_len or getattr(config, "max_position_embeddings", 0) or 0
        if length <= 0:
            raise SettingsError("the model does not say how long its context is", "set max_model_len in [engine]")
        self.limits = Limits(length, config.vocab_size, MAX_LOGPROBS, settings.max_waiting, _eos_ids(self._model))
        self._batching = self._agree(own.batching)
        self._places = 1 if self._batching == "off" else settings.max_batch
        self._waiting: deque[Sequence] = deque()
        self._rows: list[Sequence] = []
        self._cache: RowCache | None = None
        self._why_no_prefixes = "set so" if not own.prefix_cache else self._cannot_go_on()
        self._prompts = None if self._why_no_prefixes else PromptCache(settings.kv_memory_bytes or PROMPT_CACHE_BYTES)
        self._leaving: list[Output] = []
        self._counters = Counters(dict.fromkeys((*PHASES, "forward"), 0.0))

    def _agree(self, wanted: str) -> str:
        """Batching needs caches that can be put side by side: a family that has others is served one at a time."""
        cache = self._forward.new_cache()
        self._forward.run([[0]], cache, None)
        self._why_alone = "" if wanted != "off" else "set so"
        if wanted != "off" and not joinable(cache):
            kinds = sorted({type(layer).__name__ for layer in cache.layers})
            self._why_alone = f"the cache has layers that cannot be joined: {', '.join(kinds)}"
            log.warning("requests are served one at a time: %s", self._why_alone)
            return "off"
        return wanted

    def _cannot_go_on(self) -> str:
        """Why a prompt cannot be computed in two parts, tried with one that is; "" where it can.

        Some families start anew where more than one token follows a cache. Rounding differs a little between the two ways.
        """
        generator = np.random.default_rng(0)
        tokens = generator.integers(0, self.limits.vocab_size, min(48, self.limits.max_model_len)).tolist()
        whole = self._forward.run([tokens], self._forward.new_cache(), None)[0, 0]
        cache, half = self._forward.new_cache(), len(tokens) // 2
        self._forward.run([tokens[:half]], cache, None)
        try:
            parts = self._forward.run([tokens[half:]], copy.deepcopy(cache), None)[0, 0]
        except (ValueError, RuntimeError, IndexError, TypeError) as error:
            why = f"the model cannot go on from a cache: {str(error).splitlines()[0]}"
        else:
            apart = float(np.linalg.norm(parts - whole) / np.linalg.norm(whole))
            if apart <= APART[self.settings.dtype]:
                return ""
            why = f"the model goes on from a cache with other results ({apart:.1%} apart)"
        log.warning("no prefixes are shared: %s", why)
        return why

    def check(self, request: Request) -> None:
        """Raise RequestError where the request cannot be served as asked. Safe from any thread."""
        prompt, limits = request.prompt_ids, self.limits
        if not prompt:
            raise RequestError("prompt", "the prompt is empty")
        for name, ids in (
            ("prompt", prompt),
            ("stop_token_ids", request.params.stop_token_ids),
            ("logit_bias", tuple(token for token, _ in request.params.logit_bias)),
        ):
            if ids and not 0 <= min(ids) <= max(ids) < limits.vocab_size:
                raise RequestError(name, f"{name} has a token id outside the vocabulary of {limits.vocab_size}")
        if len(prompt) + request.params.max_tokens > limits.max_model_len:
            message = f"{len(prompt)} prompt tokens and max_tokens {request.params.max_tokens} exceed the context"
            raise RequestError("max_tokens", f"{message} of {limits.max_model_len}")

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError."""
        self.check(request)
        self._waiting.append(Sequence(request, perf_counter() if request.arrival is None else request.arrival))

    def abort(self, request_id: str) -> None:
        """Give a request up; its last output comes with the next step. Unknown ids are ignored."""
        for sequence in list(self._waiting):
            if sequence.id == request_id:
                self._waiting.remove(sequence)
                self._leaving.append(self._output(sequence, (), None, "abort"))
        for row, sequence in enumerate(self._rows):
            if sequence.id == request_id:
                self._leaving.append(self._output(sequence, (), None, "abort"))
                self._keep([other for other in range(len(self._rows)) if other != row])
                break

    def abort_all(self) -> list[Output]:
        """Give every request up, now."""
        for request_id in self.request_ids():
            self.abort(request_id)
        leaving, self._leaving = self._leaving, []
        return leaving

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._rows or self._leaving)

    def request_ids(self) -> list[str]:
        """Requests that have not finished."""
        return [sequence.id for sequence in (*self._waiting, *self._rows)]

    def step(self) -> list[Output]:
        """Decode one token of every sequence, then admit: one request, or a whole batch where it is static."""
        began = perf_counter()
        seconds = self._counters.seconds
        before = seconds["forward"] + seconds["sampling"]
        outputs, self._leaving = self._leaving, []
        computed = len(self._rows)
        admitting = self._admissible()
        if self._rows:
            outputs += self._decode()
        for sequence in admitting:
            outputs.append(self._prefill(sequence))
        self._counters.steps += bool(computed or admitting)
        self._counters.batch_rows += computed + len(admitting)
        seconds["other"] += perf_counter() - began - (seconds["forward"] + seconds["sampling"] - before)
        return outputs

    def _admissible(self) -> list[Sequence]:
        """Who may start in this step."""
        free = self._places - len(self._rows)
        if self._batching == "static":
            free = 0 if self._rows else free
        else:
            free = min(free, 1)
        return [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]

    def _prefill(self, sequence: Sequence) -> Output:
        """Compute a prompt alone and sample its first token; its cache joins the batch."""
        counters = self._counters
        counters.admitted += 1
        counters.queue_wait_s += perf_counter() - sequence.arrival
        counters.prompt_tokens += sequence.prompt_tokens
        scored = sequence.request.params.prompt_logprobs
        began = perf_counter()
        if self._prompts is None or scored:  # every token's logits are wanted: nothing can be left out
            cache = self._forward.new_cache()
            logits = self._forward.run([sequence.tokens], cache, None, every=scored)[0]
        else:
            logits, cache = self._go_on(self._prompts, sequence)
        counters.prefix_hit_tokens += sequence.cached_tokens
        counters.prefill_tokens += sequence.prompt_tokens - sequence.cached_tokens
        counters.seconds["forward"] += perf_counter() - began
        if scored:
            top = sequence.request.params.logprobs or 0
            following = enumerate(sequence.tokens[1:])
            sequence.prompt_logprobs = [None, *(logprobs_of(logits[at], token, top) for at, token in following)]
        output = self._append(sequence, self._choose([sequence], logits[-1:])[0])
        if output.finish_reason is None:
            joining = RowCache(cache, [sequence.prompt_tokens])
            self._cache = joining if self._cache is None else self._cache.join(joining)
            self._rows.append(sequence)
        return output

    def _go_on(self, prompts: PromptCache, sequence: Sequence) -> tuple[Any, Any]:
        """(logits of the last token, cache) of a prompt, from the longest beginning that is known."""
        tokens = sequence.tokens
        known, cache = prompts.longest(tokens)
        sequence.cached_tokens = known
        cache = cache or self._forward.new_cache()
        if stop := prompts.shared(tokens, known):
            self._forward.run([tokens[known:stop]], cache, None)
            prompts.keep(tokens[:stop], cache)
            known = stop
        return self._forward.run([tokens[known:]], cache, None)[0], cache

    def _decode(self) -> list[Output]:
        """One token for each sequence; those that end leave."""
        assert self._cache is not None
        began = perf_counter()
        tokens = [[sequence.tokens[-1]] for sequence in self._rows]
        logits = self._forward.run(tokens, self._cache.cache, self._cache.lengths)
        self._cache.grown()
        self._counters.seconds["forward"] += perf_counter() - began
        self._counters.decode_tokens += len(tokens)
        chosen = self._choose(self._rows, logits[:, -1])
        outputs = [self._append(sequence, one) for sequence, one in zip(self._rows, chosen, strict=True)]
        self._keep([row for row, output in enumerate(outputs) if output.finish_reason is None])
        return outputs

    def _choose(self, sequences: list[Sequence], logits: Floats) -> list[Choice]:
        """The next token of each sequence from its row of logits."""
        began = perf_counter()
        wanted = [(sequence, row) for row, sequence in enumerate(sequences)]
        best = logits.argmax(axis=1).astype(np.int32)
        chosen = choose(wanted, logits, best, self.limits.eos_token_ids, _draw_all)
        self._counters.seconds["sampling"] += perf_counter() - began
        return chosen

    def _append(self, sequence: Sequence, chosen: Choice) -> Output:
        """Take a token and say what became of the request."""
        params, token = sequence.request.params, chosen.token
        sequence.tokens.append(token)
        sequence.token_counts[token] = sequence.token_counts.get(token, 0) + 1
        self._counters.output_tokens += 1
        ends = token in params.stop_token_ids or (not params.ignore_eos and token in self.limits.eos_token_ids)
        reason: FinishReason | None = "length" if sequence.sampled >= params.max_tokens else None
        if ends and sequence.sampled >= params.min_tokens:
            reason = "stop"
        return self._output(sequence, (token,), None if chosen.logprobs is None else (chosen.logprobs,), reason)

    def _output(
        self,
        sequence: Sequence,
        token_ids: tuple[int, ...],
        entries: tuple[TokenLogprobs, ...] | None,
        reason: FinishReason | None,
    ) -> Output:
        scored = sequence.prompt_logprobs if sequence.sampled == len(token_ids) == 1 else None
        if reason is not None:
            self._counters.finished[reason] += 1
        return Output(
            sequence.id,
            token_ids,
            entries,
            reason,
            sequence.prompt_tokens,
            sequence.cached_tokens,
            None if scored is None else tuple(scored),
        )

    def _keep(self, rows: list[int]) -> None:
        """Drop every other row."""
        if len(rows) < len(self._rows):
            self._rows = [self._rows[row] for row in rows]
            self._cache = self._cache.select(rows) if self._cache is not None and rows else None

    def stats(self) -> Stats:
        """A snapshot of the counters. Safe from any thread."""
        counters = {name: getattr(self._counters, name) for name in self._counters.__slots__}
        counters |= {"seconds": dict(self._counters.seconds), "finished": dict(self._counters.finished)}
        held = sum(sequence.prompt_tokens + sequence.sampled for sequence in list(self._rows))
        return Stats(
            **counters,
            running=len(self._rows),
            waiting=len(self._waiting),
            max_batch=self._places,
            kv_blocks_used=-(-held // BLOCK_TOKENS),
            kv_blocks_cached=-(-self._prompts.held_tokens // BLOCK_TOKENS) if self._prompts else 0,
            kv_blocks_total=self._places * -(-self.limits.max_model_len // BLOCK_TOKENS),
            features={
                "kv_cache": True,
                "continuous_batching": self._batching == "continuous",
                "static_batching": self._batching == "static",
                "bfloat16": self.settings.dtype == "bfloat16",
                "prefix_cache": self._prompts is not None,
            },
            info={
                "backend": "transformers",
                "family": self._model.config.model_type,
                "dtype": self.settings.dtype,
                "batching": self._batching,
                "one_at_a_time_because": self._why_alone,
                "no_prefix_cache_because": self._why_no_prefixes,
            },
        )

    def add_idle(self, seconds: float) -> None:
        """Count time in which there was nothing to do."""
        self._counters.seconds["idle"] += seconds

    def welcome(self, request: Request) -> None:
        """Everybody is welcome: there are no latency targets here."""

    def rest(self) -> None:
        """Called when the engine falls idle: nothing may be held."""
        assert self._cache is None, "the batch is empty but its cache is not"

    def close(self) -> None:
        """Free the model."""
        self._cache = None


def _draw_all(logits: Floats, rows: list[int], how: list[SamplingParams], points: list[float]) -> list[int]:
    """Random rows one by one; see `choose`."""
    return [draw(logits[row], one, point) for row, one, point in zip(rows, how, points, strict=True)]


class _Forward:
    """Calls the model, whatever names its forward has for what every model takes."""

    def __init__(self, model: Any):
        self._model = model
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._takes_keep = "logits_to_keep" in names
        self._takes_positions = "position_ids" in names

    def new_cache(self) -> Any:
        """An empty cache of this model's kind."""
        from transformers import DynamicCache

        return DynamicCache(config=self._model.config.get_text_config())

    @torch.inference_mode()
    def run(self, tokens: list[list[int]], cache: Any, lengths: list[int] | None, *, every: bool = False) -> Any:
        """Logits [rows, positions, vocabulary] as float32 NumPy; only the last position unless `every`.

        `lengths`: real tokens that each row has in the cache, whose rows are padded on the left to the longest; None for
        a prompt alone.
        """
        given: dict[str, Any] = {"input_ids": torch.tensor(tokens), self._cache_name: cache, "use_cache": True}
        if lengths is not None and len(lengths) > 1:
            longest = max(lengths)
            places = torch.arange(longest + 1)
            starts = torch.tensor([longest - length for length in lengths])
            given["attention_mask"] = (places[None] >= starts[:, None]).long()
            if self._takes_positions:
                given["position_ids"] = torch.tensor(lengths)[:, None]
        if self._takes_keep and not every:
            given["logits_to_keep"] = 1
        logits = self._model(**given).logits
        return (logits if every else logits[:, -1:]).float().numpy()


def _load(model_dir: Path, dtype: str) -> Any:
    """The model, from local files, without remote code."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as their_logging

    their_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False
        )
    except (ValueError, KeyError, OSError, ImportError) as error:
        first = str(error).strip().split("\n")[0]
        raise UnsupportedModelError(
            f"transformers cannot load {model_dir} as a causal language model: {first}",
            "remote code of a model is never run here",
        ) from error
    return model.eval()


def _eos_ids(model: Any) -> tuple[int, ...]:
    found: set[int] = set()
    for source in (model.config.get_text_config(), model.generation_config):
        given = getattr(source, "eos_token_id", None)
        found |= {given} if isinstance(given, int) else set(given or ())
    return tuple(sorted(found))
