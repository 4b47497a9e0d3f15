"""The driver of a name."""

from __future__ import annotations

from vibeserve.agents.desk import Driver
from vibeserve.agents.names import AgentName


def make_driver(name: AgentName) -> Driver:
    """The driver that reaches this agent; nothing is started yet."""
    from vibeserve.agents.drivers.cli import CliDriver, forms

    return CliDriver(forms()[name.kind], name.rest)
