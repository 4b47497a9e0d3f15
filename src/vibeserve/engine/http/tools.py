"""Calling tools: from the tools of a request to a grammar, and from the text of an answer to calls.

An answer writes a call as `<tool_call>\\n{"name": NAME, "arguments": {…}}\\n</tool_call>`, which is the form that most open
chat models were trained on. The grammar holds it to that form, to the tools that there are and to their schemas.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..errors import RequestError
from .errors import invalid, unsupported

if TYPE_CHECKING:
    from ..constraints import Constraints

MOST_CALLS = 8
OPEN, CLOSE = "<tool_call>\n", "\n</tool_call>"
_NAME, _ARGUMENTS = '{"name": ', ', "arguments": '


class Function(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call. `parameters` is a JSON schema; without one the arguments are any object."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool of a request. Only functions are known."""

    type: Literal["function"]
    function: Function


@dataclass(frozen=True, slots=True)
class Tools:
    """What a request says of tools. `named` where one function was asked for by name."""

    tools: tuple[Tool, ...]
    grammar: str
    named: bool

    def documents(self) -> list[dict[str, Any]]:
        """The tools as templates expect them."""
        return [msgspec.to_builtins(_without_nothing(tool)) for tool in self.tools]


def tools_for(given: Any, choice: Any, parallel: bool, constraints: Constraints | None) -> Tools | None:
    """The tools that an answer may call; None where there are none. Raises ApiError (400) that names the field."""
    if given in (None, []) or choice == "none":
        if choice not in (None, "none", "auto"):
            raise invalid("`tool_choice` asks for a tool, and there are no `tools`.", "tool_choice")
        return None
    if constraints is None:
        raise unsupported("tools")
    tools = _read(given)
    by_name = {tool.function.name: tool for tool in tools}
    if len(by_name) < len(tools):
        raise invalid("`tools` has two functions of one name.", "tools")
    name = _named(choice)
    if name is not None and name not in by_name:
        raise invalid(f"`tool_choice` names {name[:64]!r}, which is not among the `tools`.", "tool_choice")
    allowed = [by_name[name]] if name is not None else tools
    many = parallel and name is None
    grammar = _grammar(allowed, constraints, many=many, free=choice in (None, "auto"))
    return Tools(tuple(tools), grammar, name is not None)


def _read(given: Any) -> list[Tool]:
    try:
        return msgspec.convert(given, list[Tool])
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        raise invalid(f"`tools{where.rstrip('`')}` is wrong: {text[0].lower()}{text[1:]}.", "tools") from error


def _named(choice: Any) -> str | None:
    """The function that `tool_choice` names; None for `auto` and `required`. Raises ApiError."""
    if choice in (None, "auto", "required"):
        return None
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            return name
    raise invalid(
        '`tool_choice` must be "none", "auto", "required" or {"type": "function", "function": {"name": …}}.',
        "tool_choice",
    )


def _grammar(tools: Sequence[Tool], constraints: Constraints, *, many: bool, free: bool) -> str:
    """Calls of these tools; where `free`, any text that does not begin like a call will do instead."""
    from ..constraints import checked_schema, grammar_of

    field = "tools"
    start = f'call ("\\n" call){{0,{MOST_CALLS - 1}}}' if many else "call"
    lines = [f"start: ({start} | TEXT)?" if free else f"start: {start}"]
    if free:
        lines.append(r"TEXT: /([^<]|<[^t])(.|\n)*/")
    names = " | ".join(f"function{at}" for at in range(len(tools)))
    lines.append(f"call: {json.dumps(OPEN + _NAME)} ({names}) {json.dumps('}' + CLOSE)}")
    try:
        for at, tool in enumerate(tools):
            wanted = tool.function.parameters or {"type": "object"}
            head = json.dumps(json.dumps(tool.function.name) + _ARGUMENTS)
            schema = checked_schema({"type": "object"} | wanted, f"tools[{at}].function.parameters")
            lines += [f"function{at}: {head} arguments{at}", f"arguments{at}: %json {json.dumps(schema)}"]
        grammar = grammar_of("grammar", "\n".join(lines), field)
        constraints.check(grammar, field)
    except (RequestError, ValueError) as error:
        message = error.message if isinstance(error, RequestError) else str(error)
        name = error.field if isinstance(error, RequestError) else field
        raise invalid(f"`{name}`: {message}.", name, "invalid_grammar") from error
    return grammar


def _without_nothing(tool: Tool) -> dict[str, Any]:
    function = {name: getattr(tool.function, name) for name in ("name", "description", "parameters")}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def told(tools: Sequence[dict[str, Any]]) -> str:
    """The tools in words, for models whose template has no place for them."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"You can call these functions:\n{listed}\nTo call one, write\n"
        f'{OPEN}{_NAME}"…"{_ARGUMENTS}{{…}}}}{CLOSE}\nand nothing else.'
    )


def call_text(name: str, arguments: str) -> str:
    """A call as an answer writes it."""
    return f"{OPEN}{_NAME}{json.dumps(name)}{_ARGUMENTS}{arguments}}}{CLOSE}"


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new of call `index`: its `name` (where the call begins), or more of its `arguments`."""

    index: int
    name: str | None
    arguments: str


class CallReader:
    """Reads an answer as it grows: text, or calls. Text that may still become a call is held back."""

    __slots__ = ("_buffer", "_depth", "_escaped", "_in_string", "_state", "calls")

    def __init__(self) -> None:
        self.calls = 0
        self._buffer = ""
        self._state = "start"
        self._depth = 0
        self._in_string = self._escaped = False

    def push(self, text: str) -> tuple[str, list[Piece]]:
        """Take the next piece of the answer: plain text that can be shown, and pieces of calls."""
        if self._state == "text":
            return text, []
        self._buffer += text
        pieces: list[Piece] = []
        while True:
            if self._state == "start":
                head = OPEN + _NAME
                if len(self._buffer) < len(head) and head.startswith(self._buffer):
                    return "", pieces
                if not self._buffer.startswith(head):
                    self._state, shown, self._buffer = "text", self._buffer, ""
                    return shown, pieces
                self._buffer, self._state = self._buffer[len(head) :], "name"
            elif self._state == "name":
                name, mark, rest = self._buffer.partition(_ARGUMENTS)
                if not mark:
                    return "", pieces
                pieces.append(Piece(self.calls, json.loads(name), ""))
                self._buffer, self._state, self._depth = rest, "arguments", 0
                self.calls += 1
            elif self._state == "arguments":
                taken = self._arguments()
                if taken:
                    pieces.append(Piece(self.calls - 1, None, taken))
                if self._state == "arguments":
                    return "", pieces
            elif not self._between():
                return "", pieces

    def _arguments(self) -> str:
        """The arguments as far as they go; they end with the bracket that closes the object."""
        for at, char in enumerate(self._buffer):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    taken, self._buffer = self._buffer[: at + 1], self._buffer[at + 1 :]
                    self._state = "between"
                    return taken
        taken, self._buffer = self._buffer, ""
        return taken

    def _between(self) -> bool:
        """Past the end of a call and the beginning of the next; False where more text is needed."""
        between = "}" + CLOSE + "\n" + OPEN + _NAME
        if len(self._buffer) < len(between):
            return False
        self._buffer, self._state = self._buffer[len(between) :], "name"
        return True

    def flush(self) -> str:
        """The answer has ended: what was held back is plain text, unless it is a part of a call."""
        shown = self._buffer if self._state == "start" else ""
        self._buffer = ""
        return shown
