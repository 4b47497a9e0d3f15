"""Servers under measurement: one that we started, or one that somebody else runs."""

from __future__ import annotations

import contextlib
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from vibeserve.base.clock import Clock
from vibeserve.base.errors import InputError
from vibeserve.measure.errors import RunError
from vibeserve.measure.launch import health_status

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Server(Protocol):
    """What a measurement needs of a server."""

    @property
    def url(self) -> str:
        """Where it answers."""
        ...

    def require_alive(self) -> None:
        """Raises RunError where it is not there any more."""
        ...

    def cpu_s(self) -> float | None:
        """CPU seconds that it has used; None where that is not known."""
        ...

    def pause(self) -> None:
        """Stop it where it stands, where it is ours."""
        ...

    def resume(self) -> None:
        """Let it go on."""
        ...


@dataclass(frozen=True)
class ExternalServer:
    """A server that we did not start, at `url` (http://HOST:PORT). It is never paused and never ended."""

    url: str
    health: str = "/health"

    def __post_init__(self) -> None:
        try:
            parts = urllib.parse.urlsplit(self.url)
            right = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
            (parts.hostname or "").encode("idna")
        except ValueError:  # UnicodeError among them
            right = False
        right = right and self.url.isprintable() and " " not in self.url
        if not right:
            raise InputError(f"not the address of a server: {self.url!r}", hint="write http://127.0.0.1:8000")

    @property
    def _address(self) -> tuple[str, int]:
        parts = urllib.parse.urlsplit(self.url)
        return parts.hostname or "", parts.port or 80

    def require_alive(self) -> None:
        host, port = self._address
        status = health_status(host, port, self.health, 10.0)
        if status is None:
            raise RunError(f"no server answers at {self.url}", hint="start it, and look at the address")
        if status != 200:
            raise RunError(f"the server at {self.url} is not ready: {self.health} answers {status}")

    def cpu_s(self) -> float | None:
        """What the process that listens there has used, where it runs on this machine and we may look."""
        import psutil

        host, port = self._address
        if host not in _LOOPBACK:
            return 0.0  # it computes elsewhere: nothing of this machine's load is its own
        try:
            owners = {
                connection.pid
                for connection in psutil.net_connections(kind="tcp")
                if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,) and connection.pid
            }
            trees = [psutil.Process(pid) for pid in owners]
            everyone = {process for tree in trees for process in (tree, *tree.children(recursive=True))}
            return sum(sum(process.cpu_times()[:4]) for process in everyone) if owners else None
        except (psutil.Error, OSError):
            return None

    def pause(self) -> None:
        return

    def resume(self) -> None:
        return


@contextlib.contextmanager
def at_rest(others: Sequence[Server], settle_s: float = 0.05) -> Iterator[None]:
    """Have `others` stand still meanwhile, so that a server that waits its turn cannot take from the one that is
    measured, by spinning threads or by intent."""
    for server in others:
        server.pause()
    if others:
        time.sleep(settle_s)
    try:
        yield
    finally:
        for server in others:
            server.resume()


def wait_until_idle(
    server: Server, clock: Clock, *, limit_s: float = 15.0, look_s: float = 0.2, idle_cores: float = 0.15
) -> bool:
    """Wait until `server` computes nothing: what a window cut off at its end must not be paid for in the next one.

    False where it still computes after `limit_s` (it may spin by design); True where its use is not known.
    """
    deadline_s = clock.monotonic_s() + limit_s
    before = server.cpu_s()
    while before is not None:
        begin_s = clock.monotonic_s()
        clock.sleep(look_s)
        after = server.cpu_s()
        if after is None or after - before <= idle_cores * (clock.monotonic_s() - begin_s):
            return True
        if clock.monotonic_s() >= deadline_s:
            return False
        before = after
    return True
