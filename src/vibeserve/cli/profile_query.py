"""`vibeserve profile schema|sql|summary`."""

from __future__ import annotations

from typing import Annotated

import typer

from vibeserve import profiles
from vibeserve.cli.output import JsonFlag, finite, note, print_json, print_table
from vibeserve.cli.profile_store import DataPath, Name


def schema(
    name: Name,
    table: Annotated[str | None, typer.Argument(help="One table; all where it is left out.")] = None,
    data_path: DataPath = None,
    as_json: JsonFlag = False,
) -> None:
    """Describe a profile's tables and columns: type, unit, meaning, pitfall."""
    document = profiles.describe(profiles.open(name, data_path), table)
    if as_json:
        print_json(document)
        return
    for item in document["tables"]:
        note(f"{item['name']} ({item['rows']} rows): {item['about']}")
        if table is not None:
            rows = [
                [
                    c["name"],
                    c["type"],
                    c["unit"] or "",
                    c["description"] + (f" — mind: {c['pitfall']}" if c["pitfall"] else ""),
                ]
                for c in item["columns"]
            ]
            print_table(["column", "type", "unit", "meaning"], rows)


def sql(
    name: Name,
    query: Annotated[str, typer.Argument(help="One SELECT over the profile's tables.")],
    limit: Annotated[int, typer.Option("--limit", help="Most rows to return.", min=1, max=100_000_000)] = 10_000,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds until it is stopped.", min=0.001, max=86_400, callback=finite)
    ] = 20.0,
    data_path: DataPath = None,
    as_json: JsonFlag = False,
) -> None:
    """Query a profile with SQL (DuckDB's). Only its own tables can be read; nothing can be written."""
    result = profiles.query(profiles.open(name, data_path), query, profiles.Limits(seconds=timeout, rows=limit))
    if as_json:
        print_json(result.document())
        return
    print_table([column["name"] for column in result.columns], result.rows)
    if result.truncated:
        note(f"only the first {limit} rows are shown (--limit)")


def summary(
    names: Annotated[list[str], typer.Argument(help="One profile: its metrics. Several: the tracking table.")],
    data_path: DataPath = None,
    as_json: JsonFlag = False,
) -> None:
    """A profile's metrics under the device tool's names; several profiles make an optimisation tracking table."""
    found = [profiles.open(name, data_path) for name in names]
    if len(found) == 1:
        metrics = {
            key: value for key, value in profiles.metrics(found[0]).items() if not isinstance(value, list | dict)
        }
        if as_json:
            print_json(metrics)
        else:
            print_table(["metric", "value"], metrics.items())
        return
    rows = profiles.tracking_table(found)
    if as_json:
        print_json({"profiles": rows})
    else:
        print_table(list(rows[0]), [["" if value is None else _short(value) for value in row.values()] for row in rows])


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
