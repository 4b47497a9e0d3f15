"""`/openapi.json`: the API described, with the request schemas written from the classes that decode them."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from .schema import ChatRequest, CompletionRequest

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {
        name: {"type": "integer", "minimum": 0} for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    },
}
_REASON = {"enum": ["stop", "length", "tool_calls"]}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"const": "assistant"},
        "content": {"type": ["string", "null"]},
        "tool_calls": {"type": "array"},
    },
}
# Of a stream, the schema is that of each event.
_EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "description": "a chunk as JSON, or [DONE]"}},
}
_REFUSALS = {
    "400": "The request is wrong; `param` names the field.",
    "404": "The model is not served here.",
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "429": "The queue is full, or the answer would begin too late; `retry-after` says when to come back.",
    "503": "Not ready yet, or shutting down.",
}


def _answer(object_name: str, choice: dict[str, Any]) -> dict[str, Any]:
    choice["required"] = ["index", "finish_reason", "logprobs", *choice["properties"]]
    choice["properties"] |= {
        "index": {"type": "integer", "minimum": 0},
        "finish_reason": _REASON,
        "logprobs": {"type": ["object", "null"]},
        "token_ids": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    }
    return {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "id": {"type": "string"},
            "object": {"const": object_name},
            "created": {"type": "integer"},
            "model": {"type": "string"},
            "system_fingerprint": {"type": "string"},
            "choices": {"type": "array", "minItems": 1, "items": {"type": "object", **choice}},
            "usage": _USAGE,
        },
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _errors(*codes: str) -> dict[str, Any]:
    error = _json({"$ref": "#/components/schemas/Error"})
    return {code: {"description": _REFUSALS[code], "content": error} for code in codes}


def _generation(request: str, answer: dict[str, Any], what: str) -> dict[str, Any]:
    content = _json(answer) | {"text/event-stream": {"schema": _EVENT}}
    return {
        "post": {
            "operationId": request,
            "summary": what,
            "requestBody": {"required": True, "content": _json({"$ref": f"#/components/schemas/{request}"})},
            "responses": {"200": {"description": what, "content": content}, **_errors(*_REFUSALS)},
        }
    }


def _get(name: str, what: str, content: dict[str, Any], *errors: str) -> dict[str, Any]:
    responses = {"200": {"description": what, "content": content}, **_errors(*errors)}
    return {"get": {"operationId": name, "summary": what, "responses": responses}}


@cache
def document() -> bytes:
    """The OpenAPI 3.1 document."""
    _, components = msgspec.json.schema_components(
        (CompletionRequest, ChatRequest), ref_template="#/components/schemas/{name}"
    )
    status = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}
    health = _get("health", "Ready to serve.", _json(status))
    health["get"]["responses"]["503"] = {"description": "Not ready.", "content": _json(status)}
    one = _get("model", "The model, if it is served.", _json({"type": "object"}), "404", "503")
    one["get"]["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    text = {"properties": {"text": {"type": "string"}}}
    paths = {
        "/v1/completions": _generation("CompletionRequest", _answer("text_completion", text), "Continue a text."),
        "/v1/chat/completions": _generation(
            "ChatRequest", _answer("chat.completion", {"properties": {"message": _MESSAGE}}), "Answer a conversation."
        ),
        "/v1/models": _get("models", "The models that are served.", _json({"type": "object"}), "503"),
        "/v1/models/{model}": one,
        "/health": health,
        "/metrics": _get(
            "metrics", "Counters in the Prometheus text format.", {"text/plain": {"schema": {"type": "string"}}}
        ),
    }
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "vibeserve engine", "version": "1"},
            "paths": paths,
            "components": {"schemas": {**components, "Error": _ERROR}},
        }
    )
