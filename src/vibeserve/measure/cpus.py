"""Which cores the server gets, and which the load client."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """Cores for the server and for the client; None leaves the choice to the system. `why` is for the report."""

    server: frozenset[int] | None
    client: frozenset[int] | None
    why: str


def available_cpus() -> frozenset[int] | None:
    """The cores that this process may use; None where the system does not pin."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def plan_cpus(cpus: frozenset[int] | None = None) -> CpuPlan:
    """From 4 cores on the client has one of its own; below that the server gets all, and the client is one light process.

    The plan depends on the machine alone, so that it is the same for every server that is compared.
    """
    cpus = available_cpus() if cpus is None else cpus
    if cpus is None:
        return CpuPlan(None, None, "this system does not pin processes to cores")
    if len(cpus) < 4:
        return CpuPlan(
            None, None, f"{len(cpus)} cores: the server may use all of them; the client is one light process"
        )
    client = max(cpus)
    return CpuPlan(cpus - {client}, frozenset({client}), f"{len(cpus)} cores: core {client} belongs to the client")
