"""The driver of a name."""

from __future__ import annotations

from vibeserve.agents.desk import Driver
from vibeserve.agents.names import AgentName


def make_driver(name: AgentName) -> Driver:
    """The driver that reaches this agent; nothing is started yet."""
    if name.kind == "openai":
        from vibeserve.agents.drivers.endpoint import EndpointDriver

        return EndpointDriver(name.rest)
    if name.kind == "acp":
        from vibeserve.agents.drivers.acp import AcpDriver

        return AcpDriver(name.rest)
    from vibeserve.agents.drivers.cli import CliDriver, forms

    return CliDriver(forms()[name.kind], name.rest)
