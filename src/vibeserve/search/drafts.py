"""What a coding agent adds to the loop: it is asked whether it is there, and hypotheses may be worked out side by side.

A designer may give several hypotheses at once. Each has a round of its own; all are implemented at the same time, in
copies of their parent, and then measured one after the other, since two servers under test would disturb each other.
"""

from __future__ import annotations

from typing import Any

from vibeserve.agents.agent import Proposal, Stop
from vibeserve.agents.calls import may_spend
from vibeserve.agents.coding import CodingAgent
from vibeserve.agents.desk import SpentError
from vibeserve.search.context import Run
from vibeserve.search.journal import Step


def as_proposal(values: dict[str, Any]) -> Proposal:
    """The proposal that a step recorded."""
    tuples = {name: tuple(values[name]) for name in ("techniques", "activation", "parts", "not_others")}
    return Proposal(**{**values, **tuples})


def queued(run: Run, number: int) -> Proposal | None:
    """The proposal that an earlier round's designer gave for this one, if there is one."""
    for earlier in range(number - 1, 0, -1):
        more = run.store.step(f"r{earlier}/propose").get("more", ())
        if more:
            place = number - earlier - 1
            return as_proposal(more[place]) if place < len(more) else None
    return None


def unpaid(run: Run, number: int) -> Stop | None:
    """Why a proposal that waits cannot be worked out: nothing is left to spend, and it has not been reviewed yet."""
    desk = run.desk
    if desk is None or any(desk.records.answered(number, task) for task in ("review", "review again")):
        return None
    try:
        may_spend(desk)
    except SpentError as error:
        return Stop("budget", error.message)
    return None


def answers(run: Run) -> None:
    """See, once a run, that the agent answers. Raises MissingError."""
    agent = run.agent
    if isinstance(agent, CodingAgent):
        run.journal.once("agent", lambda step: agent.ready())


def show_incumbent(run: Run, number: int) -> None:
    """Lay the incumbent's files where the designer may read them."""
    commit = run.candidate(run.incumbent()).commit
    if run.desk is not None and commit is not None:
        place = run.desk.folder / f"r{number}"
        place.mkdir(parents=True, exist_ok=True)
        run.workspace.export(commit, place / "incumbent")


def draft(run: Run, number: int) -> None:
    """Implement all proposals of this round's designer at once, where there are several."""
    more = run.store.step(f"r{number}/propose").get("more", ())
    agent = run.agent
    if more and isinstance(agent, CodingAgent):
        run.journal.once(f"r{number}/drafts", lambda step: _draft(run, agent, number))


def _draft(run: Run, agent: CodingAgent, number: int) -> None:
    assert run.desk is not None
    answer = run.store.step(f"r{number}/propose")
    drafts = []
    for place, values in enumerate([answer["proposal"], *answer["more"]]):
        proposal = as_proposal(values)
        commit = run.candidate(proposal.parent).commit
        if commit is not None:
            folder = run.desk.folder / f"r{number + place}"
            folder.mkdir(parents=True, exist_ok=True)
            drafts.append((number + place, proposal, run.workspace.export(commit, folder / "parent")))
    agent.draft(drafts)


def park(run: Run) -> None:
    """Hypotheses whose round never came are parked, with the reason why the search ended."""

    def work(step: Step) -> None:
        for number in left:
            step.hypothesis_state(number, "parked", "the search ended first")

    left = [row.round for row in run.store.hypotheses() if row.state == "todo"]
    if left:
        run.journal.once("park", work)
