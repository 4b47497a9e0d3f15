"""What an agent may reach: paths inside one folder, answers of a bounded size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.jsonio import dumps

MOST_CHARACTERS = 25_000


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder that paths may not leave."""

    root: Path

    def path(self, text: str) -> Path:
        """A path inside the workspace, relative ones taken from it. Raises InputError for one that leads outside."""
        if "\x00" in text:
            raise InputError("a path holds a NUL character")
        path = (self.root / Path(text)).resolve()
        if path != self.root and self.root not in path.parents:
            raise InputError(
                f"{text} lies outside the workspace {self.root}", hint="give a path inside it", code="outside-workspace"
            )
        return path

    def kernel(self, text: str) -> str:
        """FILE:KERNEL or FILE with the file inside the workspace."""
        file, colon, name = text.rpartition(":") if ":" in text else (text, "", "")
        return f"{self.path(file)}{colon}{name}"


def shortened(item: dict[str, Any], key: str, most: int) -> dict[str, Any]:
    """The item with as much of its list `key` as fits `most` characters; `<key>_left_out` counts the rest."""
    room = most - len(dumps({**item, key: []}))
    kept: list[Any] = []
    for value in item.get(key, ()):
        room -= len(dumps(value)) + 2
        if room < 0:
            break
        kept.append(value)
    left = len(item.get(key, ())) - len(kept)
    return {**item, key: kept, f"{key}_left_out": left} if left else item


def page(items: list[Any], cursor: int, key: str, rest: dict[str, Any]) -> dict[str, Any]:
    """`rest` with as many of `items` (from `cursor`) under `key` as fit the size of an answer; `next_cursor` where more are
    left. Always whole items, always valid JSON."""
    if cursor < 0 or cursor > len(items):
        raise InputError(f"no such page: cursor {cursor} of {len(items)}", hint="take next_cursor of the answer before")
    room = MOST_CHARACTERS - len(dumps({**rest, key: []})) - 200
    chosen: list[Any] = []
    for item in items[cursor:]:
        room -= len(dumps(item)) + 2
        if room < 0 and chosen:
            break
        chosen.append(item if room >= 0 else {"cut": dumps(item)[: MOST_CHARACTERS // 2]})
    after = cursor + len(chosen)
    return {**rest, key: chosen, "count": len(items), "next_cursor": after if after < len(items) else None}
