"""What the search needs of the measuring room, as one seam: a real laboratory, and scripted ones in tests.

Everything that starts a process, sends a request or yields a figure is behind it, and nothing that decides is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vibeserve.agents.agent import Fact


@dataclass(frozen=True)
class Gate:
    """The outcome of a gate; `ok` is None where it could not be run."""

    name: str
    ok: bool | None
    detail: str
    document: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Window:
    """One window of load on one server. `value` is None with `reason` where the metric cannot be had.

    `waiting` is the share of its requests that had no first token when it ended.
    """

    value: float | None
    failed: int = 0
    reason: str = ""
    noisy: str = ""
    document: str = ""
    retried: bool = False
    waiting: float = 0.0
    facts: dict[str, Fact] = field(default_factory=dict)


class Server(Protocol):
    """A running server; closing it ends every process of it."""

    @property
    def ready_s(self) -> float:
        """Seconds from its start to its first healthy answer."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        ...

    def close(self) -> None:
        """End it, and wait until it is gone."""
        ...


class Lab(Protocol):
    """Starts, checks, probes and loads servers. `log` names the directory or file that an act may write to.

    Every act on a server raises RunError where that server died in it, and KilledError where it, the client or the
    reference beside it was killed from outside: what was in flight is lost then, and may be done once more.
    """

    def recover(self) -> None:
        """End what an earlier process of this run left behind, where it could not do so itself."""
        ...

    def start(self, name: str, directory: Path, *, log: Path) -> Server:
        """Start a candidate and wait until it is ready. Raises StartError."""
        ...

    def check(self, server: Server, *, seed: int, log: Path, reference: bool = False) -> Gate:
        """The bundle's checker on this server. `reference`: it is the bundle's own, and may have been proved before."""
        ...

    def probe(self, server: Server, *, seed: int, oracle: Server | None) -> Sequence[Gate]:
        """The judge's probes on this server; `oracle` is the running reference where there is one."""
        ...

    def answers(self, server: Server, document: str, *, log: Path) -> Gate:
        """The answers that a window sampled (`Window.document`), proved by the bundle's checker."""
        ...

    def integrity(self) -> dict[str, str]:
        """Digests of what no candidate may change, by name."""
        ...

    def window(
        self, server: Server, others: Sequence[Server], *, seed: int, window_s: float, log: Path, again: bool
    ) -> Window:
        """The bundle's benchmark for one window while `others` stand still. Raises RunError.

        `again`: a window that something outside disturbed may be run once more, whatever its value is.
        """
        ...

    def observe(self, server: Server, *, seed: int, window_s: float, log: Path) -> Window:
        """A window that is never scored, with the server's own counters taken around it as facts. Raises RunError."""
        ...

    def curve(self, server: Server, *, concurrency: int, seed: int, window_s: float, log: Path) -> Window:
        """A window at another load, for the latency-throughput curve. Raises RunError."""
        ...

    def facts(self) -> dict[str, Fact]:
        """What is known of the machine and the model before anything runs."""
        ...

    def limit_again(self, known: Mapping[str, Fact]) -> dict[str, Fact]:
        """The machine's rates measured once more, and the limit that the higher of both allows the workload in `known`.

        No server may be up. {} where the rates cannot be measured.
        """
        ...
