"""Names that older versions of the language had: an AttributeError that says what to write instead."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path


@functools.cache
def _table() -> dict[str, dict[str, str]]:
    return tomllib.loads((Path(__file__).parent / "data" / "legacy.toml").read_text(encoding="utf-8"))


def gone(module: str, name: str) -> AttributeError:
    """The error for `module.name`."""
    hint = _table().get(module, {}).get(name)
    text = f"module '{module}' has no attribute '{name}'"
    return AttributeError(f"{text}: it is gone; {hint}" if hint else text, name=name)
