"""A logger for kernels: it prints while the kernel is traced."""

from __future__ import annotations

import os
import sys

from vibeserve.nki.lib.binding import nl

LEVELS = ("debug", "info", "warning", "error")
LEVEL_VARIABLE = "NKI_LIB_LOG_LEVEL"


class Logger(nl.NKIObject):  # type: ignore[misc, name-defined]
    """Prints "[name] text" on standard error from `level` on (the environment's NKI_LIB_LOG_LEVEL, else warning)."""

    def __init__(self, name: str = "nki", level: str | None = None):
        self.name = name
        self.level = level

    def _say(self, level: str, text: str) -> None:
        least = self.level or os.environ.get(LEVEL_VARIABLE, "warning").lower()
        if LEVELS.index(level) >= (LEVELS.index(least) if least in LEVELS else LEVELS.index("warning")):
            print(f"[{self.name}] {level}: {text}", file=sys.stderr)

    def debug(self, text: str) -> None:
        self._say("debug", text)

    def info(self, text: str) -> None:
        self._say("info", text)

    def warning(self, text: str) -> None:
        self._say("warning", text)

    warn = warning

    def error(self, text: str) -> None:
        self._say("error", text)


def get_logger(name: str = "nki", level: str | None = None) -> Logger:
    """A logger called `name`."""
    return Logger(name, level)
