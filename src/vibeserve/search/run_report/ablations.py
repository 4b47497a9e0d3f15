"""Techniques on and off, alone and in pairs: what each brings on each load, from the run's `ablations.json` where there is one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from vibeserve.base.provenance import Provenance
from vibeserve.report import Column, Section, Table, Text
from vibeserve.report.sections import Cell

FILE = "ablations.json"


@dataclass(frozen=True)
class Ablation:
    """Speed with these techniques over the engine with none of them, on one load, with its 95 % interval."""

    load: str
    techniques: tuple[str, ...]
    ratio: float
    low: float
    high: float
    rounds: int


def read_ablations(directory: Path) -> tuple[Ablation, ...]:
    """What `python -m benchmarks.ablations --run DIRECTORY` wrote; nothing where there is no such file, or it is none."""
    try:
        document = json.loads((directory / FILE).read_text(encoding="utf-8"))
        found = tuple(
            Ablation(
                str(row["load"]),
                tuple(str(name) for name in row["techniques"]),
                float(row["ratio"]),
                float(row["low"]),
                float(row["high"]),
                int(row["rounds"]),
            )
            for row in document["rows"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return tuple(row for row in found if all(map(math.isfinite, (row.ratio, row.low, row.high))))


def ablations(rows: tuple[Ablation, ...]) -> Section | None:
    """A table of techniques by loads; None where nothing was measured."""
    if not rows:
        return None
    loads = list(dict.fromkeys(row.load for row in rows))
    table: dict[tuple[str, ...], dict[str, Ablation]] = {}
    for row in rows:
        table.setdefault(row.techniques, {})[row.load] = row
    columns = [
        Column("Techniques on"),
        *(Column(load, provenance=Provenance.MEASURED, source=FILE, align="right") for load in loads),
    ]
    lines: list[list[Cell]] = [
        [" + ".join(names), *(_cell(cells.get(load)) for load in loads)] for names, cells in table.items()
    ]
    rounds = min(row.rounds for row in rows)
    caption = (
        f"Speed over the same engine with none of them, with its 95 % interval over at least {rounds} rounds in turns"
    )
    text = Text("Above 1 is faster. An interval that holds 1 shows no difference.", muted=True)
    return Section("Techniques on and off", [Table(columns, lines, caption=caption), text], anchor="ablations")


def _cell(row: Ablation | None) -> str:
    return "not measured" if row is None else f"{row.ratio:.2f} ({row.low:.2f}–{row.high:.2f})"
