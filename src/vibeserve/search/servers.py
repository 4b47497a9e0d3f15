"""The servers that are up: at most one a candidate, started from a fresh copy of its commit, all gone at the end."""

from __future__ import annotations

import contextlib
from pathlib import Path

from vibeserve.measure import StartError
from vibeserve.search.lab import Lab, Server
from vibeserve.search.workspace import Workspace


class Servers:
    """Starts candidates when they are needed; `with` ends every one of them, whatever happens."""

    def __init__(self, lab: Lab, workspace: Workspace, directory: Path):
        self._lab = lab
        self._workspace = workspace
        self._directory = directory
        self._running: dict[str, Server] = {}
        self._sources: dict[str, Path] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_all()

    def source(self, candidate: str, directory: Path) -> None:
        """Start `candidate` from this directory as it lies, not from a commit (the bundle's own reference)."""
        self._sources[candidate] = directory

    def get(self, candidate: str, commit: str | None) -> Server:
        """The candidate's server; started now where it is not up. Raises StartError."""
        if candidate not in self._running:
            directory = self._sources.get(candidate)
            if directory is None:
                if commit is None:
                    raise LookupError(f"{candidate} has neither a directory nor a commit")
                # A fresh copy each time: what an earlier start of the candidate left behind must not help it.
                directory = self._workspace.export(commit, self._directory / "candidates" / candidate)
            self._running[candidate] = self._start(candidate, directory)
        return self._running[candidate]

    def _start(self, candidate: str, directory: Path) -> Server:
        """Start it; once more where it was killed from outside before it was ready."""
        log = self._directory / "logs" / candidate
        try:
            return self._lab.start(candidate, directory, log=log)
        except StartError as failure:
            if not failure.killed:
                raise
            return self._lab.start(candidate, directory, log=log)

    def dead(self, candidate: str) -> bool:
        """Whether the candidate's server was started and has ended by itself, or was killed."""
        server = self._running.get(candidate)
        return server is not None and not server.alive

    def drop_dead(self, *, besides: str = "") -> None:
        """Forget servers that have ended by themselves, or were killed: `get` starts them anew."""
        for name, server in sorted(self._running.items()):
            if name != besides and not server.alive:
                self.close(name)

    def running(self, *, besides: str) -> list[Server]:
        """All servers that are up, but for one candidate's."""
        return [server for name, server in sorted(self._running.items()) if name != besides]

    def close(self, candidate: str) -> None:
        """End a candidate's server where it is up."""
        server = self._running.pop(candidate, None)
        if server is not None:
            server.close()

    def keep_only(self, *candidates: str) -> None:
        """End every other server."""
        for name in sorted(set(self._running) - set(candidates)):
            self.close(name)

    def close_all(self) -> None:
        """End every server; the first failure to do so is raised when all have been tried."""
        with contextlib.ExitStack() as stack:
            for name in sorted(self._running):
                stack.callback(self.close, name)
