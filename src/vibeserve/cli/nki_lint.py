"""`vibeserve nki lint`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import Exit

from vibeserve.base.errors import EXIT_DOES_NOT_HOLD, InputError
from vibeserve.base.files import DiskFiles, write_text
from vibeserve.cli.output import JsonFlag, note, print_json
from vibeserve.nki import lint as linting

_FORMATS = ("human", "json", "sarif", "github")


def lint(
    paths: Annotated[list[Path], typer.Argument(help="Python files and directories.")],
    fix: Annotated[bool, typer.Option("--fix", help="Rewrite what is mechanical.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what --fix would change, and change nothing.")] = False,
    nki_version: Annotated[
        str | None, typer.Option("--nki-version", help="0.1 to 0.6 (default: deduced from the file, else 0.4).")
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option("--select", help="Only these rules (patterns such as 'P-*').")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", help="Not these rules.")] = None,
    output_format: Annotated[str, typer.Option("--format", help="human, json, sarif or github.")] = "human",
    as_json: JsonFlag = False,
) -> None:
    """Find what a kernel may not do in its NKI version, what is slow, and fix what is mechanical.

    Exits 1 where an error or a warning is left; hints (perf, info, style) alone exit 0.
    """
    shape = "json" if as_json else output_format
    if shape not in _FORMATS:
        raise InputError(f"unknown format '{shape}'", hint=f"one of {', '.join(_FORMATS)}")
    options = linting.Options(
        linting.checked_version(nki_version), linting.checked_rules(select or ()), linting.checked_rules(ignore or ())
    )
    if fix or diff:
        _fix(paths, options, write=fix and not diff)
    findings = linting.lint_paths(paths, options)
    if shape == "json":
        print_json({"findings": [item.document() for item in findings]})
    elif shape == "sarif":
        print_json(linting.sarif(findings))
    elif findings:
        print(linting.github(findings) if shape == "github" else linting.human(findings))
    if shape == "human":
        note(f"{len(findings)} finding(s)" if findings else "nothing found")
    if any(item.severity in ("error", "warn") for item in findings):
        raise Exit(EXIT_DOES_NOT_HOLD)


def _fix(paths: list[Path], options: linting.Options, write: bool) -> None:
    for path in linting.python_files(paths):
        try:
            before = linting.read_source(path)
        except (UnicodeDecodeError, OSError):
            continue
        fixed = linting.fix_text(before, str(path), linting.configured(path.parent, options))
        if fixed.text == before:
            continue
        if write:
            write_text(DiskFiles(), path, fixed.text)
            note(f"fixed {path}: {', '.join(f'{rule} × {count}' for rule, count in fixed.applied.items())}")
        else:
            print(fixed.diff(before, str(path)), end="")
