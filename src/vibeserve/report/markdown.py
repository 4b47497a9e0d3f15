"""The Markdown twin of a page: the same sections, with the data of a chart as a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from vibeserve.base.provenance import Quantity
from vibeserve.report.cells import align_of, cell_unit, columns_of, diff_lines, head_unit
from vibeserve.report.chart import Chart
from vibeserve.report.figures import figures_of, figures_section
from vibeserve.report.inline import pieces
from vibeserve.report.numbers import show, show_interval, show_quantity
from vibeserve.report.sections import (
    Block,
    Bullets,
    Callout,
    Cards,
    Cell,
    Code,
    Column,
    Columns,
    Definitions,
    Details,
    Diff,
    Form,
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

_MOST_CHART_ROWS = 40
#: An underscore inside a word is no mark of emphasis, and reads better as it is.
_LOOSE_UNDERSCORE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
#: What a line may not begin with, if it is to stay a paragraph.
_BLOCK_START = re.compile(r"^(?=[#>+=~-])")
_SPARKS = "▁▂▃▄▅▆▇█"


def markdown(title: str, sections: Sequence[Section], *, subtitle: str = "", sources: bool = True) -> str:
    """The report as one Markdown document; ends with where each figure comes from where `sources`."""
    shown = list(sections)
    if sources and (known := figures_of(sections)):
        shown.append(figures_section(known))
    parts = [f"# {inline(title)}"]
    if subtitle:
        parts.append(inline(subtitle))
    for section in shown:
        head = f"{'#' * section.level} {inline(section.title)}"
        parts.append(f"{head} — {section.aside.text}" if section.aside else head)
        if section.lead:
            parts.append(inline(section.lead))
        parts.extend(text for text in (render(block) for block in section.blocks) if text)
    return "\n\n".join(parts) + "\n"


def inline(text: str) -> str:
    """Text with its three marks; what Markdown or HTML would read as more is escaped."""
    parts = []
    for piece in pieces(text):
        match piece.kind:
            case "code":
                parts.append(f"`{piece.text}`")
            case "strong":
                parts.append(f"**{_escape(piece.text)}**")
            case "link":
                parts.append(f"[{_escape(piece.text)}]({piece.href})")
            case _:
                parts.append(_escape(piece.text))
    return "".join(parts)


def _escape(text: str) -> str:
    for char in "\\*`[]<|":
        text = text.replace(char, f"\\{char}")
    return _LOOSE_UNDERSCORE.sub(r"\\_", text).replace("\n", " ")


def cell(value: Cell, unit: str = "") -> str:
    """A table cell's text."""
    match value:
        case None:
            return "–"
        case Quantity():
            return show_quantity(value)
        case Pill():
            return f"**{_escape(value.text)}**"
        case Link():
            return inline(f"[{value.text}]({value.href})")
        case Mono():
            return _code(value.text)
        case Chart():
            return spark_text([row[-1] for row in value.rows])
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return show(value, unit)
    return inline(str(value))


def _code(text: str) -> str:
    text = text.replace("\n", " ").replace("|", "\\|")
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{' ' if '`' in text else ''}{text}{' ' if '`' in text else ''}{ticks}"


def spark_text(values: Sequence[object]) -> str:
    """A trend in block letters."""
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if not numbers:
        return "–"
    low, span = min(numbers), (max(numbers) - min(numbers)) or 1.0
    return "".join(_SPARKS[min(7, int((value - low) / span * 8))] for value in numbers)


def render(block: Block) -> str:
    """One block as Markdown."""
    return _RENDER[type(block)](block)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], aligns: Sequence[str]) -> str:
    lines = [f"| {' | '.join(head)} |"]
    lines.append("|" + "|".join("---:" if align == "right" else "---" for align in aligns) + "|")
    lines.extend(f"| {' | '.join(row)} |" for row in rows)
    return "\n".join(lines)


def _head(column: Column) -> str:
    beside = [word for word in (head_unit(column), column.provenance.value if column.provenance else "") if word]
    return _escape(column.name) + (f" ({', '.join(beside)})" if beside else "")


