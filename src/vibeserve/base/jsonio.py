"""One way to write JSON: no NaN, no infinity, numbers not rounded, paths and data classes understood."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from datetime import datetime
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

_NO_UTF8 = re.compile(r"[\ud800-\udfff]")


def plain(value: Any) -> Any:
    """`value` as what JSON knows: data classes become objects; NumPy scalars and arrays, numbers and lists.

    Raises ValueError for a number that is not finite: a metric that cannot be had is None, with its reason beside it.
    """
    match value:
        case None | bool() | str():
            return value.value if isinstance(value, Enum) else value
        case Enum():
            return plain(value.value)
        case int():
            return int(value)
        case float():
            if not math.isfinite(value):
                raise ValueError(f"not a finite number: {value!r}; write null and a reason")
            return float(value)
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case set() | frozenset():
            return sorted(plain(item) for item in value)
        case Path():
            return str(value)
        case datetime():
            return value.isoformat()
        case Fraction():
            return plain(float(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise TypeError(f"cannot be written as JSON: {type(value).__name__}")


def dumps(value: Any, *, indent: int | None = 2) -> str:
    """`value` as one JSON document (UTF-8 text, stable key order as given).

    A byte of a file name that is no UTF-8 is written as the escape that Python reads back as that name.
    """
    text = json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False)
    return _NO_UTF8.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def finite(value: float | None, reason: str) -> tuple[float | None, str | None]:
    """(value, None) where it is a finite number, else (None, reason)."""
    if value is None or not math.isfinite(value):
        return None, reason
    return float(value), None
