"""What a request may carry: the fields of the OpenAI API with their types and ranges, and the usual extras.

msgspec decodes and checks in one pass, and writes the JSON schema of `/openapi.json` from the same classes. Checks that
need the model (its context, its vocabulary) are in `validate`.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from .errors import ApiError, invalid

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
StopText = Annotated[str, Meta(min_length=1, max_length=1000)]
Prompt = str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]


class StreamOptions(msgspec.Struct, kw_only=True):
    """`include_usage`: one more chunk at the end, with the usage and no choices; `continuous_usage_stats`: in each."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    """One part of a message. Only text can be served."""

    type: str
    text: str | None = None


class Prediction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the answer is expected to be like. It changes the time that the answer takes, never the answer."""

    type: Literal["content"]
    content: str | list[ContentPart]


class Common(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What completions and chat completions share."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    seed: Seed | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=4)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    user: str | None = None
    prediction: Prediction | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    # Known, and refused where they ask for something (see `plan`).
    response_format: Any = None


class CompletionRequest(Common, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/completions`."""

    prompt: Prompt
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    suffix: Any = None


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: Any = None
    tool_call_id: Any = None
    function_call: Any = None


class ChatRequest(Common, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Read by `tools`.
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    # Known, and refused where they ask for something (see `plan`).
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None


T = TypeVar("T", CompletionRequest, ChatRequest)
# Fields that say nothing about the answer: taken and left alone.
HARMLESS = frozenset({"metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity"})
_AT = re.compile(r" - at (?:key in )?`\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>.*?)`(?: - at |$)", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")


def parse(body: bytes, kind: type[T]) -> T:
    """Decode a request. Raises ApiError (400) that names the field; unknown fields are refused, with the likely name."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        known = _without_harmless(body, error)
        if known is None:
            raise _field_error(str(error), kind) from error
        return parse(known, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"The request body is not valid JSON: {error}.", None, "invalid_json") from error
    except RecursionError as error:
        raise invalid("The request body is nested too deeply.", None, "invalid_json") from error


def _without_harmless(body: bytes, error: msgspec.ValidationError) -> bytes | None:
    """The same request without the fields that do not matter; None where the error is about something else."""
    found = _UNKNOWN.search(str(error))
    if found is None or found["name"] not in HARMLESS:
        return None
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None
    return msgspec.json.encode({name: value for name, value in fields.items() if name not in HARMLESS})


def _field_error(text: str, kind: type[msgspec.Struct]) -> ApiError:
    """msgspec's message as an API error: the path becomes `param`."""
    if unknown := _UNKNOWN.search(text):
        name = unknown["name"][:100]
        near = difflib.get_close_matches(name, kind.__struct_fields__, n=1)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        return invalid(f"Unknown field `{name}`.{hint}", name, "unknown_parameter")
    if missing := _MISSING.search(text):
        at = _AT.search(text)
        name = f"{at['path']}.{missing['name']}" if at else missing["name"]
        return invalid(f"`{name}` is required.", name, "missing_required_parameter")
    at = _AT.search(text)
    if at is None:
        return invalid(f"The request body is wrong: {text}.", None, "invalid_type")
    what, where = text[: at.start()], at["path"].split("[...]")[0]
    return invalid(f"`{where}` is wrong: {what[0].lower()}{what[1:]}.", where, "invalid_type")
