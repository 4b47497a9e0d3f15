"""`vibeserve runs`, `show`, `report`, `export`: look at what runs have found, and take it along."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vibeserve.cli.optimize import RunsDir
from vibeserve.cli.output import JsonFlag, note, print_json, print_table

RunName = Annotated[
    str, typer.Argument(metavar="RUN[:CANDIDATE]", help="A run's name or directory; latest is the newest.")
]


def runs(runs_dir: RunsDir = None, json: JsonFlag = False) -> int:
    """List the runs, oldest first, each with its best value."""
    from vibeserve.search import list_runs

    rows = list_runs(runs_dir)
    if json:
        print_json({"runs": rows})
        return 0
    if not rows:
        note("no runs yet: 'vibeserve optimize BUNDLE' makes one")
        return 0
    columns = ("run", "bundle", "state", "started", "best", "improvement")
    print_table(columns, [_line(row) for row in rows])
    return 0


def _line(row: dict[str, Any]) -> list[str]:
    best, improvement = row["best"] or {}, row["improvement"] or {}
    value, ratio, interval = best.get("value"), improvement.get("ratio"), improvement.get("ci95")
    unit = (row.get("metric") or {}).get("unit", "")
    shown = "–" if value is None else f"{value:.4g} {unit}"
    better = (
        "–" if ratio is None else f"{ratio:.3g}×" + (f" ({interval[0]:.3g} to {interval[1]:.3g})" if interval else "")
    )
    return [row["run"], row["bundle"] or "–", row["state"], (row["started"] or "–")[:19], shown, better]


def show(run: RunName, runs_dir: RunsDir = None, json: JsonFlag = False) -> int:
    """Show a run with its rounds, or one candidate of it with its gates."""
    from vibeserve.base.errors import InputError
    from vibeserve.search import RunView, candidate_document, candidate_of, document, find, summary

    found = find(run, runs_dir)
    with RunView(found.directory) as view:
        try:
            shown = (
                document(view)
                if found.candidate is None
                else candidate_document(view, candidate_of(view, found.candidate))
            )
        except LookupError as error:
            raise InputError(str(error), hint="it ended before it began; start a new one") from None
    if json:
        print_json(shown)
    elif found.candidate is None:
        print("\n".join(summary(shown)))
        rows = [
            [
                entry["round"],
                entry["candidate"],
                entry["technique"],
                entry["verdict"] or "–",
                _value(entry),
                entry["reason"],
            ]
            for entry in shown["rounds"]
        ]
        print_table(("round", "candidate", "technique", "verdict", "value", "reason"), rows)
    else:
        _candidate(shown)
    return 0


def _value(entry: dict[str, Any]) -> str:
    return "–" if entry["value"] is None else f"{entry['value']:.4g}"


def _candidate(entry: dict[str, Any]) -> None:
    print(f"{entry['candidate']}  round {entry['round']}, from {entry['parent'] or 'the bundle'}: {entry['technique']}")
    print(f"hypothesis  {entry['hypothesis']}")
    print(f"verdict     {entry['verdict']}: {entry['reason']}")
    print(f"settings    {', '.join(f'{name} = {value}' for name, value in entry['settings'].items()) or 'none'}")
    print(f"commit      {entry['commit']}")
    words = {True: "passed", False: "failed", None: "not run"}
    print_table(
        ("gate", "outcome", "detail"), [[gate["name"], words[gate["ok"]], gate["detail"]] for gate in entry["gates"]]
    )
    evidence = entry["evidence"].items()
    print_table(
        ("evidence", "value", "unit", "known"),
        [[name, f"{fact['value']:.5g}", fact["unit"], fact["provenance"]] for name, fact in evidence],
    )


def report(
    run: Annotated[str, typer.Argument(help="A run's name or directory; latest is the newest.")],
    html: Annotated[Path | None, typer.Option(help="Write the page here instead of beside the run.")] = None,
    runs_dir: RunsDir = None,
    json: JsonFlag = False,
) -> int:
    """Write a run's report (HTML, and Markdown beside it) from its store."""
    from vibeserve.base.errors import InputError
    from vibeserve.search import RunView, document, find
    from vibeserve.search.run_report import write_report

    directory = find(run, runs_dir).directory
    with RunView(directory) as view:
        try:
            whole = document(view)
        except LookupError as error:
            raise InputError(str(error), hint="it ended before it began; start a new one") from None
    page, text = write_report(whole, directory, html=html)
    if json:
        print_json({"run": whole["run"], "report": page, "markdown": text})
    else:
        print(page)
        note(f"and {text}")
    return 0


def export(
    run: RunName,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that does not exist yet.")],
    runs_dir: RunsDir = None,
    json: JsonFlag = False,
) -> int:
    """Copy a run's best server (or the candidate named) into a directory that runs on its own."""
    from vibeserve.search import export as write

    document = write(run, directory, runs=runs_dir)
    if json:
        print_json(document)
    else:
        print(
            f"{document['path']}: candidate {document['candidate']} of {document['run']}, {len(document['files'])} files"
        )
        note(f"how to run it: {directory / 'README.md'}")
    return 0
