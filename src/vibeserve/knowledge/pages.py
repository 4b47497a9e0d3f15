"""Every fact as a page: a title, a kind, where it comes from, and text. What is searched, shown and indexed are pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vibeserve.knowledge import catalogue, tables


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `names` are the exact words that lead to it (codes, symbols); `words` helps the search alone."""

    id: str
    title: str
    kind: str
    body: str
    source: str
    line: int = 0
    names: tuple[str, ...] = ()
    words: str = ""
    warnings: tuple[str, ...] = field(default=())

    def text(self) -> str:
        """The page as Markdown."""
        warned = "".join(f"> {warning}\n" for warning in self.warnings)
        where = f"{self.source}:{self.line}" if self.line else self.source
        return f"# {self.title}\n\n{warned}{self.body.rstrip()}\n\nSource: {where}\n"


def built_in() -> Iterator[Page]:
    """The pages of this room's own data."""
    yield from (_error(entry) for entry in catalogue.errors().values())
    yield from (_signature(item) for item in catalogue.signatures())
    yield from (_flag(item) for item in catalogue.flags().values())
    yield from (_task(item) for item in catalogue.tasks())
    yield from (_operation(item) for item in catalogue.operations())
    yield from _targets()
    yield from _versions()
    yield from _terms()
    yield from (_table(table) for table in tables.all_tables())
    yield from (_written(path, "guide") for path in guides())
    yield from (_written(path, "note") for path in (*serving_notes(), *follow_ups()))


def serving_notes() -> list[Path]:
    """The notes on serving systems: knowledge/serving/<group>/<topic>.md, one a topic."""
    return [path for path in _all_notes() if _topic(path) is None]


def follow_ups() -> dict[Path, Path]:
    """What a long topic goes on with, knowledge/serving/<group>/<topic>-<sub>.md, with the topic's own note."""
    return {path: topic for path in _all_notes() if (topic := _topic(path)) is not None}


def _all_notes() -> list[Path]:
    return sorted((catalogue.DATA.parent / "serving").glob("*/*.md"))


def _topic(path: Path) -> Path | None:
    """The note of which this one is a follow-up: the file beside it whose name begins its own."""
    words = path.stem.split("-")
    above = [path.with_name(f"{'-'.join(words[:end])}.md") for end in range(len(words) - 1, 0, -1)]
    return next((candidate for candidate in above if candidate.is_file()), None)


_FOLDERS = {"note": ("serving", "serving"), "guide": ("guides", "guide")}


def _written(path: Path, kind: str) -> Page:
    """A note or guide as one page: its title is its first line; its group, its file name and a line `Asked: …` (what people say
    who look for it) lead to it."""
    folder, word = _FOLDERS[kind]
    page = f"{kind}/{path.parent.name}/{path.stem}"
    first, _, body = path.read_text(encoding="utf-8").partition("\n")
    asked = "".join(line.removeprefix("Asked: ") for line in body.splitlines() if line.startswith("Asked: "))
    return Page(
        id=page,
        title=first.lstrip("# "),
        kind=kind,
        body="\n".join(line for line in body.splitlines() if not line.startswith("Asked: ")).strip(),
        source=f"knowledge/{folder}/{path.parent.name}/{path.name}",
        line=1,
        names=(path.stem,),
        words=f"{path.parent.name} {word} {path.stem.replace('-', ' ')} {asked} {catalogue.asked(page)}",
    )


def _error(entry: catalogue.ErrorEntry) -> Page:
    parts = [entry.meaning]
    if entry.message:
        parts.append(f"Looks like: `{entry.message}`")
    if entry.causes:
        parts.append("Causes:\n" + "\n".join(f"- {item}" for item in entry.causes))
    if entry.fixes:
        parts.append("What to do:\n" + "\n".join(f"- {item}" for item in entry.fixes))
    if entry.generations:
        parts.append(f"Concerns {', '.join(entry.generations)} only.")
    if entry.seen_by:
        parts.append(f"Seen earlier by: {', '.join(entry.seen_by)}.")
    if entry.related:
        parts.append(f"Related: {', '.join(entry.related)}.")
    if entry.notes:
        parts.append(entry.notes)
    short = entry.code.removeprefix("NCC_")
    return Page(
        id=f"error/{entry.code}",
        title=f"{entry.code}: {entry.title}",
        kind="error",
        body="\n\n".join(parts),
        source=f"knowledge/data/{entry.file}",
        line=entry.line,
        names=(entry.code, short, *([f"status {entry.number}"] if entry.number is not None else [])),
        words=f"{entry.category} {catalogue.areas().get(entry.area, '')} {catalogue.asked(entry.code)}",
    )


