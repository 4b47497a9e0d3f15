"""Edits of a text at the places that syntax nodes name. A group of edits is made as a whole or not at all."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from vibeserve.nki.lint.source import Source

Placed = ast.expr | ast.stmt | ast.keyword | ast.alias | ast.arg


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace bytes [start, end) of the text (UTF-8) by `text`."""

    start: int
    end: int
    text: str


class Places:
    """Byte offsets of syntax nodes in the text."""

    def __init__(self, text: str):
        self.data = text.encode()
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: Placed) -> int:
        """Where a node begins."""
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: Placed) -> int:
        """Where it ends."""
        return self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def text(self, node: Placed) -> str:
        """Its text."""
        return self.data[self.start(node) : self.end(node)].decode()

    def replace(self, node: Placed, text: str) -> Edit:
        """An edit that puts `text` in a node's place."""
        return Edit(self.start(node), self.end(node), text)

    def indent(self, node: ast.stmt) -> str | None:
        """What stands before a statement on its line; None where that is not blank (`if x: y = 3`, `a; b`)."""
        before = self.data[self._starts[node.lineno - 1] : self.start(node)].decode()
        after = self.data[self.end(node) :].split(b"\n", 1)[0].decode().strip()
        return before if not before.strip() and not after.startswith(";") else None

    def line(self, node: ast.stmt) -> tuple[int, int]:
        """The lines of a statement, with their ends; what stands behind it on its last line goes too."""
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        return self._starts[first], self._starts[min(last, len(self._starts) - 1)]


def local_name(source: Source, full: str) -> str | None:
    """How a full name is written in this file (`nl.sbuf` for nki.language.sbuf); None where its module is not imported."""
    best: tuple[int, str] | None = None
    for local, imported in source.aliases.items():
        module = imported.removeprefix("neuronxcc.")
        if full == module:
            return local
        if full.startswith(f"{module}.") and (best is None or len(module) > best[0]):
            best = (len(module), f"{local}{full[len(module) :]}")
    return best[1] if best else None


def without_overlap(groups: Iterable[tuple[str, tuple[Edit, ...]]]) -> list[tuple[str, tuple[Edit, ...]]]:
    """The groups, from the top of the file on, that touch nothing that an earlier one changes."""
    chosen: list[tuple[str, tuple[Edit, ...]]] = []
    taken: list[Edit] = []
    for rule, group in sorted(dict.fromkeys(groups), key=lambda item: min((edit.start, edit.end) for edit in item[1])):
        if all(edit.start >= held.end or edit.end <= held.start for edit in group for held in taken):
            chosen.append((rule, group))
            taken += group
    return chosen


def applied(text: str, edits: Iterable[Edit]) -> str:
    """The text with disjoint edits made."""
    data = text.encode()
    for edit in sorted(edits, key=lambda item: item.start, reverse=True):
        data = data[: edit.start] + edit.text.encode() + data[edit.end :]
    return data.decode()
