"""`vibeserve evaluate`: every gate on a candidate that you made."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from vibeserve.base.errors import InputError
from vibeserve.cli.output import MOST_SEED, JsonFlag, finite, note, print_json, print_table


def evaluate(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="A bundle's directory, or a packaged one's name.")],
    candidate: Annotated[
        Path, typer.Option(help="The candidate's directory with its candidate.toml, or RUN:CANDIDATE.")
    ],
    against: Annotated[Path | None, typer.Option(help="Another candidate; without it, the bundle's reference.")] = None,
    runs_dir: Annotated[Path | None, typer.Option(help="Where the runs lie.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Time for all of it. Without it: about five minutes, more where noise asks for more pairs."),
    ] = None,
    pairs: Annotated[int | None, typer.Option(help="Pairs of windows, at least 5.")] = None,
    window: Annotated[float | None, typer.Option(min=0.1, callback=finite, help="Seconds of load in a window.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=MOST_SEED, help="Of prompts, probes and order; without it, drawn.")
    ] = None,
    model_dir: Annotated[Path | None, typer.Option(help="The model's directory; without it, the bundle's.")] = None,
    output: Annotated[Path | None, typer.Option(help="Keep every log and document in this directory.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Let the model's own code run.")] = False,
    require_sandbox: Annotated[
        bool, typer.Option("--require-sandbox", help="Exit 3 where no sandbox works here.")
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Put a candidate that you made through every gate: start, check, probe, measure.

    Exit 0: kept, or no better than the other; 1: rejected, or failed.
    """
    from vibeserve.measure import MIN_PAIRS
    from vibeserve.search.budget import parse_budget
    from vibeserve.search.evaluate import evaluate as run
    from vibeserve.targets import materialize, read_bundle

    target = read_bundle(bundle)
    if pairs is not None and pairs < MIN_PAIRS:
        raise InputError(f"--pairs {pairs} is too few for an interval", hint=f"measure at least {MIN_PAIRS}")
    seconds = parse_budget(budget).seconds if budget is not None else None
    if budget is not None and seconds is None:
        raise InputError(f"--budget {budget!r} names no time", hint="for example --budget 5m")
    weights = model_dir or materialize(target, trust_remote_code=trust_remote_code, note=note)
    if not weights.is_dir():
        raise InputError(f"there is no model directory {weights}", hint="leave --model-dir out to materialise it")
    with tempfile.TemporaryDirectory(prefix="vibeserve-evaluate-") as folder:
        found = run(
            target,
            _directory(candidate, weights, runs_dir, Path(folder) / "of-run"),
            weights,
            output_dir=output or Path(folder),
            seed=secrets.randbits(31) if seed is None else seed,
            pairs=pairs,
            window_s=window,
            budget_s=seconds,
            against=against and _directory(against, weights, runs_dir, Path(folder) / "of-run-against"),
            trust_remote_code=trust_remote_code,
            told=note,
            require_sandbox=require_sandbox,
        )
    if json:
        print_json(found.document() | {"candidate": str(candidate)})
    else:
        words = {True: "ok", False: "FAILED", None: "not run"}
        print_table(["gate", "", "detail"], [(gate.name, words[gate.ok], gate.detail[:140]) for gate in found.gates])
        print(f"{found.verdict}: {found.reason}")
        for line in found.comparison.notes if found.comparison else ():
            note(line)
    return 1 if found.rejected else 0


def _directory(named: Path, weights: Path, runs_dir: Path | None, place: Path) -> Path:
    """The directory that was named, or a copy in `place` of the commit that RUN:CANDIDATE names."""
    from vibeserve.search import open_candidate

    if named.exists() or ":" not in str(named):
        return named
    return open_candidate(str(named), runs_dir=runs_dir, destination=place, model_dir=weights)[0]
