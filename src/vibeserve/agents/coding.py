"""Any coding agent in three roles: it designs a hypothesis, implements it, and reviews the change before it is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

from vibeserve.agents import trees
from vibeserve.agents.agent import Edit, Proposal, SearchState, Stop
from vibeserve.agents.answers import Design, Ready, Review, Work
from vibeserve.agents.calls import ask
from vibeserve.agents.desk import AgentError, Desk, Driver, SpentError, Task
from vibeserve.agents.memory import STOP_ROUNDS, WARN_ROUNDS, barren, remembered
from vibeserve.agents.prompts import render
from vibeserve.base.errors import MissingError
from vibeserve.measure.sandbox import model_paths

#: How often the implementer may answer a reviewer who rejects.
REVISIONS = 1
READY_S = 120.0


class CodingAgent:
    """One driver in all roles. It measures nothing, and what it says is kept as claims."""

    def __init__(self, driver: Driver):
        self.driver = driver
        self.name = driver.name
        self._desk: Desk | None = None

    @property
    def desk(self) -> Desk:
        """Where it works; `use` sets it."""
        if self._desk is None:
            raise RuntimeError("a coding agent needs a desk: call use() first")
        return self._desk

    def use(self, desk: Desk) -> None:
        """Work at this desk from now on. Raises MissingError where the driver cannot work there."""
        if self.driver.confined and desk.sandbox is None:
            raise MissingError(
                f"{self.name} runs without asking anybody, so it needs a sandbox, and bubblewrap does not run here",
                hint="install bubblewrap (in a container: allow user namespaces); '--agent playbook' works without it",
            )
        if desk.limits.cost_usd is not None and not self.driver.tells_cost:
            raise MissingError(
                f"{self.name} does not say what it costs, so a budget of money cannot be kept",
                hint="give a budget of tokens instead",
            )
        self._desk = desk

    def ready(self) -> None:
        """One small call, before anything is measured. Raises MissingError where no answer comes."""
        prompt = render("ready", Ready)
        task = self._task("ready", "check", prompt, Ready, self._empty(), writes=False, number=0)
        try:
            ask(self.driver, self.desk, dataclasses.replace(task, timeout_s=min(task.timeout_s, READY_S)), 0)
        except AgentError as error:
            hint = error.hint or f"see {self.desk.folder / 'r0'}; '--agent playbook' needs no agent"
            raise MissingError(f"{self.name} does not answer: {error.message}", hint=hint) from error

    def propose(self, state: SearchState) -> tuple[Proposal, ...] | Stop:
        """Ask the designer. A designer who fails, or has nothing, ends the search: what was found stands."""
        if barren(state) >= STOP_ROUNDS:
            return Stop("plateau", f"the last {STOP_ROUNDS} rounds brought nothing better")
        parents = _parents(state)
        limit = max(
            1,
            self.desk.limits.parallel
            if state.rounds_left is None
            else min(self.desk.limits.parallel, state.rounds_left),
        )
        prompt = render(
            "designer", Design, goal=state.goal, state=state, parents=parents, barren=barren(state), warn=WARN_ROUNDS,
            parallel=limit, notes=self._notes(), memory=remembered(self.desk.memory(), state.history),
            **self._evidence(state),
        )  # fmt: skip
        task = self._task("design", "designer", prompt, Design, self._shown(state), writes=False, number=state.round)
        try:
            found = ask(self.driver, self.desk, dataclasses.replace(task, check=_parent_check(parents)), state.round)
        except SpentError as error:
            return Stop("budget", error.message)
        except AgentError as error:
            return Stop("agent failed", f"the designer gave no usable answer: {error.message}")
        if not found["hypotheses"]:
            return Stop("nothing proposed", found["reason"])
        return tuple(_proposal(idea, found["reason"], state) for idea in found["hypotheses"][:limit])

    def edit(self, proposal: Proposal, worktree: Path) -> Edit:
        """The implementer on a copy, the reviewer on its diff, and what both agree on taken back into `worktree`.

        Raises AgentError where the change was not made, or is not approved, and TreeError for a directory that no
        candidate may be.
        """
        work, answer = self._implemented(proposal, worktree, self.desk.round)
        return Edit(str(answer["summary"]), trees.take_back(work, worktree))

    def draft(self, drafts: Sequence[tuple[int, Proposal, Path]]) -> None:
        """Implement several proposals at once, each in a copy of its own: (round, proposal, the parent's files).

        What one of them fails at is told when its round comes: `edit` then asks again, or takes what is there.
        """
        with ThreadPoolExecutor(max_workers=len(drafts)) as pool:
            waiting = [pool.submit(self._implemented, proposal, source, number) for number, proposal, source in drafts]
            try:
                for one in waiting:
                    one.exception()
            except BaseException:
                self.desk.cancelled.set()
                raise

    def floor(self, state: SearchState) -> list[dict[str, Any]]:
        """The floor of this hardware, as it stands."""
        from vibeserve.agents.playbook.floor import floor_of

        return floor_of(state)

    def _implemented(self, proposal: Proposal, source: Path, number: int) -> tuple[Path, Mapping[str, Any]]:
        before, feedback = source, ""
        for turn in range(REVISIONS + 1):
            again = " again" * turn
            work = self._folder(number) / f"work-{turn + 1}"
            if self.desk.records.answered(number, f"implement{again}") is None:
                trees.copy(before, work)
            answer = self._implement(proposal, work, number, again, feedback)
            change = trees.diff(source, work)
            if not change:
                return work, answer  # the round itself says that nothing was changed
            review = self._review(proposal, work, number, again, answer, change)
            if review["verdict"] == "approve":
                return work, answer
            before, feedback = work, f"{review['reason']}\n{review['feedback']}"
        raise AgentError(f"the reviewer rejects it: {feedback.strip()}"[:1000])

    def _evidence(self, state: SearchState) -> dict[str, Any]:
        """What every role is shown: numbers with their provenance, the gap to the limit, the floor of the hardware."""
        return {"evidence": sorted(state.evidence.items()), "gap": _gap(state), "floor": self.floor(state)}

    def _implement(self, proposal: Proposal, work: Path, number: int, again: str, feedback: str) -> dict[str, Any]:
        state = self.desk.state(number)
        prompt = render(
            "implementer", Work, proposal=proposal, task=proposal.task, goal=state.goal, feedback=feedback,
            notes=self._notes(), readable=[str(path) for path in self._readable()], **self._evidence(state),
        )  # fmt: skip
        task = self._task(f"implement{again}", "implementer", prompt, Work, work, writes=True, number=number)
        return ask(self.driver, self.desk, task, number)

    def _review(
        self, proposal: Proposal, work: Path, number: int, again: str, answer: Mapping[str, Any], change: str
    ) -> dict[str, Any]:
        state = self.desk.state(number)
        shown = self._evidence(state)
        prompt = render("reviewer", Review, proposal=proposal, work=answer, diff=change, goal=state.goal, **shown)
        task = self._task(f"review{again}", "reviewer", prompt, Review, work, writes=False, number=number)
        return ask(self.driver, self.desk, task, number)

    def _task(self, name: str, role: str, prompt: str, answer: Any, work: Path, *, writes: bool, number: int) -> Task:
        folder, seconds = self._folder(number), self.desk.limits.call_s
        readable = tuple(path for place in self._readable() for path in model_paths(place))
        return Task(name, role, prompt, answer, work.resolve(), folder, writes, seconds, readable)

    def _folder(self, number: int) -> Path:
        return self.desk.folder / f"r{number}"

    def _empty(self) -> Path:
        path = self._folder(0) / "empty"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _shown(self, state: SearchState) -> Path:
        """The incumbent's files for the designer, where the search laid them."""
        shown = self._folder(state.round) / "incumbent"
        return shown if shown.is_dir() else self._empty()

    def _readable(self) -> tuple[Path, ...]:
        return (*self.desk.readable, _package("engine"), _package("knowledge") / "serving")

    def _notes(self) -> str:
        from vibeserve.knowledge import serving_notes

        place = _package("knowledge") / "serving"
        names = ", ".join(f"{path.parent.name}/{path.name}" for path in serving_notes())
        return (
            f"Notes on serving systems under {place}: {names}. Parts to build from: {_package('engine')} (copy what you use). "
            "Where your program offers the tools of the MCP server `vibeserve` (docs_search, roofline, lint, simulate, profile_sql and others), they answer faster than a search through files."
        )


def _package(name: str) -> Path:
    return Path(str(files("vibeserve").joinpath(name))).resolve()


def _gap(state: SearchState) -> str:
    """How far the best candidate is from what the machine allows; empty where either is not known."""
    limit, value = state.evidence.get("limit.value"), state.incumbent_value
    if limit is None or not value or limit.value <= 0:
        return ""
    share = value / limit.value if state.goal.direction == "higher" else limit.value / value
    return f"The best candidate reaches {share:.1%} of the limit of this machine ({limit.value:.5g} {limit.unit}, {limit.provenance})."


def _parents(state: SearchState) -> list[str]:
    """Candidates that passed their gates: what can be built on."""
    passed = [tried.candidate for tried in state.history if tried.verdict in ("kept", "not-better")]
    return list(dict.fromkeys([state.incumbent, "c0", *passed]))


def _parent_check(parents: Sequence[str]) -> Any:
    def check(document: Mapping[str, Any]) -> str:
        for idea in document["hypotheses"]:
            if idea["parent"] not in parents:
                return f"there is no candidate {idea['parent']!r} to build on; there are {', '.join(parents)}"
        return ""

    return check


def _proposal(idea: Mapping[str, Any], reason: str, state: SearchState) -> Proposal:
    settings = next((tried.settings for tried in state.history if tried.candidate == idea["parent"]), {})
    return Proposal(
        techniques=(idea["technique"],),
        title=idea["title"],
        parent=idea["parent"],
        hypothesis=idea["hypothesis"],
        expected_effect=idea["expected_effect"],
        expected_ratio=idea["expected_ratio"],
        falsification=idea["falsification"],
        activation=tuple(dict(seen) for seen in idea["activation"]),
        settings=dict(settings),
        why=reason,
        task=idea["task"],
    )
