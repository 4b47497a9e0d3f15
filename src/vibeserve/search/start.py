"""Beginning a run, going on with one, and ending both well."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vibeserve.agents.agent import Agent, Goal
from vibeserve.agents.coding import CodingAgent
from vibeserve.agents.desk import Limits, Sandbox
from vibeserve.base.clock import Clock, SystemClock
from vibeserve.base.errors import InputError, InterruptedRunError, MissingError, VibeServeError
from vibeserve.base.processes import ProcessRunner, SystemRunner, sweep
from vibeserve.measure import explain_difference
from vibeserve.search.context import Run, group_of
from vibeserve.search.document import document
from vibeserve.search.journal import Journal
from vibeserve.search.lab import Lab
from vibeserve.search.ledger import desk_of
from vibeserve.search.loop import search
from vibeserve.search.plan import Plan, make_plan, warning
from vibeserve.search.request import Request
from vibeserve.search.servers import Servers
from vibeserve.search.store import RunRow, RunStore, RunView, WriteHook
from vibeserve.search.workspace import Workspace

Tell = Callable[[float, str, str], None]


@dataclass(frozen=True)
class Prepared:
    """What a request comes to on this machine: the goal, who measures and who edits, and what resume compares."""

    goal: Goal
    lab: Lab
    agent: Agent
    reference: Path
    environment: dict[str, Any]
    device: dict[str, Any]
    notes: tuple[str, ...] = ()
    sandbox: Sandbox | None = None
    readable: tuple[Path, ...] = ()
    runner: ProcessRunner = field(default_factory=SystemRunner)


class World(Protocol):
    """Where a request becomes real: the machine's own (`vibeserve.search.world`), or a scripted one in tests."""

    def prepare(self, request: Request, directory: Path) -> Prepared:
        """Read the bundle, materialise the model, make laboratory and agent. Raises InputError and MissingError."""
        ...


@dataclass(frozen=True)
class Outside:
    """What is handed in from outside: the clock, the world, who is told, and hooks for tests."""

    world: World
    clock: Clock = field(default_factory=SystemClock)
    tell: Tell = lambda at_s, kind, text: None
    hook: WriteHook | None = None
    pid: int = field(default_factory=os.getpid)


def begin(request: Request, runs: Path, outside: Outside, plan: Plan | None = None) -> Path:
    """A new run's directory with its own row in the store; nothing has been measured yet.

    `plan` None is made from the request's budget and rounds.
    """
    plan = plan or make_plan(request.budget_s, request.rounds)
    runs = runs.absolute()  # servers, scripts and git work in directories of their own
    started = outside.clock.now()
    slug = re.sub(r"[^a-z0-9-]+", "-", Path(request.bundle or request.ref or "run").resolve().name.lower()).strip("-")
    not_there = [folder for folder in (runs, *runs.parents) if not folder.exists()]
    directory = _new_directory(runs, f"{started:%Y%m%d-%H%M%S}-{slug or 'run'}")
    try:
        prepared = outside.world.prepare(request, directory)
    except BaseException:
        for made in (directory, *not_there):  # nothing was begun in it
            with contextlib.suppress(OSError):  # somebody else has begun a run there meanwhile
                made.rmdir()
        raise
    for note in (*prepared.notes, warning(plan), request.warning()):
        if note:
            outside.tell(0.0, "note", note)
    row = RunRow(
        name=directory.name,
        state="running",
        reason="",
        bundle=prepared.goal.slug,
        request=request.to_dict() | {"goal": vars(prepared.goal), "plan": vars(plan), "notes": list(prepared.notes)},
        environment=prepared.environment,
        device=prepared.device,
        started=started.isoformat(),
        seed=request.seed,
    )
    store = RunStore(directory, hook=outside.hook)
    try:
        store.begin(row)
    finally:
        store.close()
    return directory


def _new_directory(runs: Path, name: str) -> Path:
    for number in range(1, 1000):
        directory = runs / (name if number == 1 else f"{name}-{number}")
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            hint = "choose another directory with --runs-dir"
            raise MissingError(f"cannot make {directory}: {error.strerror or error}", hint=hint) from None
        return directory
    raise InputError(f"{runs} is full of runs named {name}", hint="choose another directory with --runs-dir")


def go_on(directory: Path, outside: Outside) -> dict[str, Any]:
    """Work on a run until it is finished; returns its document. A finished run is left as it is.

    Raises InputError where the environment is not the recorded one, InterruptedRunError on Ctrl-C, and what the search
    raises where round 0 fails.
    """
    with RunView(directory) as view:
        row = view.run()
        if row.state == "finished":
            return document(view)
    request = Request.from_dict(row.request)
    prepared = outside.world.prepare(request, directory)
    if different := explain_difference(row.environment, prepared.environment):
        raise InputError(
            f"run {row.name} cannot go on here: {'; '.join(different)}",
            hint="figures from two environments cannot be compared: restore it, or start a new run",
        )
    store = RunStore(directory, hook=outside.hook)
    try:
        with _session(store, outside, row.name):
            prepared.lab.recover()
            run = _assemble(directory, store, prepared, Plan(**_plan(row)), outside)
            _furnish(run, request, prepared)
            with run.servers:
                search(run)
            store.set_state("finished")
        return document(store)
    finally:
        store.close()


def _plan(row: RunRow) -> dict[str, Any]:
    values = dict(row.request["plan"])
    return {**values, "curve_levels": tuple(values["curve_levels"])}


def _assemble(directory: Path, store: RunStore, prepared: Prepared, plan: Plan, outside: Outside) -> Run:
    workspace = Workspace(directory / "workspace")
    return Run(
        directory=directory,
        store=store,
        journal=Journal(store, outside.clock, tell=outside.tell),
        workspace=workspace,
        lab=prepared.lab,
        agent=prepared.agent,
        servers=Servers(prepared.lab, workspace, directory),
        clock=outside.clock,
        plan=plan,
        goal=prepared.goal,
        seed=store.run().seed,
        reference=prepared.reference,
    )


def _furnish(run: Run, request: Request, prepared: Prepared) -> None:
    """Give a coding agent its desk; what an earlier process of the run left of its agents is ended."""
    if isinstance(run.agent, CodingAgent):
        sweep(group_of(run.directory))
        limits = Limits(request.tokens, request.cost_usd, request.call_s, parallel=request.parallel)
        run.desk = desk_of(run, limits, prepared.runner, prepared.sandbox, prepared.readable)
        run.agent.use(run.desk)


@contextlib.contextmanager
def _session(store: RunStore, outside: Outside, name: str) -> Iterator[None]:
    """Notes how this process ends: by itself, by Ctrl-C, or by an error that the user is told of."""
    session, how = None, "killed"
    try:
        session = store.open_session(outside.pid, outside.clock.now().isoformat())
        store.set_state("running")
        yield
        how = "finished"
    except KeyboardInterrupt:
        how = "interrupted"
        store.set_state("interrupted")
        command = f"vibeserve resume {store.directory}"
        raise InterruptedRunError(f"run {name} was interrupted; nothing measured is lost", hint=command) from None
    except (sqlite3.OperationalError, OSError) as error:
        how = "failed"
        hint = f"see that {store.directory} can be written and has space; then: vibeserve resume {store.directory}"
        raise MissingError(f"run {name} cannot be written: {error}", hint=hint, code="cannot-write") from error
    except VibeServeError as error:
        how = "failed"
        store.set_state("failed", error.message)
        raise
    finally:
        if session is not None and how != "killed":
            with contextlib.suppress(sqlite3.OperationalError, OSError):
                store.close_session(session, outside.clock.now().isoformat(), how)
