"""Stops a kernel that does nothing for ever: no instruction for a long time while its Python goes on."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from types import TracebackType

from vibeserve.nki.context import Core
from vibeserve.nki.errors import BudgetError

DEFAULT_STALL_S = 300.0


class StalledError(BudgetError):
    """Raised from outside into a thread that runs no instruction any more."""

    def __init__(self) -> None:
        super().__init__(
            f"stopped: no instruction for {stall_s():g} s",
            code="NKI-STALLED",
            rule="a kernel ends",
            fix="look for a Python loop that never ends; NKI_STALL_S=seconds raises the limit",
        )


def stall_s() -> float:
    """Seconds without an instruction after which a kernel is stopped (0: never)."""
    return float(os.environ.get("NKI_STALL_S") or DEFAULT_STALL_S)


class Watchdog:
    """While entered, watches that some core goes on; not while a debugger is in use."""

    _ticket = threading.Lock()

    def __init__(self, cores: list[Core]):
        self.cores = cores
        self.owner = threading.get_ident()
        self.stop = threading.Event()
        self.limit = stall_s()
        self.timer: threading.Timer | None = None
        self.last = -1

    def __enter__(self) -> Watchdog:
        if self.limit > 0:
            self._arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop.set()
        if self.timer is not None:
            self.timer.cancel()

    def _arm(self) -> None:
        self.timer = threading.Timer(self.limit, self._look)
        self.timer.daemon = True
        self.timer.start()

    def _look(self) -> None:
        if self.stop.is_set():
            return
        count = sum(core.count for core in self.cores)
        thread = self._running()
        if count == self.last and not _in_a_debugger(thread):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(StalledError))
            return
        self.last = count
        self._arm()

    def _running(self) -> int:
        """The thread of the core whose turn it is."""
        scheduler = self.cores[0].scheduler
        return self.owner if scheduler is None else scheduler.threads[scheduler.active].ident or 0


_DEBUGGERS = {"pdb", "bdb", "ipdb", "IPython", "pudb", "pydevd", "debugpy"}


def _in_a_debugger(thread: int) -> bool:
    """Whether a thread is in a debugger's hands (at its prompt, say)."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if (frame.f_globals.get("__name__") or "").partition(".")[0] in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False
