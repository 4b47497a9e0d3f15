"""Chat templates: a conversation as one text, by the Jinja2 template that comes with the model.

The template runs in a sandbox that cannot change what it is given. It sees what model templates expect: `messages`,
`add_generation_prompt`, the special tokens by name, `raise_exception`, `strftime_now` and a plain `tojson`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

RESERVED = ("messages", "add_generation_prompt", "tools", "documents")


class ChatTemplateError(ValueError):
    """The template refused the conversation, or cannot be run; the message is the template's own where it has one."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's part for training: here it is plain content."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _environment(now: Callable[[], datetime.datetime]) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token`, … of `tokenizer_config.json`; each a text or an object with its `content`."""
    found = {}
    for name, value in settings.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
    return found


def _source(model_dir: Path, settings: Mapping[str, Any]) -> str | None:
    """The template's text: `chat_template.jinja`, or the entry of `tokenizer_config.json` (several: the default one)."""
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    entry = settings.get("chat_template")
    if isinstance(entry, list):
        named = {item.get("name"): item.get("template") for item in entry if isinstance(item, dict)}
        entry = named.get("default")
    return entry if isinstance(entry, str) else None


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled template with the special tokens that it may name."""

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    now: Callable[[], datetime.datetime] = datetime.datetime.now

    @classmethod
    def load(cls, model_dir: Path, settings: Mapping[str, Any]) -> ChatTemplate | None:
        """The model's template, or None where it has none. Raises ValueError for one that does not compile."""
        source = _source(model_dir, settings)
        if source is None:
            return None
        template = cls(source, _special_tokens(settings))
        try:
            _ = template._compiled
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template in {model_dir} does not compile: {error}") from error
        return template

    @cached_property
    def _compiled(self) -> jinja2.Template:
        return _environment(self.now).from_string(self.source)

    @property
    def knows_tools(self) -> bool:
        """Whether the template has a place for tools; where it has none, they must be told in a message."""
        return "tools" in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation as the model reads it. Raises ChatTemplateError."""
        values: dict[str, Any] = {**self.tokens, **(extra or {})}
        values |= {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": [dict(tool) for tool in tools] if tools else None,
            "documents": None,
        }
        try:
            return self._compiled.render(values)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(str(error)) from error
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error
