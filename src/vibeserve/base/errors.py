"""The errors a user sees: what was wrong, where, and what to do about it; each with its exit code."""

from __future__ import annotations

import errno

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


_LONGEST = 400
_LACKS = {
    errno.ENOSPC: "free some space there, or choose another place",
    errno.EDQUOT: "free some space there, or choose another place",
    errno.EROFS: "choose a place that can be written",
    errno.EMFILE: "allow more open files: ulimit -n 4096",
    errno.ENFILE: "close some programs",
    errno.ENOMEM: "free some memory",
    errno.EIO: "look at the disk",
}
_REFUSED = {
    errno.ENOENT: "check the path",
    errno.EACCES: "check its rights, or choose another place",
    errno.EPERM: "check its rights, or choose another place",
    errno.EEXIST: "choose a name that is free",
    errno.ENOTDIR: "a part of the path is a file: choose another place",
    errno.EISDIR: "it is a directory: name a file",
    errno.ELOOP: "a link there leads back to itself",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def refused(error: OSError) -> VibeServeError:
    """What the system refused, as the error that the user sees: exit 3 where the machine lacks something, else 2."""
    name = next((name for name in (error.filename, error.filename2) if isinstance(name, str | bytes) and name), "")
    shown = name.decode(errors="replace") if isinstance(name, bytes) else name
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST]}…"
    reason = error.strerror or str(error) or type(error).__name__
    message = f"{shown}: {reason}" if shown else f"the system refused: {reason}"
    if error.errno in _LACKS:
        return MissingError(message, hint=_LACKS[error.errno], code="cannot-write")
    return InputError(message, hint=_REFUSED.get(error.errno or 0, "--debug shows where"))
