"""The small parts of a page as HTML: cells, figures, badges, pills, links, inline text, lines of a diff."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from markupsafe import Markup, escape

from vibeserve.base.provenance import Provenance, Quantity
from vibeserve.report.chart import Chart
from vibeserve.report.inline import pieces, safe
from vibeserve.report.numbers import exact, parts, show, show_interval, show_quantity
from vibeserve.report.sections import Cell, Column, Diff, Link, Mono, Pill

#: Units that change with the size of the number (ms or s), or that are part of how it is read (12 %, 3×).
_UNIT_IN_CELL = frozenset({"", "s", "B", "B/s", "FLOP", "FLOPs", "FLOP/s", "%", "×"})


#: Text that is a number with at most a short unit.
_FIGURE = re.compile(r"[-+−–]?[\d.,]+(e[-+]?\d+)?\s?(%|×|[nµm]?s|[kMGTP]?(B|FLOPs?)(/s)?)?")
#: Code up to so many letters is never broken over lines.
_SHORT = 40


def inline(text: str) -> Markup:
    """Text with its three marks, everything else escaped."""
    parts = []
    for piece in pieces(text):
        words = escape(piece.text)
        match piece.kind:
            case "code":
                parts.append(Markup("<code>{}</code>").format(words))
            case "strong":
                parts.append(Markup("<strong>{}</strong>").format(words))
            case "link":
                parts.append(Markup('<a href="{}">{}</a>').format(piece.href, words))
            case _:
                parts.append(words)
    return Markup("").join(parts)


def badge(provenance: Provenance | None, source: str = "") -> Markup:
    """How a figure is known, as a small badge; where from is said on hover."""
    if provenance is None:
        return Markup("")
    kind = provenance.name.lower()
    tip = f"{provenance.value}: {source}" if source else provenance.value
    return Markup('<span class="prov {}" data-tip="{}">{}</span>').format(kind, tip, provenance.value)


def pill(item: Pill | None) -> Markup:
    """A coloured word."""
    if item is None:
        return Markup("")
    tip = Markup(' data-tip="{}"').format(item.tip) if item.tip else Markup("")
    return Markup('<span class="pill {}"{}>{}</span>').format(item.tone, tip, item.text)


def link(item: Link) -> Markup:
    """A link, or plain words where it leads anywhere unsafe."""
    if not safe(item.href):
        return escape(item.text)
    return Markup('<a href="{}">{}</a>').format(item.href, item.text)


def cell(value: Cell, unit: str = "") -> Markup:
    """What a table's cell shows."""
    match value:
        case None:
            return Markup('<span class="none">–</span>')
        case Pill():
            return pill(value)
        case Link():
            return link(value)
        case Mono():
            short = Markup(' class="short"') if len(value.text) <= _SHORT else Markup("")
            return Markup("<code{}>{}</code>").format(short, value.text)
        case Chart():
            return Markup(value.wide)
        case Quantity():
            kind = value.provenance.value + (f": {value.source}" if value.source else "")
            tip = f"{exact(value.value, value.unit)} · {kind}" if math.isfinite(value.value) else kind
            return Markup('<span data-tip="{}">{}</span>').format(tip, show_quantity(value))
        case bool():
            return escape("yes" if value else "no")
        case int() | float():
            return escape(show(value, unit))
    return inline(str(value))


def sort_value(value: Cell) -> str:
    """What a cell sorts by: its number, else its text."""
    match value:
        case None:
            return ""
        case Quantity():
            return repr(value.value)
        case bool() | int() | float():
            return repr(value)
        case Chart():
            return repr(value.rows[-1][-1]) if value.rows else ""
        case Pill() | Link() | Mono():
            return value.text
    return str(value)


def head_unit(column: Column) -> str:
    """The unit that a column's head carries, so that its cells need none; '' where each cell has its own."""
    return "" if column.unit in _UNIT_IN_CELL else column.unit


def cell_unit(column: Column) -> str:
    """The unit that the column's cells carry."""
    return column.unit if column.unit in _UNIT_IN_CELL else ""


def columns_of(columns: Sequence[Column | str]) -> list[Column]:
    """Columns, a bare name made one."""
    return [Column(column) if isinstance(column, str) else column for column in columns]


def align_of(column: Column, rows: Sequence[Sequence[Cell]], position: int) -> Literal["left", "right"]:
    """'right' for a column of numbers, else 'left'."""
    if column.align != "auto":
        return column.align
    values = [row[position] for row in rows if position < len(row) and row[position] is not None]
    seen = [value for value in values if value != "–"]
    return "right" if seen and all(_is_figure(value) for value in seen) else "left"


def _is_figure(value: Cell) -> bool:
    if isinstance(value, str):
        return bool(_FIGURE.fullmatch(value))
    return isinstance(value, int | float | Quantity) and not isinstance(value, bool)


def diff_lines(diff: Diff) -> Iterator[tuple[str, str]]:
    """(class, line) of a unified diff, cut at `max_lines`."""
    lines = diff.text.splitlines()
    for line in lines[: diff.max_lines]:
        if line.startswith(("+++", "---", "diff ", "index ", "new file", "deleted file", "similarity", "rename ")):
            yield "file", line
        elif line.startswith("@@"):
            yield "hunk", line
        elif line.startswith("+"):
            yield "add", line
        elif line.startswith("-"):
            yield "del", line
        else:
            yield "same", line
    if len(lines) > diff.max_lines:
        yield "hunk", f"… {len(lines) - diff.max_lines} more lines, not shown"


def diff_counts(diff: Diff) -> tuple[int, int]:
    """(lines added, lines taken away)."""
    lines = diff.text.splitlines()
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    return added, sum(line.startswith("-") and not line.startswith("---") for line in lines)


HELPERS: dict[str, Callable[..., Any]] = {
    "inline": inline,
    "badge": badge,
    "pill": pill,
    "link": link,
    "cell": cell,
    "sort_value": sort_value,
    "columns_of": columns_of,
    "align_of": align_of,
    "diff_lines": diff_lines,
    "diff_counts": diff_counts,
    "show": show,
    "show_quantity": show_quantity,
    "show_interval": show_interval,
    "exact": exact,
    "parts": parts,
    "head_unit": head_unit,
    "cell_unit": cell_unit,
    "is_quantity": lambda value: isinstance(value, Quantity),
}
