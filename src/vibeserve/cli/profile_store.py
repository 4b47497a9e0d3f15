"""`vibeserve profile ingest|list|delete|rename`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vibeserve import profiles
from vibeserve.cli.output import JsonFlag, note, print_json, print_table

DataPath = Annotated[
    Path | None,
    typer.Option(
        "--data-path", help="The profile store (default: VIBESERVE_DATA_PATH, else ~/.local/share/neuron-profile)."
    ),
]
Name = Annotated[str, typer.Argument(help="The profile's name.")]


def ingest(
    source: Annotated[
        Path | None,
        typer.Argument(help="A folder of parquet files, a NEFF, a JSON (.gz) or CSV, a trace, or an nsys export."),
    ] = None,
    neff: Annotated[
        Path | None, typer.Option("-n", "--neff-path", help="The NEFF (as the device tool takes it).")
    ] = None,
    ntff: Annotated[Path | None, typer.Option("-s", "--ntff", "--session-file", help="The trace of the NEFF.")] = None,
    display_name: Annotated[str, typer.Option("--display-name", help="The name to keep it under.")] = ...,  # type: ignore[assignment]
    remark: Annotated[str, typer.Option("--note", help="What changed; a column of the tracking table.")] = "",
    data_path: DataPath = None,
    as_json: JsonFlag = False,
) -> None:
    """Take a profile into the store under a name, replacing what was there."""
    from vibeserve.base.errors import InputError

    chosen = source or neff
    if chosen is None:
        raise InputError("no profile source", hint="give a folder, a file, or -n KERNEL.neff -s profile.ntff")
    stored = profiles.ingest(chosen, display_name, ntff=ntff, note=remark, data_path=data_path)
    document: dict[str, Any] = {
        "name": stored.name,
        "path": str(stored.directory),
        "tables": {name: stored.rows(name) for name in stored.table_names()},
        "missing_columns": stored.info.get("missing_columns", {}),
        "extra_columns": stored.info.get("extra_columns", {}),
        "quality": [item.document() for item in profiles.quality(stored)],
    }
    if as_json:
        print_json(document)
        return
    note(f"stored as {stored.name} in {stored.directory}")
    print_table(["table", "rows"], document["tables"].items())
    for item in document["quality"]:
        if item["ok"] is False:
            note(f"mind: {item['detail']}" + (f" — {item['fix']}" if item["fix"] else ""))


def list_profiles(data_path: DataPath = None, as_json: JsonFlag = False) -> None:
    """List the profiles of the store."""
    found = profiles.list_profiles(data_path)
    if as_json:
        print_json({"profiles": found})
    elif found:
        print_table(
            ["name", "created", "source", "note"], [[p["name"], p["created"], p["source"], p["note"]] for p in found]
        )
    else:
        note("no profile yet: 'vibeserve profile ingest SOURCE --display-name NAME'")


def delete(name: Name, data_path: DataPath = None, as_json: JsonFlag = False) -> None:
    """Delete a profile."""
    profiles.delete(name, data_path)
    if as_json:
        print_json({"deleted": name})
    else:
        note(f"deleted {name}")


def rename(
    name: Name,
    new_name: Annotated[str, typer.Argument(help="Its new name.")],
    data_path: DataPath = None,
    as_json: JsonFlag = False,
) -> None:
    """Give a profile another name."""
    profiles.rename(name, new_name, data_path)
    if as_json:
        print_json({"renamed": name, "to": new_name})
    else:
        note(f"{name} is now {new_name}")
