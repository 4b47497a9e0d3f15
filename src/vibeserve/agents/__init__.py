"""Who edits candidates: the built-in playbook, and the seam for coding agents."""

from vibeserve.agents.agent import VERDICTS, Agent, Edit, Fact, Goal, Proposal, SearchState, Stop, Tried

__all__ = ["VERDICTS", "Agent", "Edit", "Fact", "Goal", "Proposal", "SearchState", "Stop", "Tried", "make_agent"]


def make_agent(name: str) -> Agent:
    """The agent of this name. Raises InputError for one that there is not."""
    from vibeserve.agents.playbook import Playbook
    from vibeserve.base.errors import InputError

    if name != "playbook":
        raise InputError(f"unknown agent {name!r}", hint="known: playbook")
    return Playbook()
