"""What a report is made of: typed data, which the same report shows as HTML, Markdown and terminal text.

A report is a list of `Section`; a section is a title and blocks. Text is plain text with three marks: `code` in
backticks, **strong**, and [words](link); everything else is shown as it is, so text from anywhere is safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from vibeserve.base.provenance import Provenance, Quantity
from vibeserve.report.chart import Chart

Tone = Literal["plain", "good", "warn", "bad", "info"]


@dataclass(frozen=True, slots=True)
class Text:
    """One paragraph; `muted` for what is said in passing."""

    text: str
    muted: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of short texts."""

    items: Sequence[str]
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """One figure to see first: what it is, the figure, and how it is known.

    `figure` is a `Quantity` (its provenance and source are shown) or text; None is shown as a dash with `note` as the
    reason. `interval` is the quantity's interval in the same unit; `tone` colours it.
    """

    label: str
    figure: Quantity | str | None
    note: str = ""
    interval: tuple[float, float] | None = None
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Cards:
    """Figure cards in a row; the first is the headline where `headline` is true."""

    items: Sequence[Card]
    headline: bool = False


@dataclass(frozen=True, slots=True)
class Pill:
    """A word in a coloured pill: a verdict, a state."""

    text: str
    tone: Tone = "plain"
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """Words that lead to a place: `#anchor`, a relative path, or http(s)."""

    text: str
    href: str


@dataclass(frozen=True, slots=True)
class Mono:
    """Text in the code face: a path, a name, a formula."""

    text: str


Cell = str | int | float | None | Quantity | Pill | Link | Mono | Chart


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column. Numbers in it take `unit`; `provenance` and `source` say how its figures are known."""

    name: str
    unit: str = ""
    align: Literal["left", "right", "auto"] = "auto"
    tip: str = ""
    provenance: Provenance | None = None
    source: str = ""
    wrap: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; sorted by a click on a head. `total` is a last row that stays last."""

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    sortable: bool = True
    total: Sequence[Cell] | None = None
    empty: str = "nothing here"


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart with its caption; `provenance` and `source` say how its points are known."""

    chart: Chart
    caption: str = ""
    provenance: Provenance | None = None
    source: str = ""
    data: bool = True


@dataclass(frozen=True, slots=True)
class Code:
    """A block of code or commands, with a button that copies it."""

    text: str
    language: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff. Long ones are shown up to `max_lines`, and say how much was left out."""

    text: str
    title: str = ""
    max_lines: int = 400


@dataclass(frozen=True, slots=True)
class Callout:
    """Something that the reader must not miss."""

    text: str
    title: str = ""
    tone: Tone = "info"


@dataclass(frozen=True, slots=True)
class Definitions:
    """Terms and what they are."""

    items: Sequence[tuple[str, Cell]]


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of source, with its costs in the order of `Source.costs` (None: nothing seen there)."""

    number: int
    text: str
    costs: Sequence[float | None] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A source file with cost beside each line; the first cost colours the line. `costs` are (name, unit)."""

    path: str
    lines: Sequence[SourceLine]
    costs: Sequence[tuple[str, str]]
    provenance: Provenance | None = None
    context: int | None = 3


@dataclass(frozen=True, slots=True)
class Field:
    """A form's field; with `options` it is a choice."""

    name: str
    label: str
    value: str = ""
    kind: Literal["text", "area", "choice", "hidden"] = "text"
    options: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """A form, for pages that a server shows (see `page(online=True)`)."""

    action: str
    fields: Sequence[Field]
    submit: str = "Show"
    method: Literal["get", "post"] = "get"


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks behind a line that opens on a click. `pill` and `aside` stand in the line itself."""

    summary: str
    blocks: Sequence[Block]
    open: bool = False
    pill: Pill | None = None
    aside: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """Blocks side by side where there is room."""

    blocks: Sequence[Block]


Block = Text | Bullets | Cards | Table | Plot | Code | Diff | Callout | Definitions | Source | Form | Details | Columns


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of a report. `anchor` is its name in links (made from the title where empty); `level` 3 is a part of the one before."""

    title: str
    blocks: Sequence[Block]
    lead: str = ""
    anchor: str = ""
    level: Literal[2, 3] = 2
    aside: Pill | None = None
    contents: bool = field(default=True)


def anchor_of(section: Section) -> str:
    """The section's anchor: as given, else its title in small letters joined by hyphens."""
    if section.anchor:
        return section.anchor
    words = "".join(char.lower() if char.isalnum() else " " for char in section.title).split()
    return "-".join(words) or "section"
