"""What goes wrong with a candidate, as errors that are verdicts."""

from __future__ import annotations

import signal
from pathlib import Path

from vibeserve.base.errors import CheckError, MissingError


class StartError(CheckError):
    """A candidate did not become ready (verdict failed-start). `tail` is the end of its log; `killed`: by SIGKILL from
    outside, as in `KilledError`."""

    code = "failed-start"

    def __init__(self, message: str, *, hint: str = "", tail: str = "", killed: bool = False):
        super().__init__(message, hint=hint)
        self.tail = tail
        self.killed = killed


class RunError(CheckError):
    """A candidate was ready and failed afterwards: it died, hung or answered garbage (verdict failed-run)."""

    code = "failed-run"


class KilledError(RunError):
    """A server or a client was ended by SIGKILL, and not by us: an operator's, or the system's for want of memory.

    What was in flight is lost and says nothing yet: it may be done once more. Where it happens again, it is a verdict.
    """


def killed_from_outside(exit_code: int | None, reason: str = "exited") -> bool:
    """Whether a program ended by SIGKILL that we did not send. `reason` is its `Process.reason`; shells and sandboxes
    report the end by signal N as 128 + N."""
    return reason in ("exited", "lost") and exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL)


def cannot_write(path: Path, error: OSError) -> MissingError:
    """The error for a disk that is full, or a directory that is not ours."""
    return MissingError(
        f"cannot write {path}: {error.strerror or error}",
        hint="free some space there, or choose another directory",
        code="cannot-write",
    )


def tail_of(path: Path, lines: int = 20, limit_bytes: int = 8192) -> str:
    """The last lines of a log, whatever bytes it holds; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - limit_bytes))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    kept = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(kept[-lines:])


def last_line(text: str) -> str:
    """The last line that says something, shortened; where it is a hint, with the error before it."""
    lines = text.rstrip().splitlines()
    line = lines[-1].strip() if lines else ""
    before = lines[-2].strip() if len(lines) > 1 else ""
    if line.startswith("hint: ") and before.startswith("error: "):
        line = f"{before.removeprefix('error: ')} ({line.removeprefix('hint: ')})"
    return line if len(line) <= 300 else line[:297] + "..."
