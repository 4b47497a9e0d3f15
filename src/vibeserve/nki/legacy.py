"""Names that older versions of the language had: an AttributeError that says what to write instead."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path


@functools.cache
def _table() -> dict[str, dict[str, str]]:
    return tomllib.loads((Path(__file__).parent / "data" / "legacy.toml").read_text(encoding="utf-8"))


def hint(module: str, name: str) -> str | None:
    """What to write instead of `module.name`, where it is a name of an older version; "*" stands for any name."""
    names = _table().get(module, {})
    return names.get(name, names.get("*"))


def gone(module: str, name: str) -> AttributeError:
    """The error for `module.name`."""
    return AttributeError(text_of(module, name), name=name)


def text_of(module: str, name: str) -> str:
    """What is said of `module.name`."""
    instead = hint(module, name)
    text = f"module '{module}' has no attribute '{name}'"
    return f"{text}: it is gone; {instead}" if instead else text


def no_attribute(kind: str, name: str) -> AttributeError:
    """The error for a method or attribute that objects of `kind` ("NkiTensor") lack."""
    instead = hint(kind, name)
    text = f"'{kind}' object has no attribute '{name}'"
    return AttributeError(f"{text}; {instead}" if instead else text, name=name)
