"""Between the engine's thread and the event loop: one wake of the loop a step, whatever the number of requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..stats import Stats
from ..types import Limits, Output, Request


class Engine(Protocol):
    """What the HTTP front needs of an engine thread."""

    @property
    def limits(self) -> Limits: ...

    @property
    def failure(self) -> str | None: ...

    def start(self) -> None: ...

    def stats(self) -> Stats: ...

    def submit(self, request: Request) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def stop(self, timeout_s: float = 10.0) -> None: ...


OnStep = Callable[[list[Output]], None]


class Inbox:
    """Outputs of one HTTP request, in order, until its handler takes them. Lives in the event loop alone.

    A handler that is slow (its client reads slowly) takes many at once later: nobody waits for it. It is woken for the
    first output, for every `wake_every` after it, and for each that ends an answer.
    """

    __slots__ = ("_first", "_outputs", "_waiter", "_wake_every", "gone")

    def __init__(self, wake_every: int = 1) -> None:
        self._outputs: list[Output] = []
        self._waiter: asyncio.Future[None] | None = None
        self._wake_every = wake_every
        self._first = True
        self.gone = False

    def put(self, output: Output) -> None:
        """Add an output, and wake the handler where it is time."""
        self._outputs.append(output)
        if self._first or len(self._outputs) >= self._wake_every or output.finish_reason is not None:
            self._wake()

    def leave(self) -> None:
        """The client has left."""
        self.gone = True
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _due(self) -> bool:
        outputs = self._outputs
        enough = self._first or len(outputs) >= self._wake_every
        return bool(outputs) and (enough or any(one.finish_reason for one in outputs))

    async def take(self) -> list[Output]:
        """All outputs since the last time, at least one; empty only where the client has left."""
        if not self.gone and not self._due():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        taken, self._outputs, self._first = self._outputs, [], False
        return taken


class Bridge:
    """Hands requests to the engine and its outputs to the inboxes."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._steps: deque[list[Output]] = deque()
        self._scheduled = False
        self._inboxes: dict[str, Inbox] = {}

    def on_step(self, outputs: list[Output]) -> None:
        """Called in the engine's thread with all outputs of a step."""
        self._steps.append(outputs)
        if not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop has been closed: nobody is left to answer
                self._scheduled = False

    def _deliver(self) -> None:
        # Cleared first: a step that comes while this runs is either taken below or schedules another call.
        self._scheduled = False
        while self._steps:
            for output in self._steps.popleft():
                inbox = self._inboxes.get(output.request_id)
                if inbox is not None:
                    if output.finish_reason is not None:
                        del self._inboxes[output.request_id]
                    inbox.put(output)

    def submit(self, engine: Engine, request: Request, inbox: Inbox) -> None:
        """Queue a request whose outputs go to this inbox. Raises what the engine raises."""
        self._inboxes[request.id] = inbox
        try:
            engine.submit(request)
        except BaseException:
            del self._inboxes[request.id]
            raise

    def abort(self, engine: Engine, request_id: str) -> None:
        """Give a request up. One that has ended already is left alone."""
        if self._inboxes.pop(request_id, None) is not None:
            engine.abort(request_id)

    @property
    def open_requests(self) -> int:
        """Requests whose last output has not come."""
        return len(self._inboxes)
