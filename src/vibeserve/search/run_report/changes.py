"""What a candidate changed: the diff against its parent, file by file, the settings first.

Parts that the playbook copied from the engine as they are would fill pages: they are listed, with how to see them.
"""

from __future__ import annotations

from typing import Any

from vibeserve.report import Block, Code, Column, Details, Diff, Mono, Table, Text
from vibeserve.report.sections import Cell
from vibeserve.search.run_report.materials import Materials

_FIRST = ("engine.toml", "candidate.toml", "server.py", "requirements.txt")
_COPIED = "engine/"
_MOST_LINES = 160


def changes(run: str, entry: dict[str, Any], materials: Materials) -> Block:
    """The diff of one round's candidate, folded; why there is none where there is none."""
    name = entry["candidate"]
    if name not in materials.diffs:
        why = materials.missing.get(name)
        return Text(f"No diff: {why}." if why else "No diff was read.", muted=True)
    diff = materials.diffs[name]
    if not diff.strip():
        return Text("No file differs from its parent.", muted=True)
    parts = files(diff)
    added = sum(_count(text, "+") for _, text in parts)
    removed = sum(_count(text, "-") for _, text in parts)
    copied = [(path, text) for path, text in parts if path.startswith(_COPIED) and "\nnew file mode" in text]
    inner: list[Block] = [Text(str(entry["summary"]))] if entry.get("summary") else []
    inner += [
        Diff(text, title=f"`{path}`", max_lines=_MOST_LINES) for path, text in parts if (path, text) not in copied
    ]
    if copied:
        rows: list[list[Cell]] = [[Mono(path), _count(text, "+")] for path, text in copied]
        caption = "Parts that came new into the candidate, copied from the engine"
        inner.append(Table(["File", Column("Lines")], rows, caption=caption))
        inner.append(Code(f"git -C runs/{run}/workspace show {entry['commit']}", "sh", title="To read them whole"))
    return Details(f"Diff: {len(parts)} file{'s' if len(parts) != 1 else ''}, +{added} −{removed} lines", inner)


def _count(text: str, sign: str) -> int:
    return sum(line.startswith(sign) and not line.startswith(sign * 3) for line in text.splitlines())


def files(diff: str) -> list[tuple[str, str]]:
    """(path, diff) of each file; settings first, since they say what the change is."""
    parts: list[tuple[str, str]] = []
    for chunk in diff.split("\ndiff --git "):
        text = chunk if chunk.startswith("diff --git ") else f"diff --git {chunk}"
        path = text.splitlines()[0].rsplit(" b/", 1)[-1]
        parts.append((path, text))
    return sorted(parts, key=lambda part: (_FIRST.index(part[0]) if part[0] in _FIRST else len(_FIRST), part[0]))
