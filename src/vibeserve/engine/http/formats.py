"""`response_format`: from what a request asks to the grammar that its answer must keep to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import RequestError
from .errors import invalid, unsupported

if TYPE_CHECKING:
    from ..constraints import Constraints

# The type → (where its value stands, what it must be, what kind of grammar that is).
_VALUES: dict[str, tuple[tuple[str, ...], tuple[type, ...], str]] = {
    "json_schema": (("json_schema", "schema"), (dict, bool), "json"),
    "regex": (("pattern",), (str,), "regex"),
    "grammar": (("grammar",), (str,), "grammar"),
}


def grammar_for(wanted: Any, constraints: Constraints | None) -> str:
    """The grammar of a `response_format`; empty for text. Raises ApiError (400) that names the field.

    Types: `text`, `json_object`, `json_schema`, and beyond OpenAI's `regex` (`pattern`) and `grammar` (Lark, or GBNF).
    """
    if wanted is None or wanted == {"type": "text"}:
        return ""
    if constraints is None:
        raise unsupported("response_format", "`response_format` other than text")
    if not isinstance(wanted, dict):
        raise invalid("`response_format` must be an object.", "response_format", "invalid_type")
    kind = wanted.get("type")
    if kind == "json_object":
        return _checked("json", {"type": "object"}, "response_format", constraints)
    if kind not in _VALUES:
        names = ", ".join(["text", "json_object", *_VALUES])
        raise invalid(
            f"`response_format.type` is {str(kind)[:40]!r}; it must be one of {names}.", "response_format.type"
        )
    path, types, form = _VALUES[kind]
    value, field = wanted, "response_format"
    for name in path:
        field = f"{field}.{name}"
        if not isinstance(value, dict) or name not in value:
            raise invalid(f"`{field}` is required.", field, "missing_required_parameter")
        value = value[name]
    if not isinstance(value, types):
        raise invalid(f"`{field}` is wrong: got `{type(value).__name__}`.", field, "invalid_type")
    return _checked(form, value, field, constraints)


def _checked(form: str, value: Any, field: str, constraints: Constraints) -> str:
    from ..constraints import grammar_of

    try:
        grammar = grammar_of(form, value, field)
        constraints.check(grammar, field)
    except (RequestError, ValueError) as error:
        message = error.message if isinstance(error, RequestError) else str(error)
        raise invalid(f"`{field}`: {message}.", field, "invalid_grammar") from error
    return grammar
