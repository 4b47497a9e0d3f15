"""Puts each verb's help into docs/cli.md, between its two markers. With --check it changes nothing, and exits 1 where that would."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

from vibeserve.base.errors import MissingError
from vibeserve.cli.main import command
from vibeserve.cli.verbs import GROUPS, VERBS

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
BEGIN = "<!-- verbs: written by `make docs` from the command line's own help -->"
END = "<!-- end of verbs -->"
WIDTH = 100


def help_of(verb: str) -> str:
    """What `vibeserve VERB --help` prints, at a fixed width."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            command().main(args=[*verb.split(), "--help"], prog_name="vibeserve", standalone_mode=False)
    except MissingError as error:
        return error.message
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


def verbs_text() -> str:
    """All verbs under their panels, each with its line and its help."""
    panels: dict[str, list[str]] = {}
    for verb, entry in VERBS.items():
        text = f"### vibeserve {verb}\n\n{entry.help}\n\n```text\n{help_of(verb)}\n```"
        panels.setdefault(entry.panel, []).append(text)
    groups = {
        panel: [f"`vibeserve {name}`: {text}" for name, (text, where) in GROUPS.items() if where == panel]
        for panel in panels
    }
    parts = []
    for panel, texts in panels.items():
        parts.append("\n\n".join([f"## {panel}", *groups[panel], *texts]))
    return "\n\n".join(parts)


def with_verbs(page: str) -> str:
    """`page` with what stands between the markers written anew."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} lacks its markers")
    return f"{head}{BEGIN}\n\n{verbs_text()}\n\n{END}{tail}"


def main() -> int:
    """Write the page, or check it."""
    page = PAGE.read_text(encoding="utf-8")
    new = with_verbs(page)
    if new == page:
        print(f"{PAGE.name}: {len(VERBS)} verbs, as they are")
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{PAGE.name} is not what the command line's help says; run 'make docs'")
        return 1
    PAGE.write_text(new, encoding="utf-8")
    print(f"{PAGE.name}: written, {len(VERBS)} verbs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