def _render_table(block: Table) -> str:
    if not block.rows:
        return f"{inline(block.caption)}: {block.empty}" if block.caption else block.empty
    columns = columns_of(block.columns)
    aligns = [align_of(column, block.rows, i) for i, column in enumerate(columns)]
    head = [_head(column) for column in columns]
    rows = [*block.rows, *([block.total] if block.total else [])]
    texts = [[cell(value, cell_unit(columns[i])) for i, value in enumerate(row)] for row in rows]
    table = _table(head, texts, aligns)
    return f"**{inline(block.caption)}**\n\n{table}" if block.caption else table


def _cards(block: Cards) -> str:
    lines = []
    for card in block.items:
        figure = card.figure
        shown = show_quantity(figure) if isinstance(figure, Quantity) else inline(figure) if figure else "–"
        unit = figure.unit if isinstance(figure, Quantity) else ""
        line = f"- {_escape(card.label)}: **{shown}**"
        if card.interval:
            line += f" (95 % interval {show_interval(*card.interval, unit)})"
        if card.note:
            line += f"; {inline(card.note)}"
        if isinstance(figure, Quantity):
            line += f" — *{figure.provenance.value}{': ' + _escape(figure.source) if figure.source else ''}*"
        lines.append(line)
    return "\n".join(lines)


def _plot(block: Plot) -> str:
    chart = block.chart
    known = (
        f" ({block.provenance.value}{': ' + block.source if block.provenance and block.source else ''})"
        if block.provenance
        else ""
    )
    parts = [f"**{_escape(chart.title)}**{_escape(known)}", _escape(chart.description)]
    if block.caption:
        parts.append(inline(block.caption))
    rows = chart.rows[:_MOST_CHART_ROWS]
    if rows and block.data:
        aligns = ["right" if isinstance(value, int | float) else "left" for value in rows[0]]
        parts.append(_table([_escape(n) for n in chart.columns], [[cell(v) for v in row] for row in rows], aligns))  # type: ignore[arg-type]
        if len(chart.rows) > len(rows):
            parts.append(f"… and {len(chart.rows) - len(rows)} more rows.")
    return "\n\n".join(parts)


def fence(text: str, language: str = "") -> str:
    """A fenced block whose fence the text does not hold."""
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def _source(block: Source) -> str:
    lines = []
    for line in shown_lines(block):
        if line is None:
            lines.append("…")
            continue
        costs = [
            f"{show(line.costs[i], unit, 3) if i < len(line.costs) and line.costs[i] else '':>12}"
            for i, (_, unit) in enumerate(block.costs)
        ]
        lines.append(f"{' '.join(costs)} {line.number:>5}  {line.text}")
    names = ", ".join(name for name, _ in block.costs)
    return f"`{block.path}` ({names}, line, source)\n\n{fence(chr(10).join(lines))}"


def _details(block: Details) -> str:
    head = f"**{inline(block.summary)}**"
    head += f" — {block.pill.text}" if block.pill else ""
    head += f" — {inline(block.aside)}" if block.aside else ""
    return "\n\n".join([head, *(render(inner) for inner in block.blocks)])


def _bullets(block: Bullets) -> str:
    return "\n".join(
        f"{f'{number}.' if block.ordered else '-'} {inline(item)}" for number, item in enumerate(block.items, 1)
    )


def _titled(title: str, body: str) -> str:
    return f"{inline(title)}\n\n{body}" if title else body


_RENDER: dict[type, Callable[[Any], str]] = {
    Text: lambda block: _BLOCK_START.sub(r"\\", inline(block.text)),
    Bullets: _bullets,
    Cards: _cards,
    Table: _render_table,
    Plot: _plot,
    Code: lambda block: _titled(block.title, fence(block.text, block.language)),
    Diff: lambda block: _titled(block.title, fence("\n".join(line for _, line in diff_lines(block)), "diff")),
    Callout: lambda block: f"> {f'**{inline(block.title)}** ' if block.title else ''}{inline(block.text)}",
    Definitions: lambda block: "\n".join(f"- {_escape(name)}: {cell(value)}" for name, value in block.items),
    Source: _source,
    Form: lambda block: "",
    Details: _details,
    Columns: lambda block: "\n\n".join(render(inner) for inner in block.blocks),
}
