"""Who edits candidates: the built-in playbook, and coding agents.

make_agent("playbook")                    # no language model
agent = make_agent("claude")              # a coding agent; it needs a desk before it is asked for anything
agent.use(desk); agent.ready()
"""

from vibeserve.agents.agent import VERDICTS, Agent, Edit, Fact, Goal, Proposal, SearchState, Stop, Tried
from vibeserve.agents.names import AgentName, parse_agent

__all__ = [
    "VERDICTS",
    "Agent",
    "AgentName",
    "Edit",
    "Fact",
    "Goal",
    "Proposal",
    "SearchState",
    "Stop",
    "Tried",
    "make_agent",
    "parse_agent",
]


def make_agent(name: str) -> Agent:
    """The agent of this name. Raises InputError for one that there is not."""
    parsed = parse_agent(name)
    if parsed.kind == "playbook":
        from vibeserve.agents.playbook import Playbook

        return Playbook()
    from vibeserve.agents.coding import CodingAgent
    from vibeserve.agents.drivers.make import make_driver

    return CodingAgent(make_driver(parsed))
