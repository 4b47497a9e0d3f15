"""The process around the application: the socket, signals, and an end that lets work in flight finish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterable, Iterator

import uvicorn

from .app import App, Load
from .settings import HttpSettings

log = logging.getLogger(__name__)


class StallWatch:
    """Cuts off connections whose client has read nothing for `limit_s` although there was something to read.

    A buffer that has shrunk since the last look is progress. What a client does not read is bounded by its answer, but
    would be kept for as long as it keeps the connection.
    """

    def __init__(self, limit_s: float):
        self._limit_s = limit_s
        self._seen: dict[asyncio.Transport, tuple[int, float]] = {}

    def look(self, transports: Iterable[asyncio.Transport], now_s: float) -> None:
        """Compare with the last look, and cut off those that have stood still for too long."""
        seen = {}
        for transport in transports:
            size = transport.get_write_buffer_size()
            if size == 0:
                continue
            before, since = self._seen.get(transport, (0, now_s))
            since = now_s if size < before else since
            if now_s - since > self._limit_s:
                transport.abort()
            else:
                seen[transport] = (size, since)
        self._seen = seen


class _Server(uvicorn.Server):
    """uvicorn without its habit of raising the signal again after the shutdown: a drained server exits with 0."""

    def __init__(self, config: uvicorn.Config, write_stall_s: float):
        super().__init__(config)
        self._stalls = StallWatch(write_stall_s)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % 10 == 0:
            transports = [connection.transport for connection in self.server_state.connections]
            self._stalls.look(transports, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def end(self) -> None:
        """Begin to drain; a second signal ends at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self.config.app.drain()  # type: ignore[union-attr]


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError where the port is taken or the host unknown."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def serve(load: Load, settings: HttpSettings, listener: socket.socket) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code: 0 after a drain, 1 where the model or the engine failed."""
    failed: list[str] = []

    def on_failure(message: str) -> None:
        failed.append(message)
        server.should_exit = True

    app = App(load, settings, on_failure)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(settings.keep_alive_s) or 1,
        timeout_graceful_shutdown=int(settings.drain_s) or 1,
    )
    # uvicorn tells every malformed request and every cancelled stream; what matters is told by the application.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server = _Server(config, settings.write_stall_s)
    host, port = listener.getsockname()[:2]
    log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    server.run(sockets=[listener])
    code = 1 if failed else 0
    if app.engine is None and not failed:
        # The model is still being loaded: its thread must not run on while the interpreter goes down.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    return code
