"""A report's sections for a terminal, through rich: the short form of the same data."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from vibeserve.base.provenance import Quantity
from vibeserve.report.cells import align_of, cell_unit, columns_of, diff_lines, head_unit
from vibeserve.report.chart import Chart
from vibeserve.report.inline import pieces
from vibeserve.report.markdown import spark_text
from vibeserve.report.numbers import show, show_interval, show_quantity
from vibeserve.report.sections import (
    Block,
    Bullets,
    Callout,
    Cards,
    Cell,
    Code,
    Columns,
    Definitions,
    Details,
    Diff,
    Link,
    Mono,
    Pill,
    Plot,
    Section,
    Source,
    Table,
    Text,
)
from vibeserve.report.source_view import shown_lines

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"good": "green", "warn": "yellow", "bad": "red", "info": "cyan", "plain": ""}
_WIDTH_OF_PIPES = 160


def print_sections(sections: Sequence[Section], *, file: TextIO | None = None, details: bool = False) -> None:
    """Print the sections; folded parts only where `details`. No colour where the output is no terminal."""
    from rich.console import Console

    out = file or sys.stdout
    console = Console(file=out, width=None if out.isatty() else _WIDTH_OF_PIPES, highlight=False)
    for number, section in enumerate(sections):
        if number:
            console.print()
        head = _plain(section.title)
        console.print(f"{head}  [{section.aside.text}]" if section.aside else head, style="bold", markup=False)
        if section.lead:
            console.print(_plain(section.lead), style="dim", markup=False)
        for block in section.blocks:
            _print(console, block, details)


def terminal_text(sections: Sequence[Section], *, details: bool = False) -> str:
    """The same as plain text."""
    buffer = io.StringIO()
    print_sections(sections, file=buffer, details=details)
    return buffer.getvalue()


def _plain(text: str) -> str:
    return "".join(piece.text for piece in pieces(text))


def _cell(value: Cell, unit: str = "") -> Any:
    from rich.text import Text as RichText

    match value:
        case None:
            return "–"
        case Pill():
            return RichText(value.text, style=_STYLES[value.tone])
        case Quantity():
            return show_quantity(value)
        case Link() | Mono():
            return RichText(value.text)
        case Chart():
            return spark_text([row[-1] for row in value.rows])
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return show(value, unit)
    return RichText(_plain(str(value)))


def _print(console: Console, block: Block, details: bool) -> None:
    match block:
        case Text():
            console.print(_plain(block.text), markup=False)
        case Bullets():
            for item in block.items:
                console.print(f"  - {_plain(item)}", markup=False)
        case Cards():
            _cards(console, block)
        case Table():
            _table(console, block)
        case Plot():
            console.print(f"[{block.chart.title}] {block.chart.description}", style="dim", markup=False)
        case Code():
            console.print(block.text.rstrip(), markup=False, soft_wrap=True)
        case Diff() if details:
            for _, line in diff_lines(block):
                console.print(line, markup=False, soft_wrap=True)
        case Callout():
            title = f"{_plain(block.title)}: " if block.title else ""
            console.print(f"{title}{_plain(block.text)}", style=_STYLES[block.tone], markup=False)
        case Definitions():
            for name, value in block.items:
                console.print(f"  {name}: {_cell(value)}", markup=False)
        case Source() if details:
            _source(console, block)
        case Details() if details or block.open:
            console.print(_plain(block.summary), style="bold", markup=False)
            for inner in block.blocks:
                _print(console, inner, details)
        case Columns():
            for inner in block.blocks:
                _print(console, inner, details)


def _cards(console: Console, block: Cards) -> None:
    for card in block.items:
        figure = card.figure
        shown = show_quantity(figure) if isinstance(figure, Quantity) else _plain(figure) if figure else "–"
        unit = figure.unit if isinstance(figure, Quantity) else ""
        words = [f"  {card.label}: {shown}"]
        if card.interval:
            words.append(f"(95 % interval {show_interval(*card.interval, unit)})")
        if isinstance(figure, Quantity):
            words.append(f"[{figure.provenance.value}]")
        if card.note:
            words.append(_plain(card.note))
        console.print(" ".join(words), markup=False, soft_wrap=True)


def _table(console: Console, block: Table) -> None:
    from rich.table import Table as RichTable

    columns = columns_of(block.columns)
    table = RichTable(
        title=_plain(block.caption) or None, title_justify="left", header_style="bold", box=None, pad_edge=False
    )
    for position, column in enumerate(columns):
        unit = head_unit(column)
        table.add_column(
            f"{column.name} ({unit})" if unit else column.name, justify=align_of(column, block.rows, position)
        )
    for row in [*block.rows, *([block.total] if block.total else [])]:
        table.add_row(*(_cell(value, cell_unit(columns[i])) for i, value in enumerate(row)))
    console.print(table if block.rows else block.empty)


def _source(console: Console, block: Source) -> None:
    console.print(block.path, style="bold", markup=False)
    for line in shown_lines(block):
        if line is None:
            console.print("        …")
            continue
        cost = show(line.costs[0], block.costs[0][1], 3) if line.costs and line.costs[0] else ""
        console.print(f"{cost:>12} {line.number:>5}  {line.text}", markup=False, soft_wrap=True)
