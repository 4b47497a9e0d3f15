"""Time is handed in: the same code runs on the machine's clock and on a logical one."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where code gets its time from."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def now(self) -> datetime:
        """The date and time, in UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


class LogicalClock:
    """A clock that moves only when it is told to: `sleep` returns at once and moves it."""

    def __init__(self, start: datetime | None = None):
        self._start = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._elapsed_s = 0.0

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._start.timestamp() + self._elapsed_s, UTC)

    def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`."""
        if seconds < 0:
            raise ValueError("a clock never goes back")
        self._elapsed_s += seconds
