"""What can go wrong in the engine, said so that a user can act on it."""

from __future__ import annotations


class EngineError(Exception):
    """Base of the engine's errors: one line that says what and where, and a hint that says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SettingsError(EngineError):
    """`engine.toml` holds something that the engine does not know or cannot do."""


class UnsupportedModelError(EngineError):
    """The model directory asks for something that the engine has no code for; the message names it."""


class ModelFilesError(EngineError):
    """The model directory is incomplete or its files are corrupt."""


class MissingPartError(EngineError):
    """A setting asks for an engine part that this copy of the engine was made without."""


class RequestError(EngineError):
    """A request cannot be served as asked; `field` names the parameter at fault."""

    def __init__(self, field: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.field = field


class QueueFullError(EngineError):
    """More requests wait than the settings allow; the caller should come back later."""


class OverloadedError(QueueFullError):
    """The answer would begin too late; there may be room in `retry_after_s` seconds."""

    def __init__(self, message: str, hint: str = "", *, retry_after_s: int = 1) -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s


class StoppedError(EngineError):
    """The engine is draining or has stopped and takes no more requests."""
