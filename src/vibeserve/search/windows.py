"""What the benchmark wrote of a window: the JSON that a measurement's row names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read_window(directory: Path, name: str) -> dict[str, Any] | None:
    """The JSON called `name` in a run's `directory`; None where there is none that can be read inside it."""
    path = directory / name
    if not name or not path.is_file() or not path.resolve().is_relative_to(directory.resolve()):
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def cut_short(directory: Path, windows: Iterable[tuple[str, str]], metric: str) -> frozenset[str]:
    """The candidates whose `metric` is a lower bound in one of their `windows` (candidate, JSON's name).

    A window that ends before its slowest requests do knows of their latency only that it is at least so long.
    """
    flag = f"{metric}_is_lower_bound"
    return frozenset(candidate for candidate, name in windows if (read_window(directory, name) or {}).get(flag))
