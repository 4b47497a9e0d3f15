"""The engine's own thread: everything else talks to the model through it and never waits for it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from .errors import QueueFullError, RequestError, StoppedError
from .stats import Stats
from .types import Limits, Output, Request

if TYPE_CHECKING:
    from .core import EngineCore  # it brings torch, which the thread does not need

log = logging.getLogger(__name__)

OutputCallback = Callable[[Output], None]


class EngineThread:
    """Owns an `EngineCore` and steps it in a thread of its own.

    Callbacks run in the engine's thread, so they must be quick and must not raise: an asyncio front hands over with
    `loop.call_soon_threadsafe`. Either each request brings its own callback, or `on_step` gets all outputs of a step at
    once (one wake of the event loop instead of one a token); both may be used together.
    """

    def __init__(self, core: EngineCore, on_step: Callable[[list[Output]], None] | None = None) -> None:
        self._core = core
        self._on_step = on_step
        self._inbox: deque[tuple[str, Request | str, OutputCallback | None]] = deque()
        self._callbacks: dict[str, OutputCallback] = {}
        self._wake = threading.Condition()
        self._draining = False
        self._stopping = False
        self._open: set[str] = set()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._loop, name="vibeserve-engine", daemon=True)

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    @property
    def limits(self) -> Limits:
        """What a request may ask."""
        return self._core.limits

    @property
    def failure(self) -> str | None:
        """Why the engine died, or None while it lives."""
        return self._failure

    def stats(self) -> Stats:
        """A snapshot of the counters."""
        return self._core.stats()

    def submit(self, request: Request, callback: OutputCallback | None = None) -> None:
        """Queue a request from any thread; its outputs follow until one has a `finish_reason`.

        Raises RequestError (cannot be served as asked), QueueFullError (of which OverloadedError is one) or StoppedError,
        at once.
        """
        self._core.check(request)
        with self._wake:
            if self._draining or self._stopping or self._failure:
                raise StoppedError(self._failure or "the engine is shutting down and takes no more requests")
            if len(self._open) >= self.limits.max_waiting + self._core.settings.max_batch:
                raise QueueFullError(f"{len(self._open)} requests are in flight, as many as the settings allow")
            if request.id in self._open:
                raise RequestError("id", f"a request with id {request.id!r} is being served")
            self._core.welcome(request)
            self._open.add(request.id)
            self._inbox.append(("add", request, callback))
            self._wake.notify()

    def abort(self, request_id: str) -> None:
        """Give a request up: one last output with reason "abort" follows, its blocks are free within a step.

        An id that is unknown or has finished is ignored (the answer may be under way already).
        """
        with self._wake:
            self._inbox.append(("abort", request_id, None))
            self._wake.notify()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Take no more requests and wait until those in flight have finished. False where the time ran out."""
        with self._wake:
            self._draining = True
            return self._wake.wait_for(lambda: not self._open or self._failure is not None, timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread: requests in flight end with reason "abort"."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _loop(self) -> None:
        try:
            while self._take_inbox():
                self._deliver(self._core.step())
            self._deliver(self._core.abort_all())
        except Exception as error:
            log.exception("the engine's step failed")
            self._failure = f"the engine failed: {type(error).__name__}: {error}"
            self._fail_all()
        finally:
            self._core.close()

    def _take_inbox(self) -> bool:
        """Hand new requests and aborts to the core; sleeps while there is nothing to do. False when it is time to end."""
        with self._wake:
            if not self._inbox and not self._stopping and not self._core.has_work():
                began = perf_counter()
                self._core.rest()
                self._wake.wait_for(lambda: self._inbox or self._stopping)
                self._core.add_idle(perf_counter() - began)
            ending = self._stopping
            taken = list(self._inbox)
            self._inbox.clear()
        for kind, what, callback in taken:
            if kind == "add":
                assert isinstance(what, Request)
                if callback is not None:
                    self._callbacks[what.id] = callback
                self._core.add(what)
            else:
                assert isinstance(what, str)
                self._core.abort(what)
        return not ending

    def _deliver(self, outputs: list[Output]) -> None:
        if not outputs:
            return
        if self._on_step is not None:
            self._on_step(outputs)
        ended: list[str] = []
        for output in outputs:
            callback = self._callbacks.get(output.request_id)
            if output.finish_reason is not None:
                ended.append(output.request_id)
                self._callbacks.pop(output.request_id, None)
            if callback is not None:
                callback(output)
        if ended:
            with self._wake:
                self._open.difference_update(ended)
                self._wake.notify_all()

    def _fail_all(self) -> None:
        """After a failure every open request gets an answer, so that nobody waits for ever."""
        with self._wake:
            waiting = [what for kind, what, _ in self._inbox if kind == "add" and isinstance(what, Request)]
            for kind, what, callback in self._inbox:
                if kind == "add" and callback is not None and isinstance(what, Request):
                    self._callbacks[what.id] = callback
            self._inbox.clear()
        ids = dict.fromkeys([*self._core.request_ids(), *(request.id for request in waiting)])
        outputs = [Output(name, (), None, "error", 0, 0, error=self._failure) for name in ids]
        try:
            self._deliver(outputs)
        finally:
            with self._wake:
                self._open.clear()
                self._wake.notify_all()
