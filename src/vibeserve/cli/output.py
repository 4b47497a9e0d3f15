"""What verbs share: one JSON document on stdout, tables for people, progress and notes on stderr."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from vibeserve.base.jsonio import dumps

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]

MOST_SEED = 2**53  # JSON's whole numbers


def finite(value: float | None) -> float | None:
    """Refuses an option that is no finite number: NaN lies in every range."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number.")
    return value


def print_json(value: Any) -> None:
    """Print `value` as the one JSON document on stdout, at once: a server's reader waits for it while the server runs."""
    sys.stdout.write(dumps(value) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Tell the user something in passing, on stderr."""
    print(text, file=sys.stderr, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table on stdout (columns align; plain text where stdout is no terminal)."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    width = None if sys.stdout.isatty() else 200
    Console(width=width).print(table)
