"""`vibeserve optimize` and `vibeserve resume`: build the server made for a bundle's workload, and prove it."""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from vibeserve.base.errors import CheckError
from vibeserve.base.paths import runs_dir as default_runs_dir
from vibeserve.cli.output import MOST_SEED, JsonFlag, note, print_json

RunsDir = Annotated[Path | None, typer.Option("--runs-dir", help="Where the runs lie (VIBESERVE_RUNS_DIR, ./runs).")]
Require = Annotated[bool, typer.Option("--require-improvement", help="Exit 1 where nothing better was proved.")]


def optimize(
    bundle: Annotated[str | None, typer.Argument(help="A bundle's directory, or the name of a packaged one.")] = None,
    rounds: Annotated[int | None, typer.Option(help="At most so many rounds.")] = None,
    budget: Annotated[
        str, typer.Option(help="For all of it: 90s, 10m, 1.5h; with an agent also '1h, 400k tokens, $5'.")
    ] = "10m",
    agent: Annotated[
        str, typer.Option(help="Who edits: playbook, claude, codex, gemini, opencode, acp:CMD or openai:MODEL.")
    ] = "playbook",
    parallel: Annotated[int, typer.Option(help="Hypotheses that an agent works out at once.")] = 1,
    runs_dir: RunsDir = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=MOST_SEED, help="Of prompts and order; without it, drawn and recorded.")
    ] = None,
    require_improvement: Require = False,
    here: Annotated[
        bool, typer.Option("--here", help="Measure here though the bundle is for another machine.")
    ] = False,
    ref: Annotated[str | None, typer.Option("--ref", help="The reference's directory (instead of a bundle).")] = None,
    acc_checker: Annotated[str | None, typer.Option("--acc-checker", help="The accuracy checker's directory.")] = None,
    bench: Annotated[str | None, typer.Option("--bench", help="The benchmark's directory.")] = None,
    objective: Annotated[str | None, typer.Option("--objective", help="OBJECTIVE.md, where it lies elsewhere.")] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="NAME:higher or NAME:lower.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Let the model's own code run.")] = False,
    require_sandbox: Annotated[
        bool, typer.Option("--require-sandbox", help="Exit 3 where no sandbox works here.")
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Build the server made for a bundle's workload, and prove it. Ctrl-C keeps everything; `resume` goes on."""
    from vibeserve.measure.sandbox import choose
    from vibeserve.search import Request, begin
    from vibeserve.search.budget import parse_budget

    choose(require_sandbox)
    amounts = parse_budget(budget)
    request = Request(
        bundle=bundle,
        ref=ref,
        acc_checker=acc_checker,
        bench=bench,
        objective=objective,
        metric=metric,
        agent=agent,
        rounds=rounds,
        budget_s=amounts.seconds,
        tokens=amounts.tokens,
        cost_usd=amounts.cost_usd,
        parallel=parallel,
        # Drawn where it is not given: a seed that everybody knows would be prompts that everybody knows.
        seed=secrets.randbits(31) if seed is None else seed,
        here=here,
        trust_remote_code=trust_remote_code,
    )
    with _outside(request.budget_s) as outside:
        directory = begin(request, runs_dir or default_runs_dir(), outside)
        note(f"run {directory}")
        document = _work(directory, outside)
    return _told(directory, document, json, require_improvement)


def resume(
    run: Annotated[str, typer.Argument(help="A run's name, or its directory; latest is the newest.")],
    runs_dir: RunsDir = None,
    require_improvement: Require = False,
    json: JsonFlag = False,
) -> int:
    """Go on with an interrupted run, in the environment that it was begun in."""
    from vibeserve.search import find

    directory = find(run, runs_dir).directory
    with _outside() as outside:
        document = _work(directory, outside)
    return _told(directory, document, json, require_improvement)


def _work(directory: Path, outside: Any) -> dict[str, Any]:
    from vibeserve.search import go_on
    from vibeserve.search.run_report import write_report

    signal.signal(signal.SIGTERM, _interrupt)
    document = go_on(directory, outside)
    page, _ = write_report(document, directory)
    return document | {"report": str(page)}


def _told(directory: Path, document: dict[str, Any], json: bool, require_improvement: bool) -> int:
    from vibeserve.search import summary

    page = document["report"]
    if json:
        print_json(document)
    else:
        print("\n".join(summary(document)))
        print(f"report     {page}")
        print(f"serve it   vibeserve serve {directory}")
    improvement = document["improvement"]
    if require_improvement and not (improvement["ci95"] and improvement["ci95"][0] > 1):
        raise CheckError(f"no improvement was proved: {improvement['reason']}", hint=f"the report is {page}")
    return 0


@contextlib.contextmanager
def _outside(budget_s: float | None = None) -> Iterator[Any]:
    from vibeserve.search import Outside
    from vibeserve.search.world import SystemWorld

    with _teller(budget_s) as tell:
        yield Outside(world=SystemWorld(note=note), tell=tell)


@contextlib.contextmanager
def _teller(budget_s: float | None) -> Iterator[Callable[[float, str, str], None]]:
    """Shows events as they are recorded, with the time: above a bar on a terminal, as plain lines elsewhere."""

    def line(at_s: float, text: str) -> str:
        shown = " ".join(text.split())
        return f"[{int(at_s) // 60:3d}:{int(at_s) % 60:02d}] {shown if len(shown) <= 240 else shown[:239] + '…'}"

    if not sys.stderr.isatty():
        yield lambda at_s, kind, text: note(line(at_s, text))
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("working", total=budget_s)

        def tell(at_s: float, kind: str, text: str) -> None:
            console.print(line(at_s, text), markup=False)
            progress.update(task, completed=at_s, description=kind)

        yield tell


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
