"""`vibeserve nki explain|artifacts`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vibeserve import knowledge
from vibeserve.base.errors import InputError
from vibeserve.cli.output import JsonFlag, note, print_json, print_table
from vibeserve.nki import lint as linting


def explain(
    message: Annotated[
        str, typer.Argument(help="A message, a log file such as log-neuron-cc.txt, or - for standard input.")
    ],
    kernel: Annotated[
        Path | None,
        typer.Option(
            "--kernel", help="The kernel's source: the likely line is found in it.", exists=True, dir_okay=False
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Explain a compiler message, an exception or a log: what it means, what to do, and the likely line."""
    if message == "-":
        text = sys.stdin.read()
    elif len(message) < 4096 and "\n" not in message and Path(message).is_file():
        text = Path(message).read_text(encoding="utf-8", errors="replace")
    elif message.endswith((".txt", ".log")) and " " not in message:
        raise InputError(
            f"no such file: {message}", hint="give a log file, a message in quotes, or - for standard input"
        )
    else:
        text = message
    if not text.strip():
        raise InputError("nothing to explain", hint="give a message, a log file, or - and the text on standard input")
    found = [(item, _likely(item, text, kernel)) for item in knowledge.explain(text)]
    if as_json:
        print_json({"matches": [_document(item, places) for item, places in found]})
        return
    if not found:
        note("no known code or message in it: try 'vibeserve docs search' with its words")
    for item, places in found:
        where = f" ({item.file}:{item.line})" if item.file else ""
        print(f"{item.code}: {item.title}{where}")
        for cause in item.cause:
            print(f"  - {cause}")
        for fix in item.fix:
            print(f"  → {fix}")
        for place in places:
            print(f"  likely {place.file}:{place.line}: {place.text}\n    {place.why}")
        if kernel is not None and not places:
            print(f"  no line of {kernel} fits it")
        print()


def _likely(match: knowledge.Match, text: str, kernel: Path | None) -> list[linting.Place]:
    if kernel is None:
        return []
    message = "\n".join(text.splitlines()[max(0, match.at_line - 3) : match.at_line + 3])
    return linting.likely(match.code, message, kernel.read_text(encoding="utf-8", errors="replace"), str(kernel))


def _document(match: knowledge.Match, places: list[linting.Place]) -> dict[str, Any]:
    """The match, with the likely place as file and line where the text itself names none."""
    document = match.document()
    if match.file is None and places:
        document |= {"file": places[0].file, "line": places[0].line}
    return {**document, "likely": [item.document() for item in places]}


def artifacts(
    directory: Annotated[
        str, typer.Argument(metavar="DIR|latest", help="A compiler work directory, or the newest one.")
    ] = "latest",
    as_json: JsonFlag = False,
) -> None:
    """Say what lies in a compiler's work directory: files, errors, warnings, pass times, memory figures."""
    found = knowledge.read_artifacts(knowledge.latest_workdir() if directory == "latest" else Path(directory))
    from vibeserve.nki import compiled

    kernels = compiled.kernels(found.directory) if found.neffs else []
    if as_json:
        print_json({**found.document(), "kernels": [item.document() for item in kernels]})
        return
    print_table(["file", "what it is"], [[item.path, item.what] for item in found.files])
    for item in found.errors:
        print(f"error: {item['text']}")
        if item["code"]:
            print(f"  {item['code']}: {item['title']}")
    for text in found.warnings[:20]:
        print(f"warning: {text}")
    if found.passes:
        print_table(["pass", "seconds"], [[item["name"], f"{item['seconds']:.2f}"] for item in found.passes[:15]])
    for item in found.memory[:20]:
        print(f"memory: {item['what']} {item['value']} {item['unit']}")
    for neff in kernels:
        print("\n".join(neff.lines()) + (f"\n  {neff.note}" if neff.note else ""))
