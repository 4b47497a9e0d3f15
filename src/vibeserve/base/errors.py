"""The errors a user sees: what was wrong, where, and what to do about it; each with its exit code."""

from __future__ import annotations

EXIT_OK = 0
EXIT_DOES_NOT_HOLD = 1
EXIT_BAD_INPUT = 2
EXIT_MISSING = 3
EXIT_INTERRUPTED = 4


class VibeServeError(Exception):
    """A failure that is told to the user without a traceback.

    `message` says what was wrong and where, in one line; `hint` says what to do; `code` is a short stable word for
    programs (`error.code` in JSON); `exit_code` is the process's exit code.
    """

    exit_code = EXIT_DOES_NOT_HOLD
    code = "failed"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code


class CheckError(VibeServeError):
    """The thing checked does not hold (exit 1)."""

    exit_code = EXIT_DOES_NOT_HOLD
    code = "does-not-hold"


class InputError(VibeServeError):
    """Wrong usage or bad input (exit 2)."""

    exit_code = EXIT_BAD_INPUT
    code = "bad-input"


class MissingError(VibeServeError):
    """Something that this machine lacks (exit 3); `hint` says what still works without it."""

    exit_code = EXIT_MISSING
    code = "missing"


class InterruptedRunError(VibeServeError):
    """Interrupted, and resumable (exit 4); `hint` names the command that goes on."""

    exit_code = EXIT_INTERRUPTED
    code = "interrupted"
