"""Where each figure of a report comes from: gathered from its cards, tables, definitions and plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vibeserve.base.provenance import Provenance, Quantity
from vibeserve.report.numbers import show_quantity
from vibeserve.report.sections import (
    Block,
    Cards,
    Cell,
    Column,
    Columns,
    Definitions,
    Details,
    Mono,
    Pill,
    Plot,
    Section,
    Source,
    Table,
)

_TONES = {
    Provenance.MEASURED: "good",
    Provenance.SIMULATED: "info",
    Provenance.COUNTED: "info",
    Provenance.DOCUMENTED: "plain",
    Provenance.ASSUMED: "warn",
}


@dataclass(frozen=True, slots=True)
class Known:
    """One figure (or all figures of a column or plot): where it stands, how it is known, where from."""

    section: str
    figure: str
    shown: str
    provenance: Provenance
    source: str


def figures_of(sections: Sequence[Section]) -> list[Known]:
    """Every figure with a provenance, in the order of the report; equal entries once."""
    found = (known for section in sections for block in section.blocks for known in _of_block(section.title, block))
    return list(dict.fromkeys(found))


def figures_section(known: Sequence[Known], title: str = "Where the figures come from") -> Section:
    """The last section of a page: each figure, how it is known, and its source."""
    rows: list[list[Cell]] = [
        [item.section, item.figure, Mono(item.shown) if item.shown else "", _pill(item.provenance), item.source]
        for item in known
    ]
    table = Table(("Part", "Figure", "Value", "Known as", Column("Source", wrap=True)), rows)
    lead = "Measured on this machine, simulated, counted by hand, documented by a maker, or assumed: each figure says which."
    return Section(title, [Details(f"{len(known)} figures and their sources", [table])], lead=lead, anchor="sources")


def _pill(provenance: Provenance) -> Pill:
    return Pill(provenance.value, _TONES[provenance])  # type: ignore[arg-type]


def _of_block(section: str, block: Block) -> Iterator[Known]:
    match block:
        case Cards():
            for card in block.items:
                yield from _of_cell(section, card.label, card.figure)
        case Definitions():
            for name, value in block.items:
                yield from _of_cell(section, name, value)
        case Plot() if block.provenance is not None:
            yield Known(section, block.chart.title, "", block.provenance, block.source)
        case Source() if block.provenance is not None:
            names = ", ".join(name for name, _ in block.costs)
            yield Known(section, f"{block.path}: {names}", "", block.provenance, "")
        case Table():
            yield from _of_table(section, block)
        case Details() | Columns():
            for inner in block.blocks:
                yield from _of_block(section, inner)


def _of_table(section: str, table: Table) -> Iterator[Known]:
    name = table.caption or section
    for column in table.columns:
        if isinstance(column, Column) and column.provenance is not None:
            yield Known(section, f"{name}: {column.name}", "", column.provenance, column.source)
    for row in table.rows:
        words = next((str(getattr(c, "text", c)) for c in row if isinstance(c, str | Mono | Pill)), "")
        for position, value in enumerate(row):
            if isinstance(value, Quantity):
                column = table.columns[position] if position < len(table.columns) else ""
                head = column.name if isinstance(column, Column) else column
                yield from _of_cell(section, f"{words}: {head}" if words else head, value)


def _of_cell(section: str, name: str, value: Cell) -> Iterator[Known]:
    if isinstance(value, Quantity):
        yield Known(section, name, show_quantity(value), value.provenance, value.source)