def _signature(item: catalogue.Signature) -> Page:
    since = f"\n\nSince: {item.since}." if item.since else ""
    also = f"\n\nAlso seen as: {'; '.join(item.also)}." if item.also else ""
    return Page(
        id=f"message/{item.id}",
        title=item.pattern,
        kind="message",
        body=f"{item.meaning}\n\nWhat to do: {item.fix}{also}{since}",
        source="knowledge/data/signatures.yaml",
        line=item.line,
        words=f"error message log {catalogue.asked(item.id)}",
    )


def _flag(item: catalogue.Flag) -> Page:
    rows = [
        f"- {key.replace('_', ' ')}: {_plain(value)}"
        for key, value in item.facts.items()
        if key not in ("meaning", "source", "group") and value not in (None, "", [])
    ]
    return Page(
        id=f"flag/{item.name}",
        title=f"{item.name} ({item.kind})",
        kind="flag",
        body=f"{item.meaning}\n\n" + "\n".join(rows),
        source="knowledge/data/flags.yaml",
        line=item.line,
        names=(item.name, *(item.facts.get("aliases") or ())),
        words=f"{item.kind} {item.facts.get('group', '')} setting option {catalogue.asked(item.name)}",
    )


def _task(item: catalogue.Task) -> Page:
    parts = [item.topic]
    if item.apis:
        parts.append("Use: " + ", ".join(f"`{name}`" for name in item.apis))
    if item.notes:
        parts.append(item.notes)
    if item.docs:
        parts.append("Read: " + ", ".join(item.docs))
    if item.related_errors:
        parts.append(f"Errors met here: {', '.join(item.related_errors)}")
    return Page(
        id=f"task/{item.id}",
        title=f"How to {item.want}",
        kind="task",
        body="\n\n".join(parts),
        source="knowledge/data/tasks.yaml",
        line=item.line,
        names=(item.id, *_calls(f"task/{item.id}")),
        words=f"{item.group} {item.asked}",
    )


def _calls(page: str, *names: str) -> tuple[str, ...]:
    """Names under which a dotted name of another library finds a page: see query.names_in."""
    own = (catalogue.call_name(name) for name in names if re.fullmatch(r"[\w.]+(\(.*\))?", name) and "." in name)
    return tuple(dict.fromkeys(f"call:{name}" for name in (*own, *catalogue.calls().get(page, ()))))


def _operation(item: catalogue.Operation) -> Page:
    known = ", ".join(f"`{name}`" for name in (*item.torch, *item.numpy))
    first = next(iter((*item.torch, *item.numpy)))
    return Page(
        id=f"operation/{item.id}",
        title=f"{first} in NKI ({item.id})",
        kind="operation",
        body=f"{known} on the {item.engine} engine, for tiles in SBUF:\n\n```python\n{item.code.rstrip()}\n```\n\n{item.note}",
        source="knowledge/data/operations.yaml",
        line=item.line,
        names=(item.id, *item.torch, *item.numpy, *_calls(f"operation/{item.id}", *item.torch, *item.numpy)),
        words=f"how to compute {' '.join(name.rpartition('.')[2] for name in (*item.torch, *item.numpy))} {catalogue.asked(f'operation/{item.id}')}",
    )


