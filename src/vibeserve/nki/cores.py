"""Several cores of one launch, deterministically: a thread each, of which exactly one runs at any time.

A core runs until it waits for others (barrier, sendrecv, collective) or ends; then the waiting core with the lowest
number whose wait is over goes on. So two runs interleave alike, and what cores share needs no locks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from vibeserve.nki.context import Core, running
from vibeserve.nki.errors import KernelError, Place, kernel_place


class _StoppedError(BaseException):
    """Another core failed: this one ends without a word."""


class Scheduler:
    """Runs the cores of a launch in turn."""

    def __init__(self, count: int):
        self.turns = [threading.Event() for _ in range(count)]
        self.state = ["ready"] * count
        self.waiting: dict[int, tuple[Any, str, Place]] = {}
        self.rooms: dict[Any, dict[int, Any]] = {}
        self.failure: BaseException | None = None
        self.threads: list[threading.Thread] = []
        self.active = 0  # the core whose turn it is

    def meet(self, core: Core, key: Any, payload: Any, parties: tuple[int, ...], what: str) -> dict[int, Any]:
        """Wait at `key` until all parties came; returns what each brought."""
        room = self.rooms.setdefault(key, {})
        room[core.index] = payload
        if all(party in room for party in parties):
            for party in parties:
                if party != core.index and self.waiting.get(party, (None,))[0] == key:
                    del self.waiting[party]
                    self.state[party] = "ready"
            return room
        self.state[core.index] = "waiting"
        self.waiting[core.index] = (key, what, kernel_place())
        self._hand_over(core.index)
        return room

    def run(self, cores: list[Core], bodies: list[Callable[[], Any]]) -> list[Any]:
        """Run each core's body to its end; returns their results, or raises the first failure."""
        results: list[Any] = [None] * len(cores)

        def thread(index: int) -> None:
            self.turns[index].wait()
            self.active = index
            try:
                if self.failure is None:
                    results[index] = running(cores[index], bodies[index])
            except _StoppedError:
                pass
            except BaseException as error:
                if self.failure is None:
                    self.failure = error
            self.state[index] = "done"
            self._next(index)

        self.threads = threads = [
            threading.Thread(target=thread, args=(i,), name=f"nki-core-{i}", daemon=True) for i in range(len(cores))
        ]
        for started in threads:
            started.start()
        self.turns[0].set()
        for started in threads:
            while started.is_alive():
                started.join(0.5)
        if self.failure is not None:
            raise self.failure
        return results

    def _hand_over(self, index: int) -> None:
        turn = self.turns[index]
        turn.clear()
        self._next(index)
        turn.wait()
        self.active = index
        if self.failure is not None:
            raise _StoppedError
        self.state[index] = "ready"

    def _next(self, index: int) -> None:
        if self.failure is None:
            ready = [i for i, state in enumerate(self.state) if state == "ready" and i != index]
            if ready:
                self.turns[ready[0]].set()
                return
            if not self.waiting:
                return
            self.failure = self._deadlock()
        for i, state in enumerate(self.state):
            if state != "done":
                self.turns[i].set()

    def _deadlock(self) -> KernelError:
        lines = [f"core {core} waits in {what} at {place}" for core, (_, what, place) in sorted(self.waiting.items())]
        ended = [f"core {i} has ended" for i, state in enumerate(self.state) if state == "done"]
        first = min(self.waiting)
        return KernelError(
            "the cores wait for each other for ever: " + "; ".join(lines + ended),
            code="NCC_IXLV002",
            rule="every core of the launch comes to the same barriers, exchanges and collectives, equally often",
            fix="keep them out of branches on nl.program_id",
            place=self.waiting[first][2],
        )
