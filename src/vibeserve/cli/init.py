"""`vibeserve init`: propose, ask, write, validate, hand off."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vibeserve.base.errors import EXIT_BAD_INPUT, EXIT_DOES_NOT_HOLD, EXIT_OK
from vibeserve.cli.output import JsonFlag, note, print_json

_CORRECTIONS = ("modality", "api", "slug", "source", "goal")


def init(
    model: Annotated[str, typer.Option("--model", help="Model id (ORG/NAME), or a checkpoint directory.")] = "",
    revision: Annotated[str | None, typer.Option("--revision", help="The model's revision.")] = None,
    hardware: Annotated[str | None, typer.Option("--hardware", help="The machine: H100, trn2, MacBook, CPU …")] = None,
    goal: Annotated[str, typer.Option("--goal", help="The workload and what to optimise, in plain English.")] = "",
    modality: Annotated[
        str | None, typer.Option("--modality", help="Correct the modality: a name, or 'IN -> OUT'.")
    ] = None,
    slug: Annotated[str | None, typer.Option("--slug", help="Correct the name (put in hyphen case).")] = None,
    dest: Annotated[
        Path | None, typer.Option("--dest", help="Parent directory (default examples/model-serving).")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write what is proposed without asking.")] = False,
    exact_slug: Annotated[bool, typer.Option("--exact-slug", help="Use --slug as it is written.")] = False,
    api: Annotated[str | None, typer.Option("--api", help="Correct the API.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Start from this example instead.")] = None,
    json: JsonFlag = False,
) -> int:
    """Make a bundle from a model id, a machine and a sentence. Nothing is written before a yes."""
    from vibeserve.targets import propose

    given: dict[str, Any] = {"model": model, "hardware": hardware, "goal": goal, "modality": modality, "api": api,
                             "slug": slug, "source": source}  # fmt: skip
    fixed: dict[str, Any] = {"revision": revision, "exact_slug": exact_slug, "dest": dest}
    terminal = sys.stdin.isatty() and not yes and not json
    if terminal:
        _ask_missing(given)
    while True:
        proposal = propose(**given, **fixed)
        if proposal.reading.vague:
            if not terminal:
                return _not_written(proposal, json, "pass --goal with a metric, a load and lengths")
            given["goal"] = f"{given['goal']} {input(proposal.question + ' ')}".strip()
            continue
        if yes:
            break
        if not terminal:
            return _not_written(
                proposal, json, "pass --yes to write it; --modality, --api, --slug or --source to correct it"
            )
        print(f"I read the goal as: {proposal.said_back}.", *(f"({n})" for n in proposal.reading.notes))
        print(f"source example: {proposal.source_name} ({proposal.source_reason})")
        answer = input(f"{proposal.question} [yes, no, or {'=…, '.join(_CORRECTIONS)}=…] ").strip()
        if answer.lower() in ("y", "yes"):
            break
        name, _, value = answer.partition("=")
        if name.strip() not in _CORRECTIONS or not value.strip():
            note("nothing was written")
            return EXIT_BAD_INPUT
        given[name.strip()] = value.strip()
    return _write(proposal, json)


def _ask_missing(given: dict[str, Any]) -> None:
    for name, question in (
        ("model", "Which model? (ORG/NAME, or a checkpoint directory) "),
        ("hardware", "On which machine? (H100, trn2, MacBook, CPU …) "),
        ("goal", "What should it be good at? In plain English: metric, load, prompt and answer lengths. "),
    ):
        if not given[name]:
            given[name] = input(question).strip()


def _not_written(proposal: Any, json: bool, hint: str) -> int:
    if json:
        print_json(proposal.document())
    else:
        print(f"I read the goal as: {proposal.said_back}.")
        for remark in proposal.reading.notes:
            print(f"  {remark}")
        print(f"source example: {proposal.source_name} ({proposal.source_reason})")
        print(proposal.question)
    note(f"hint: nothing was written; {hint}")
    return EXIT_BAD_INPUT


def _write(proposal: Any, json: bool) -> int:
    from vibeserve.hardware import names
    from vibeserve.targets import validate, write_bundle

    files = write_bundle(proposal, known_hardware=names())
    result = validate(proposal.path)
    if json:
        document = proposal.document(written=True, files=files)
        print_json({**document, "validation": {"ok": result.ok, "checks": result.checks}})
    else:
        for check in result.checks:
            if check.ok is not True:
                print(f"{'FAIL' if check.ok is False else 'not run':8} {check.name}: {check.detail}")
        print(f"bundle:  {proposal.shown_path} ({len(files)} files, {'valid' if result.ok else 'NOT valid'})")
        print(
            f"source:  {proposal.source_name}"
            + (f" (by way of {proposal.source.name})" if proposal.source.name != proposal.source_name else "")
        )
        print(f"goal:    {proposal.said_back}")
        print(f"next:    {proposal.next_command}")
    if not result.ok:
        note("hint: mend what fails, then: vibeserve validate " + proposal.shown_path)
    return EXIT_OK if result.ok else EXIT_DOES_NOT_HOLD
