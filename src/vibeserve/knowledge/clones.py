"""Paths of notes that lie in the reader's own clones of other engines: `$SERVE_REPOS/<engine>/path`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from vibeserve.base.paths import expanded

VARIABLE = "SERVE_REPOS"
_PATH = re.compile(rf"\${VARIABLE}/([\w.-]+(?:/[\w.-]+)*)")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A text with its clone paths made real: `found` are those that exist here; `warnings` say what is missing, or not set."""

    text: str
    found: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def resolve(text: str) -> Resolved:
    """Put the folder that SERVE_REPOS names in place of `$SERVE_REPOS`, and say which of the paths are there."""
    named = list(dict.fromkeys(_PATH.findall(text)))
    if not named:
        return Resolved(text)
    root = os.environ.get(VARIABLE)
    if not root:
        return Resolved(text, (), (f"paths lie in your own clones: set {VARIABLE} to their folder",))
    folder = expanded(root)
    here = [name for name in named if (folder / name).exists()]
    gone = [name for name in named if name not in here]
    warnings = (f"not in {folder}: {', '.join(gone)} (no clone, or moved in its release)",) if gone else ()
    return Resolved(
        _PATH.sub(lambda match: str(folder / match[1]), text), tuple(str(folder / name) for name in here), warnings
    )
