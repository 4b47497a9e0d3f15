"""`vibeserve nki run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vibeserve.base.errors import MissingError
from vibeserve.cli.output import JsonFlag, print_json

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def run(
    script: Annotated[Path, typer.Argument(help="The script; what follows it are its own arguments.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    target: Annotated[str | None, typer.Option(help="trn1, trn2 or trn3.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print one line for each instruction on stderr.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Reports (uninitialised reads, races) fail.")] = False,
    json: JsonFlag = False,
) -> None:
    """Run a script, its NKI kernels on the simulator. Exits with the script's own code."""
    from vibeserve.nki.errors import NotSimulatedError
    from vibeserve.nki.running import LaunchObserver, run_script

    watcher = LaunchObserver()
    try:
        code = run_script(
            script, arguments or [], to_stderr=json, target=target, trace=trace or None, strict=strict or None,
            observers=(watcher,) if json else None,
        )  # fmt: skip
    except NotSimulatedError as error:
        raise MissingError(
            f"not simulated yet: {error.name} (at {error.place})", hint="see docs/nki-coverage.md"
        ) from None
    if json:
        print_json({"script": str(script), "exit_code": code, "launches": watcher.launches})
    raise typer.Exit(code)


run.context_settings = CONTEXT  # type: ignore[attr-defined]
