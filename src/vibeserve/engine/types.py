"""The types that every part of the engine shares: what is asked, what comes back, and the limits between."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal

from .errors import RequestError

FinishReason = Literal["stop", "length", "abort", "error"]
MAX_LOGPROBS = 20
PRIORITY_STEP_S = 2.0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token of one request is chosen.

    `temperature` 0 is greedy: the lowest id among the largest logits. Otherwise, in this order: penalties and bias,
    temperature, top-k, top-p, min-p, one draw. The draw depends on `seed` and the token's index alone, never on the
    batch; `seed` None takes a fresh one. `top_k` 0 and `top_p` 1 are off. `logprobs` asks for that many alternatives
    beside each sampled token (0: the sampled one only), from the model's own logits before penalties and temperature.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: bool = False

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise RequestError(entry.name, f"{entry.name} must be finite, is {value}")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise RequestError(name, f"{name} must be between {low:g} and {high:g}, is {value:g}")
        if self.repetition_penalty <= 0:
            raise RequestError("repetition_penalty", "repetition_penalty must be greater than 0")
        if self.top_p <= 0:
            raise RequestError("top_p", "top_p must be greater than 0")
        if self.min_tokens > self.max_tokens:
            raise RequestError("min_tokens", f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")

    @property
    def greedy(self) -> bool:
        """Whether the choice is the largest logit."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def plain(self) -> bool:
        """Whether the choice needs nothing but the largest of the model's own logits."""
        return self.greedy and not self.adjusts and self.logprobs is None

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before the choice."""
        return bool(
            self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.min_tokens
        )


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("top_k", 0, 2**31 - 1),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.0, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("seed", -(2**63), 2**64 - 1),
    ("max_tokens", 1, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("logprobs", 0, MAX_LOGPROBS),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to be continued. `arrival` is a `time.perf_counter()` reading; None means "when it is added".

    `prediction_ids` is what the answer is expected to be like: it changes the time that it takes, never the answer.
    `grammar` is what the answer must keep to, in the form of `constraints.grammar_of`; empty means anything.
    `priority`: lower is sooner. A request counts as if it had come that many times `PRIORITY_STEP_S` later, so nobody waits
    for ever.
    """

    id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival: float | None = None
    prediction_ids: tuple[int, ...] = ()
    grammar: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of one token, and the likeliest alternatives (id, logprob), best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """What one step gave one request.

    `token_ids` are new since the last output, the end token included; `logprobs` runs beside them where it was asked
    for. `prompt_logprobs` comes once, with the first output: one entry a prompt token, None for the first.
    `cached_tokens` counts prompt tokens that were taken from the prefix cache. `error` explains a reason of "error".
    `accepted_prediction_tokens` and `rejected_prediction_tokens` count tokens of the request's prediction that were
    verified so far, by whether the answer has them.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason | None
    prompt_tokens: int
    cached_tokens: int
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    error: str | None = None
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    complete: bool = False
    """The reason is "stop" because the grammar is complete: the last token is a part of the text."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask of this engine."""

    max_model_len: int
    """Prompt and answer together, in tokens: the model's own limit or what the KV blocks can hold, whichever is less."""
    vocab_size: int
    max_logprobs: int
    max_waiting: int
    eos_token_ids: tuple[int, ...]
    constrained: bool = False
    """Whether answers may have to keep to a grammar."""
