"""Chat answers that may call tools: the text of a call becomes `tool_calls`, whole and in chunks."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

from .choices import Choice, Delta
from .plan import Plan, ServedModel
from .tools import CallReader, Piece
from .wire import ChatWire, encode


def chat_wire(request_id: str, created_s: int, model: ServedModel, plan: Plan) -> ChatWire:
    """The shape of a chat answer."""
    kind = ChatWire if plan.tools is None else ToolWire
    return kind(request_id, created_s, model, plan)


class ToolWire(ChatWire):
    """A chat answer beside tools: the first event of a call has its id and name, the others more of its arguments."""

    def __init__(self, request_id: str, created_s: int, model: ServedModel, plan: Plan):
        super().__init__(request_id, created_s, model, plan)
        self._named = plan.tools is not None and plan.tools.named
        self._readers: dict[int, CallReader] = {}

    def chunk(self, choice: Choice, delta: Delta, usage: dict[str, Any] | None = None) -> bytes:
        """Events with what is new in a choice."""
        reader = self._readers.setdefault(choice.index, CallReader())
        text, pieces = reader.push(delta.text)
        if delta.finish_reason is not None:
            text += reader.flush()
        body = b"".join([self._call(choice, piece) for piece in pieces])
        shown = replace(delta, text=text, finish_reason=self._reason(delta.finish_reason, reader))
        return body + super().chunk(choice, shown, usage)

    def _call(self, choice: Choice, piece: Piece) -> bytes:
        entry: dict[str, Any] = {"index": piece.index}
        if piece.name is not None:
            entry |= {"id": _call_id(), "type": "function"}
        function = {"arguments": piece.arguments} if piece.name is None else {"name": piece.name, "arguments": ""}
        body = b'"delta":' + encode({"tool_calls": [entry | {"function": function}]})
        return self._head + b"%d," % choice.index + body + b',"logprobs":null,"finish_reason":null' + self._tail

    def _reason(self, reason: str | None, reader: CallReader) -> str | None:
        """A call that was asked for by its name ends with `stop`, as the OpenAI API has it."""
        return "tool_calls" if reason == "stop" and reader.calls and not self._named else reason

    def _choice(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        reader = CallReader()
        text, pieces = reader.push(delta.text)
        text += reader.flush()
        shown = replace(delta, text=text, finish_reason=self._reason(delta.finish_reason, reader))
        listed = super()._choice(choice, shown)
        calls: list[dict[str, Any]] = []
        for piece in pieces:
            if piece.name is not None:
                calls.append({"id": _call_id(), "type": "function", "function": {"name": piece.name, "arguments": ""}})
            else:
                calls[piece.index]["function"]["arguments"] += piece.arguments
        if calls:
            listed["message"] |= {"content": text or None, "tool_calls": calls}
        return listed


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
