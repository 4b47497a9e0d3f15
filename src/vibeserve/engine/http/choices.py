"""One answer while it grows: ids become text, stop strings end it, and what is new goes out as a delta."""

from __future__ import annotations

from dataclasses import dataclass

from ..detokenize import Detokenizer
from ..stop import StopMatcher
from ..tokenizer import Tokenizer
from ..types import Output, TokenLogprobs
from .plan import Plan, Prompt


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its log-probability and where its text begins, in characters of the whole answer."""

    token_id: int
    offset: int
    logprobs: TokenLogprobs | None


@dataclass(slots=True)
class Delta:
    """What is new in one choice. `text` may be empty while characters or stop strings are incomplete."""

    text: str
    token_ids: tuple[int, ...]
    scored: list[ScoredToken] | None
    finish_reason: str | None = None


class Choice:
    """The state of one answer. Feed it outputs; `finish_reason` is set when it is complete.

    The answer may be complete before the engine knows it (a stop string was seen): the caller then aborts the request.
    """

    __slots__ = (
        "_detokenizer", "_echo", "_keep", "_matcher", "_min_tokens", "_offset", "_scored",
        "accepted_prediction_tokens", "cached_tokens", "completion_tokens", "failure", "finish_reason", "index", "prompt",
        "rejected_prediction_tokens",
    )  # fmt: skip

    def __init__(self, index: int, prompt: Prompt, plan: Plan, tokenizer: Tokenizer):
        self.index = index
        self.prompt = prompt
        self.finish_reason: str | None = None
        self.failure: str | None = None
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.accepted_prediction_tokens = 0
        self.rejected_prediction_tokens = 0
        self._detokenizer: Detokenizer = tokenizer.detokenizer(skip_special_tokens=plan.skip_special_tokens)
        self._matcher = StopMatcher(plan.stops) if plan.stops else None
        self._min_tokens = plan.params.min_tokens
        self._keep = not plan.nothing_to_sample
        self._echo = prompt.text if plan.echo else None
        self._scored = plan.params.logprobs is not None
        self._offset = 0

    def push(self, output: Output) -> Delta | None:
        """Take what a step gave. None where nothing is to be said (or after the end)."""
        if self.finish_reason is not None:
            return None
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        self.accepted_prediction_tokens = output.accepted_prediction_tokens
        self.rejected_prediction_tokens = output.rejected_prediction_tokens
        if output.finish_reason in ("error", "abort"):
            self.finish_reason = output.finish_reason
            self.failure = output.error or "the request was given up by the server"
            return None
        delta = Delta("", (), [] if self._scored else None)
        if self._echo is not None:
            self._say_prompt(delta, output)
        if not self._keep:
            self.finish_reason = delta.finish_reason = "length"
            return delta
        if self._matcher is None and not self._scored:
            self._take(delta, output)
        else:
            self._take_one_by_one(delta, output)
        return delta

    def only_prompt(self) -> Delta:
        """The answer where nothing is sampled and nothing scored: the engine is not needed."""
        self.finish_reason = "length"
        return Delta(self._echo or "", (), [] if self._scored else None, "length")

    def _say_prompt(self, delta: Delta, output: Output) -> None:
        """The prompt goes out before the first token, with its log-probabilities where they were asked for."""
        delta.text, self._echo = self._echo or "", None
        if delta.scored is not None and output.prompt_logprobs is not None:
            ids = self.prompt.ids
            offset = 0
            for token, logprobs in zip(ids, output.prompt_logprobs, strict=True):
                delta.scored.append(ScoredToken(token, offset, logprobs))
                offset += len(self._detokenizer.push((token,)))
            self._detokenizer.flush()
        self._offset = len(delta.text)

    def _take(self, delta: Delta, output: Output) -> None:
        """The common case: no stop strings, no log-probabilities."""
        ids = output.token_ids
        delta.token_ids = ids
        self.completion_tokens += len(ids)
        if output.finish_reason is None:
            delta.text += self._detokenizer.push(ids)
            return
        shown = ids[:-1] if output.finish_reason == "stop" and not output.complete else ids
        delta.text += self._detokenizer.push(shown) + self._detokenizer.flush()
        self.finish_reason = delta.finish_reason = output.finish_reason

    def _take_one_by_one(self, delta: Delta, output: Output) -> None:
        """Token by token, to know which one completes a stop string and where each begins."""
        last = len(output.token_ids) - 1
        pieces = []
        taken = 0
        for at, token in enumerate(output.token_ids):
            taken += 1
            self.completion_tokens += 1
            if delta.scored is not None:
                logprobs = output.logprobs[at] if output.logprobs is not None else None
                delta.scored.append(ScoredToken(token, self._offset, logprobs))
            if at == last and output.finish_reason == "stop" and not output.complete:
                break  # the token that ends the answer is no part of its text
            pieces.append(self._match(self._detokenizer.push((token,))))
            if self._matcher is not None and self._matcher.stopped:
                break
        stopped = self._matcher is not None and self._matcher.stopped
        if not stopped and output.finish_reason is not None:
            pieces.append(self._match(self._detokenizer.flush()))
            stopped = self._matcher is not None and self._matcher.stopped
            if self._matcher is not None:
                pieces.append(self._matcher.flush())
        delta.token_ids = output.token_ids[:taken]
        delta.text += "".join(pieces)
        self.finish_reason = delta.finish_reason = "stop" if stopped else output.finish_reason

    def _match(self, text: str) -> str:
        """What of a new piece may be shown. Stop strings count only once `min_tokens` are there."""
        self._offset += len(text)
        if self._matcher is None or self.completion_tokens <= self._min_tokens:
            return text
        return self._matcher.push(text)
