"""The process's streams and signals, so that no verb need think of a closed descriptor, a reader that left, or bytes in a name."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from typing import Any

from vibeserve.base.errors import MissingError


class _Stream(io.FileIO):
    """A descriptor to write to; once a write fails in one of the ways that are `forgiven`, the rest goes nowhere."""

    forgiven: tuple[type[OSError], ...] = ()
    over = False

    def write(self, data: Any) -> int:
        if not self.over:
            try:
                return super().write(data)
            except self.forgiven:
                self.over = True
        return memoryview(data).nbytes


def open_missing() -> None:
    """Put /dev/null where standard input, output or error is closed: the next file opened would take its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def prepare() -> None:
    """UTF-8 on standard output and error, bytes that are none as they came; SIGTERM and SIGHUP are Ctrl-C.

    A reader that leaves early (`| head -1`) does not change how a verb ends, nor does a standard error that cannot be
    written.
    """
    sys.stdout = _text(1, (BrokenPipeError,))
    sys.stderr = _text(2, (OSError,))
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _interrupt)


def _text(number: int, forgiven: tuple[type[OSError], ...]) -> io.TextIOWrapper:
    raw = _Stream(number, "w", closefd=False)
    raw.forgiven = forgiven
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, "utf-8", "surrogateescape", line_buffering=number == 2 or os.isatty(number))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def flushed() -> MissingError | None:
    """Write out what standard output still holds; the error where that cannot be done."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):  # what it holds goes nowhere, so that the interpreter's own try is silent
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stdout.flush()
        return MissingError(
            f"cannot write standard output: {error.strerror}", hint="free some space there", code="cannot-write"
        )
    return None
