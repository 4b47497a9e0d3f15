"""The prompts: Jinja templates, one a role."""

from __future__ import annotations

import functools
import json
from typing import Any

from pydantic import BaseModel


@functools.cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("vibeserve.agents", "prompts")
    return Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)


def render(name: str, answer: type[BaseModel], **values: Any) -> str:
    """The prompt `name` with its values; `form` tells the agent how to answer. Raises jinja2.UndefinedError."""
    schema = json.dumps(answer.model_json_schema())
    form = f"End with one JSON document that fits this JSON schema, and nothing after it:\n```json\n{schema}\n```"
    text = _environment().get_template(f"{name}.md.j2").render(form=form, **values)
    return str(text)
