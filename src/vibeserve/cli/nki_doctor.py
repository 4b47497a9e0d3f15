"""`vibeserve nki doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import Exit

from vibeserve.base.errors import EXIT_DOES_NOT_HOLD, EXIT_MISSING, MissingError
from vibeserve.cli.output import JsonFlag, note, print_json, print_table
from vibeserve.nki import doctor as checks


def doctor(
    script: Annotated[
        Path | None, typer.Argument(help="A device script to look at too.", exists=True, dir_okay=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="A profiling output directory to look at too.")
    ] = None,
    header: Annotated[
        bool, typer.Option("--header", help="Print a ready header for a script, and nothing else.")
    ] = False,
    artifacts: Annotated[
        bool, typer.Option("--artifacts", help="Print how to keep and find compiler artifacts, and nothing else.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check the environment for kernel work: kernel environment, device, packages, targets, flags, disk.

    Exits 3 where no kernel environment is configured, 1 where something else is wrong.
    """
    if header:
        print(checks.HEADER, end="")
        return
    if artifacts:
        _show_artifacts(as_json)
        return
    found = checks.diagnose(checks.this_machine(), script, output)
    wrong = [item for item in found if item.ok is False]
    lacking = MissingError(
        checks.NOT_CONFIGURED, hint="without a device, kernels run on the simulator: vibeserve nki run SCRIPT"
    )
    missing = any(item.detail == checks.NOT_CONFIGURED for item in wrong)
    if as_json:
        document: dict[str, object] = {"ok": not wrong, "checks": [item.document() for item in found]}
        error = {"code": lacking.code, "message": lacking.message, "hint": lacking.hint}
        print_json({"error": error, **document} if missing else document)
        if missing:
            note(f"error: {lacking.message}\nhint: {lacking.hint}")
            raise Exit(EXIT_MISSING)
    else:
        marks = {True: "ok", False: "WRONG", None: "not run"}
        print_table(
            ["check", "", "what was seen", "what to do"],
            [[item.name, marks[item.ok], item.detail, item.fix] for item in found],
        )
    if missing:
        raise lacking
    if wrong:
        raise Exit(EXIT_DOES_NOT_HOLD)


def _show_artifacts(as_json: bool) -> None:
    help_on = checks.artifact_help()
    if as_json:
        print_json(help_on)
        return
    print_table(["set", "keeps"], [[item["set"], item["keeps"]] for item in help_on["keep"]])
    print()
    print_table(["where", "what lies there"], [[item["path"], item["holds"]] for item in help_on["places"]])
