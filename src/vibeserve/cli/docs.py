"""`vibeserve docs search|symbol|error|task|toc|index`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vibeserve import knowledge
from vibeserve.cli.output import JsonFlag, note, print_json, print_table

Most = Annotated[int, typer.Option("--limit", help="Most results.", min=1, max=50)]


def search(
    words: Annotated[list[str], typer.Argument(help="A question, a name, a code: words.")],
    limit: Most = 8,
    as_json: JsonFlag = False,
) -> None:
    """Search the documentation: symbols, errors, flags, tasks, guides, and folders added with 'docs index'."""
    _search(" ".join(words), limit, (), as_json)


def task(
    words: Annotated[
        list[str], typer.Argument(help="What you want to do, or an operation such as torch.nn.functional.softmax.")
    ],
    limit: Most = 5,
    as_json: JsonFlag = False,
) -> None:
    """What to use for a task."""
    _search(" ".join(words), limit, ("task", "operation", "note", "guide", "table", "term"), as_json)


def _search(query: str, limit: int, kinds: tuple[str, ...], as_json: bool) -> None:
    found = knowledge.answer(query, knowledge.Index.standard(), limit, kinds)
    if as_json:
        print_json(found.document())
        return
    if not found.results:
        note("nothing found: try other words, or add documents with 'vibeserve docs index DIR'")
        return
    print(f"{found.summary}\n")
    for text in found.warnings:
        print(f"warning: {text}\n")
    for item in found.results:
        print(f"{item.title}  [{item.kind}]\n  {item.excerpt}\n  {item.place}\n")


def symbol(
    name: Annotated[str, typer.Argument(help="A name such as nisa.nc_matmul.")], as_json: JsonFlag = False
) -> None:
    """A symbol's page: signature, what it computes, operand rules, cost, generations."""
    found = knowledge.find_symbol(name)
    if as_json:
        print_json(found.document())
        return
    page = knowledge.Index.standard().page(f"symbol/{found.name}")
    assert page is not None
    print(page.text())


def error(
    code: Annotated[
        str | None, typer.Argument(help="A code such as NCC_EVRF001 or EVRF001; none lists them all.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """An error code's page, or the list of codes by category."""
    if code is not None:
        found = knowledge.find_error(code)
        if as_json:
            print_json(found.document())
            return
        page = knowledge.Index.standard().page(f"error/{found.code}")
        assert page is not None
        print(page.text())
        return
    groups: dict[str, list[knowledge.ErrorEntry]] = {}
    for entry in knowledge.errors().values():
        groups.setdefault(entry.area, []).append(entry)
    if as_json:
        listed = [{"code": item.code, "title": item.title} for items in groups.values() for item in items]
        areas = {area: [item.code for item in items] for area, items in groups.items()}
        print_json({"errors": listed, "categories": areas})
        return
    for area, entries in groups.items():
        print(f"{area}: {knowledge.areas().get(area, '')}")
        print_table(["code", "what"], [[f"  {item.code}", item.title] for item in entries])


def toc(as_json: JsonFlag = False) -> None:
    """The table of contents."""
    rows = knowledge.Index.standard().contents()
    if as_json:
        print_json({"pages": [{"kind": kind, "id": page, "title": title} for kind, page, title in rows]})
        return
    kind = ""
    for row_kind, _, title in rows:
        if row_kind != kind:
            kind = row_kind
            print(f"\n{kind}")
        print(f"  {title}")


def index(
    folder: Annotated[Path, typer.Argument(help="A folder of documents: Markdown, reStructuredText, text, Python.")],
    as_json: JsonFlag = False,
) -> None:
    """Add a folder of documents to the search; run it again to take in what changed."""
    counts = knowledge.Index.standard().add_folder(folder)
    if as_json:
        print_json({"folder": str(folder), **counts})
    else:
        note(
            f"{folder}: {counts['files']} files, {counts['added']} read, {counts['unchanged']} unchanged, {counts['removed']} removed"
        )