def _targets() -> Iterator[Page]:
    data = catalogue.load("flags.yaml")
    rules = "\n".join(f"- {rule}" for rule in [*data["rules"], *data["notes"]])
    for target in data["targets"]:
        rows = "\n".join(
            f"- {key.replace('_', ' ')}: {_plain(value)}" for key, value in target.items() if key != "family"
        )
        yield Page(
            id=f"target/{target['family']}",
            title=f"Platform {target['family']} ({target['chip']}, NeuronCore-{target['neuroncore']})",
            kind="hardware",
            body=f"{rows}\n\nRules:\n{rules}",
            source="knowledge/data/flags.yaml",
            names=(target["family"], target["nki_gen"], f"NeuronCore-{target['neuroncore']}"),
            words=f"architecture generation platform target hardware limits lnc memory {catalogue.asked('target/' + target['family'])}",
        )
    for name, settings in data["settings"].items():
        lines = "\n".join(f'os.environ["{key}"] = "{value}"' for key, value in settings.items())
        yield Page(
            id=f"settings/{name}",
            title=f"Ready settings: {name.replace('_', ' ')}",
            kind="settings",
            body=f"Before the first neuron import:\n\n```python\nimport os\n\n{lines}\n```",
            source="knowledge/data/flags.yaml",
            words=f"environment variables header script debug profile {catalogue.asked(f'settings/{name}')}",
        )


def _versions() -> Iterator[Page]:
    for entry in catalogue.load("tasks.yaml")["timeline"]:
        yield Page(
            id=f"version/{entry['nki']}",
            title=f"NKI {entry['nki']} (SDK {entry['sdk']})",
            kind="version",
            body=f"Namespace: {entry['namespace']}.\n\n{entry['marks']}",
            source="knowledge/data/tasks.yaml",
            names=(f"NKI {entry['nki']}",),
            words="release notes changes changed new removed deprecated migration",
        )


def _terms() -> Iterator[Page]:
    where = catalogue.lines_of("terms.yaml")
    for entry in catalogue.load("terms.yaml"):
        others = entry.get("also", [])
        known = f" Also called {', '.join(others)}." if others else ""
        yield Page(
            id=f"term/{entry['id']}",
            title=entry["term"],
            kind="term",
            body=f"{entry['says']}{known}\n\nRead on: {', '.join(entry['read'])}",
            source="knowledge/data/terms.yaml",
            line=where.get(entry["id"], 0),
            words=f"term glossary meaning what is {entry['term']} {' '.join(others)} {entry.get('asked', '')}",
        )


def guides() -> list[Path]:
    """The guides: knowledge/guides/<group>/<topic>.md."""
    return sorted((catalogue.DATA.parent / "guides").glob("*/*.md"))


def _table(table: tables.Table) -> Page:
    return Page(
        id=f"table/{table.id}",
        title=table.title,
        kind="table",
        body=f"{table.markdown()}\n\nRows: {table.origin}",
        source="knowledge/data/tables.yaml",
        line=table.line,
        names=(table.id,),
        words=f"{' '.join(table.headings)} {table.words} {catalogue.asked(f'table/{table.id}')}",
    )


def markdown_pages(text: str, source: str, kind: str) -> Iterator[Page]:
    """The sections of a Markdown or reStructuredText document as pages, each with the line that it begins at."""
    document, title, start, body = "", source.rpartition("/")[2], 1, list[str]()
    lines = text.splitlines()
    fenced = False

    def page() -> Page | None:
        written = "\n".join(body).strip()
        if not written:
            return None
        shown = f"{document}: {title}" if document and document != title else title
        return Page(f"{kind}/{source}#{start}", shown, kind, written, source, start)

    for index, line in enumerate(lines):
        fenced ^= line.lstrip().startswith("```")
        heading = None
        if not fenced and line.startswith("#"):
            heading = line.lstrip("#").strip()
        elif not fenced and index + 1 < len(lines) and line.strip() and _underline(lines[index + 1], line):
            heading = line.strip()
        elif _underline(line, lines[index - 1] if index else ""):
            continue
        if heading is None:
            body.append(line)
            continue
        if (made := page()) is not None:
            yield made
        document = document or heading
        title, start, body = heading, index + 1, []
    if (made := page()) is not None:
        yield made


def _underline(line: str, heading: str) -> bool:
    text = line.rstrip()
    return len(text) >= 3 and len(set(text)) == 1 and text[0] in "=-~^*\"'+" and len(text) >= len(heading.rstrip()) > 0


def _plain(value: Any) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)
