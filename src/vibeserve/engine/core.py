"""The engine itself. A step is three calls: schedule, run, post-process."""

from __future__ import annotations

from pathlib import Path

from .settings import Settings
from .stats import Stats
from .types import Limits, Output, Request


class EngineCore:
    """One model, one batch, one thread: add requests, step, take outputs. Not thread-safe; see `EngineThread`."""

    limits: Limits
    settings: Settings

    def __init__(self, model_dir: Path, settings: Settings) -> None:
        raise NotImplementedError

    def check(self, request: Request) -> None:
        """Raise RequestError where the request cannot be served as asked. Safe from any thread."""
        raise NotImplementedError

    def add(self, request: Request) -> None:
        """Queue a request."""
        raise NotImplementedError

    def abort(self, request_id: str) -> None:
        """Give a request up; its blocks are free and its last output is out after the next step."""
        raise NotImplementedError

    def abort_all(self) -> list[Output]:
        """Give every request up, now."""
        raise NotImplementedError

    def step(self) -> list[Output]:
        """Compute one batch and return what is new, request by request."""
        raise NotImplementedError

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        raise NotImplementedError

    def request_ids(self) -> list[str]:
        """Requests that have not finished."""
        raise NotImplementedError

    def stats(self) -> Stats:
        """A snapshot of the counters. Safe from any thread."""
        raise NotImplementedError

    def add_idle(self, seconds: float) -> None:
        """Count time in which there was nothing to do."""
        raise NotImplementedError

    def rest(self) -> None:
        """Called when the engine falls idle: checks that every KV block is accounted for."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the model's memory and worker threads."""
        raise NotImplementedError
