"""The shared pieces of every report: typed sections, charts as SVG, one self-contained page, and its Markdown twin.

    from vibeserve.report import Section, Table, Plot, page, svg
    html = page("Fused MLP", [Section("Bounds", [Table(["bound", "time"], rows), Plot(svg.bars(...))])])

The same sections give Markdown (`markdown`) and terminal text (`terminal`).
"""

from vibeserve.report import svg
from vibeserve.report.markdown import markdown
from vibeserve.report.page import fragment, page
from vibeserve.report.sections import (
    Block,
    Bullets,
    Callout,
    Card,
    Cards,
    Cell,
    Code,
    Column,
    Columns,
    Definitions,
    Details,
    Diff,
    Field,
    Form,
    Link,
    Mono,
    Pill,
    Plot,
    Section,
    Source,
    SourceLine,
    Table,
    Text,
)
from vibeserve.report.terminal import print_sections, terminal_text

__all__ = [
    "Block",
    "Bullets",
    "Callout",
    "Card",
    "Cards",
    "Cell",
    "Code",
    "Column",
    "Columns",
    "Definitions",
    "Details",
    "Diff",
    "Field",
    "Form",
    "Link",
    "Mono",
    "Pill",
    "Plot",
    "Section",
    "Source",
    "SourceLine",
    "Table",
    "Text",
    "fragment",
    "markdown",
    "page",
    "print_sections",
    "svg",
    "terminal_text",
]
