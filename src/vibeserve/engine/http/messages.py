"""A conversation as chat templates expect it: content as one text, calls and results of tools in their places."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from .errors import invalid, unsupported
from .schema import ContentPart, Message
from .tools import call_text, told

ROLES = ("system", "developer", "user", "assistant", "tool")


class CalledFunction(msgspec.Struct, kw_only=True):
    """The function of a call; `arguments` is JSON in a text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A call that an earlier answer made."""

    id: str
    function: CalledFunction
    type: str = "function"


def conversation(
    given: Sequence[Message], tools: Sequence[dict[str, Any]], *, knows_tools: bool
) -> list[dict[str, Any]]:
    """The messages for a template. Raises ApiError that names the message.

    A template that does not know of tools is told of them in the system message, of calls in the assistant's words, and of
    results in the user's.
    """
    shown = [_message(message, at, knows_tools) for at, message in enumerate(given)]
    if tools and not knows_tools:
        if shown and shown[0]["role"] == "system":
            shown[0]["content"] = f"{shown[0]['content']}\n\n{told(tools)}"
        else:
            shown.insert(0, {"role": "system", "content": told(tools)})
    return shown


def _message(message: Message, at: int, knows_tools: bool) -> dict[str, Any]:
    where = f"messages[{at}]"
    if message.function_call not in (None, []):
        raise unsupported(f"{where}.function_call", "`function_call`, which `tool_calls` replaced,")
    if message.role == "function":
        raise unsupported(f"{where}.role", "The role `function`, which `tool` replaced,")
    if message.role not in ROLES:
        raise invalid(f"`{where}.role` is {message.role!r}; it must be one of {', '.join(ROLES)}.", f"{where}.role")
    calls = _calls(message, where)
    if message.content is None and message.role != "assistant":
        raise invalid(f"`{where}.content` is required.", f"{where}.content", "missing_required_parameter")
    if message.role == "tool" and not isinstance(message.tool_call_id, str):
        raise invalid(f"`{where}.tool_call_id` is required.", f"{where}.tool_call_id", "missing_required_parameter")
    shown: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    shown["content"] = content_text(message.content, f"{where}.content")
    if message.name is not None:
        shown["name"] = message.name
    if knows_tools:
        if calls:
            shown["tool_calls"] = [_as_object(call) for call in calls]
        if message.role == "tool":
            shown["tool_call_id"] = message.tool_call_id
        return shown
    if calls:
        written = "\n".join([call_text(call.function.name, call.function.arguments) for call in calls])
        shown["content"] = f"{shown['content']}\n{written}" if shown["content"] else written
    if message.role == "tool":
        shown = {"role": "user", "content": f"<tool_response>\n{shown['content']}\n</tool_response>"}
    return shown


def _calls(message: Message, where: str) -> list[ToolCall]:
    if message.tool_calls in (None, []):
        return []
    if message.role != "assistant":
        raise invalid(f"`{where}.tool_calls` is for the assistant's messages.", f"{where}.tool_calls")
    try:
        return msgspec.convert(message.tool_calls, list[ToolCall])
    except msgspec.ValidationError as error:
        raise invalid(f"`{where}.tool_calls` is wrong: {error}.", f"{where}.tool_calls", "invalid_type") from error


def _as_object(call: ToolCall) -> dict[str, Any]:
    """A call with its arguments as an object, where they are one: so templates write them."""
    try:
        arguments = json.loads(call.function.arguments)
    except ValueError:
        arguments = call.function.arguments
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def content_text(content: str | Sequence[ContentPart] | None, where: str) -> str:
    """A message's content as one text. Raises ApiError for parts that are no text."""
    if content is None or isinstance(content, str):
        return content or ""
    for at, part in enumerate(content):
        if part.type != "text":
            raise unsupported(f"{where}[{at}].type", f"A content part of type {part.type[:40]!r}")
        if part.text is None:
            raise invalid(f"`{where}[{at}].text` is required.", f"{where}[{at}].text")
    return "".join([part.text or "" for part in content])
