"""Reference tables: rows of the data files, chosen and named in tables.yaml; one page each.

A table says where its rows come from (`rows`: a data file and the path in it, or rows of its own) and its columns as
heading: field. `key` is an entry's name where the entries are named, `value` an entry that is a plain text; `a.b` is a field in
a field. `only` keeps the entries named; `first` takes the first of several values; `group` gathers the names of entries that
share a field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from vibeserve.knowledge import catalogue


@dataclass(frozen=True, slots=True)
class Table:
    """One table, filled. `headings` are the headings of a guide that it belongs under."""

    id: str
    title: str
    headings: tuple[str, ...]
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    origin: str
    words: str = ""
    line: int = 0

    def markdown(self) -> str:
        """The table in Markdown, with what it is about before it."""
        lines = [f"| {' | '.join(self.columns)} |", f"|{'---|' * len(self.columns)}"]
        lines += [f"| {' | '.join(_cell(text) for text in row)} |" for row in self.rows]
        return f"{self.about}\n\n" + "\n".join(lines)


@cache
def all_tables() -> tuple[Table, ...]:
    """Every table. Raises ValueError where one has no rows, or asks for a field that no row has."""
    where = catalogue.lines_of("tables.yaml")
    return tuple(_filled(entry, where.get(entry["id"], 0)) for entry in catalogue.load("tables.yaml"))


def _filled(entry: Mapping[str, Any], line: int) -> Table:
    source = entry["rows"]
    items: Sequence[Mapping[str, Any]]
    if isinstance(source, list):
        items, origin = [{"value": row} if not isinstance(row, Mapping) else row for row in source], "tables.yaml"
    else:
        items, origin = _entries(source), f"{source['file']} ({source['path']})"
    columns = entry["columns"]
    rows = tuple(
        tuple(_text(_field(item, field), entry.get("first", ())) for field in columns.values()) for item in items
    )
    empty = [name for index, name in enumerate(columns) if not any(row[index] for row in rows)]
    if not rows or empty:
        raise ValueError(f"tables.yaml: {entry['id']} has no rows, or nothing under {empty}")
    return Table(
        id=entry["id"],
        title=entry["title"],
        headings=tuple(entry.get("headings", ())),
        about=" ".join(entry["about"].split()),
        columns=tuple(columns),
        rows=rows,
        origin=origin,
        words=entry.get("words", ""),
        line=line,
    )


def _entries(source: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The entries that a table's `rows` name, in the order of `only` where it is given."""
    data = catalogue.load(source["file"])
    for step in source["path"].split("/"):
        data = data[step]
    items: Sequence[Mapping[str, Any]]
    if isinstance(data, Mapping):
        items = [
            {"key": key, **(value if isinstance(value, Mapping) else {"value": value})} for key, value in data.items()
        ]
    else:
        items = [item if isinstance(item, Mapping) else {"value": item} for item in data]
    if "only" in source:
        by_name = {item.get("key", item.get("id")): item for item in items}
        items = [by_name[name] for name in source["only"]]
    if "group" in source:
        items = _grouped(items, source["group"])
    return items


def _grouped(items: Sequence[Mapping[str, Any]], field: str) -> Sequence[Mapping[str, Any]]:
    """One entry for each value of a field, with the names of those that have it."""
    groups: dict[str, list[str]] = {}
    for item in items:
        groups.setdefault(str(item.get(field) or "other"), []).append(str(item["key"]))
    return [{"key": name, "value": names, "count": len(names)} for name, names in sorted(groups.items())]


def _field(item: Mapping[str, Any], path: str) -> Any:
    value: Any = item
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _text(value: Any, first: Sequence[str]) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        chosen = value[:1] if "all" in first else value
        return ", ".join(str(item) for item in chosen)
    if isinstance(value, Mapping):
        return "; ".join(f"{key}={item}" for key, item in value.items())
    return " ".join(str(value).split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def for_heading(heading: str) -> Iterator[Table]:
    """The tables that belong under a heading."""
    wanted = heading.strip().rstrip(":").lower()
    return (table for table in all_tables() if wanted in (item.lower() for item in table.headings))
