"""Rows to columns and back: which fields are JSON, and what an older store does not have."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from typing import Any, TypeVar

from vibeserve.base.jsonio import dumps
from vibeserve.search.store.rows import CallRow, ClaimRow, GateRow

_R = TypeVar("_R")
_JSON_FIELDS = {"request", "environment", "device", "techniques", "activation", "settings", "not_others"}
_JSON_OF = {(GateRow, "document"), (CallRow, "reply"), (ClaimRow, "value")}
_TUPLE_FIELDS = {"techniques", "activation", "not_others"}


def _is_json(cls: type, name: str) -> bool:
    return name in _JSON_FIELDS or (cls, name) in _JSON_OF


def to_columns(row: Any) -> dict[str, Any]:
    """The columns of a row, by name."""
    columns = {}
    for column in dataclasses.fields(row):
        value = getattr(row, column.name)
        if _is_json(type(row), column.name):
            value = None if value is None and type(row) is CallRow else dumps(value, indent=None)
        elif isinstance(value, bool):
            value = int(value)
        columns[column.name] = value
    return columns


def from_row(cls: type[_R], row: sqlite3.Row) -> _R:
    """The row again; a column that an older store lacks gets its default."""
    values: dict[str, Any] = {}
    there = set(row.keys())
    for column in dataclasses.fields(cls):  # type: ignore[arg-type]
        if column.name not in there:
            continue
        value = row[column.name]
        if _is_json(cls, column.name) and value is not None:
            value = json.loads(value)
            if column.name in _TUPLE_FIELDS:
                value = tuple(value)
        elif cls is GateRow and column.name == "ok" and value is not None:
            value = bool(value)
        values[column.name] = value
    return cls(**values)
