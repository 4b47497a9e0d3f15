"""Answers as bytes: the two shapes of the API, whole and as server-sent events.

A chunk is written from parts that are encoded once per request; only what is new is encoded per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ..tokenizer import Tokenizer
from ..types import TokenLogprobs
from .choices import Choice, Delta, ScoredToken
from .plan import Plan, ServedModel

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


def usage_of(choices: Sequence[Choice], plan: Plan) -> dict[str, Any]:
    """Token counts of a whole request: each prompt once, all its answers."""
    prompt = sum(len(prompt.ids) for prompt in plan.prompts)
    completion = sum(choice.completion_tokens for choice in choices)
    cached = sum(choice.cached_tokens for choice in choices[:: plan.n])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            # A stop string may have cut off tokens that were accepted.
            "accepted_prediction_tokens": sum(
                min(choice.accepted_prediction_tokens, choice.completion_tokens) for choice in choices
            ),
            "rejected_prediction_tokens": sum(choice.rejected_prediction_tokens for choice in choices),
        },
    }


class Wire:
    """The shape of one request's answer: what chat and completions share."""

    object_name = ""
    chunk_name = ""
    id_prefix = ""

    def __init__(self, request_id: str, created_s: int, model: ServedModel, plan: Plan):
        self.id = self.id_prefix + request_id
        self._plan = plan
        self._tokenizer: Tokenizer = model.tokenizer
        self._common: dict[str, Any] = {
            "id": self.id,
            "object": "",
            "created": created_s,
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }
        head = encode(self._common | {"object": self.chunk_name})[:-1]
        self._head = b"data: " + head + b',"choices":[{"index":'
        self._usage_head = b"data: " + head + b',"choices":[],"usage":'
        # Where usage was asked for, every other chunk says that it has none.
        self._tail = b'}],"usage":null}\n\n' if plan.include_usage else b"}]}\n\n"

    def opening(self, choice: Choice) -> bytes:
        """What goes before a choice's first delta."""
        return b""

    def chunk(self, choice: Choice, delta: Delta, usage: dict[str, Any] | None = None) -> bytes:
        """One event with what is new in a choice; empty where there is nothing that the client asked to see."""
        shows_ids = delta.token_ids and (self._plan.return_token_ids or delta.scored)
        if not delta.text and delta.finish_reason is None and not shows_ids:
            return b""
        tail = self._tail if usage is None else b'}],"usage":' + encode(usage) + b"}\n\n"
        return self._head + b"%d," % choice.index + self._delta_body(choice, delta) + tail

    def last(self, choices: Sequence[Choice]) -> bytes:
        """What ends the stream: usage where it was asked for, and `[DONE]`."""
        if not self._plan.include_usage:
            return DONE
        return self._usage_head + encode(usage_of(choices, self._plan)) + b"}\n\n" + DONE

    def whole(self, choices: Sequence[Choice], deltas: Sequence[Sequence[Delta]]) -> bytes:
        """The answer in one piece."""
        listed = [self._choice(choice, joined(parts)) for choice, parts in zip(choices, deltas, strict=True)]
        return encode(
            self._common | {"object": self.object_name, "choices": listed, "usage": usage_of(choices, self._plan)}
        )

    def _delta_body(self, choice: Choice, delta: Delta) -> bytes:
        raise NotImplementedError

    def _choice(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        raise NotImplementedError

    def _extras(self, delta: Delta, logprobs: Any) -> bytes:
        """The fields after the text, the same in both shapes."""
        parts = [b',"logprobs":', encode(logprobs) if logprobs is not None else b"null"]
        if self._plan.return_token_ids:
            parts += [b',"token_ids":', encode(delta.token_ids)]
        reason = delta.finish_reason
        parts += [b',"finish_reason":', b"null" if reason is None else encode(reason)]
        return b"".join(parts)


def joined(deltas: Sequence[Delta]) -> Delta:
    """All deltas of a choice as one."""
    scored = [entry for delta in deltas for entry in delta.scored or ()]
    ids = tuple(token for delta in deltas for token in delta.token_ids)
    keep = any(delta.scored is not None for delta in deltas)
    return Delta("".join([delta.text for delta in deltas]), ids, scored if keep else None, deltas[-1].finish_reason)


class ChatWire(Wire):
    """`chat.completion` and `chat.completion.chunk`."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def opening(self, choice: Choice) -> bytes:
        """The role comes alone, before any text."""
        body = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        return self._head + b"%d," % choice.index + body + self._tail

    def chunk(self, choice: Choice, delta: Delta, usage: dict[str, Any] | None = None) -> bytes:
        """The reason of the end comes in an event of its own, after the last text."""
        if delta.finish_reason is None or not delta.text:
            return super().chunk(choice, delta, usage)
        text = replace(delta, finish_reason=None)
        end = Delta("", (), None, delta.finish_reason)
        return super().chunk(choice, text, usage) + super().chunk(choice, end, usage)

    def _delta_body(self, choice: Choice, delta: Delta) -> bytes:
        content = b'{"content":' + encode(delta.text) + b"}" if delta.text else b"{}"
        return b'"delta":' + content + self._extras(delta, self._logprobs(delta.scored))

    def _choice(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        listed: dict[str, Any] = {
            "index": choice.index,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": self._logprobs(delta.scored),
            "finish_reason": delta.finish_reason,
        }
        if self._plan.return_token_ids:
            listed["token_ids"] = delta.token_ids
        return listed

    def _logprobs(self, scored: Sequence[ScoredToken] | None) -> dict[str, Any] | None:
        if not scored:
            return None
        return {"content": [self._scored(entry.token_id, entry.logprobs) for entry in scored], "refusal": None}

    def _scored(self, token_id: int, logprobs: TokenLogprobs | None) -> dict[str, Any]:
        entry = self._entry(token_id, logprobs.logprob if logprobs else 0.0)
        entry["top_logprobs"] = [self._entry(*pair) for pair in (logprobs.top if logprobs else ())]
        return entry

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        shown = self._tokenizer.token_bytes[token_id]
        return {"token": shown.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(shown)}


class CompletionWire(Wire):
    """`text_completion`, whole and in chunks."""

    object_name = "text_completion"
    chunk_name = "text_completion"
    id_prefix = "cmpl-"

    def _delta_body(self, choice: Choice, delta: Delta) -> bytes:
        return b'"text":' + encode(delta.text) + self._extras(delta, self._logprobs(delta.scored))

    def _choice(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        listed: dict[str, Any] = {
            "index": choice.index,
            "text": delta.text,
            "logprobs": self._logprobs(delta.scored),
            "finish_reason": delta.finish_reason,
        }
        if self._plan.return_token_ids:
            listed["token_ids"] = delta.token_ids
        return listed

    def _logprobs(self, scored: Sequence[ScoredToken] | None) -> dict[str, Any] | None:
        if scored is None:
            return None
        return {
            "tokens": [self._name(entry.token_id) for entry in scored],
            "token_logprobs": [finite(entry.logprobs.logprob) if entry.logprobs else None for entry in scored],
            "top_logprobs": [self._top(entry.logprobs) for entry in scored],
            "text_offset": [entry.offset for entry in scored],
        }

    def _top(self, logprobs: TokenLogprobs | None) -> dict[str, float] | None:
        """The likeliest tokens by name, and the sampled one where it is not among them."""
        if logprobs is None:
            return None
        found: dict[str, float] = {}
        for token_id, logprob in (*logprobs.top, (logprobs.token_id, logprobs.logprob)):
            found.setdefault(self._name(token_id), finite(logprob))
        return found

    def _name(self, token_id: int) -> str:
        """A token as text, or its bytes where it is only a part of a character."""
        shown = self._tokenizer.token_bytes[token_id]
        try:
            return shown.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join([f"\\x{byte:02x}" for byte in shown])


def finite(logprob: float) -> float:
    """JSON has no infinity: what is impossible gets the lowest value that the API uses."""
    return max(logprob, -9999.0)
