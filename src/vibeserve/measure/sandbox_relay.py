"""Joins a server in a network of its own to the load client outside. Run as a script; it imports nothing of this package.

`outside HOST PORT -- PROGRAM …` listens on HOST:PORT, then becomes PROGRAM, which inherits the listening socket.
`inside PORT -- SERVER …`, run by PROGRAM in the new network, starts the server and hands each connection that comes in by
the inherited socket on to 127.0.0.1:PORT of that network. Its exit code is the server's.

The server gets no such socket: it can be reached, and can reach nobody.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys

LISTENING_FD = 9
CHUNK = 1 << 16
CONNECT_TIMEOUT_S = 5.0
PR_SET_DUMPABLE = 4


class Flow:
    """One direction of a connection: what comes from `source` goes to `sink`; `pending` waits for room there."""

    def __init__(self, source: socket.socket, sink: socket.socket):
        self.source, self.sink = source, sink
        self.pending = b""
        self.ended = False

    def read(self) -> None:
        """Move one piece on. Raises OSError where either side is gone."""
        try:
            data = self.source.recv(CHUNK)
        except BlockingIOError:
            return
        if data:
            self.pending = data
            self.write()
        else:
            self.ended = True
            self.sink.shutdown(socket.SHUT_WR)

    def write(self) -> None:
        """Send what waits. Raises OSError where the other side is gone."""
        with contextlib.suppress(BlockingIOError):
            self.pending = self.pending[self.sink.send(self.pending) :]


class Relay:
    """All connections, in one thread: a piece costs two system calls and no copy beyond them."""

    def __init__(self, listening: socket.socket, port: int):
        self.port = port
        self.listening = listening
        self.selector = selectors.DefaultSelector()
        listening.setblocking(False)
        self.selector.register(listening, selectors.EVENT_READ)
        self.flows: dict[socket.socket, tuple[Flow, Flow]] = {}  # of each socket: (what it sends, what it gets)

    def serve(self, wake_fd: int, child: subprocess.Popen[bytes]) -> int:
        """Relay until the server ends; returns its exit code."""
        self.selector.register(wake_fd, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select(1.0):
                if key.fileobj is self.listening:
                    self.accept()
                elif key.fileobj == wake_fd:
                    os.read(wake_fd, 4096)
                elif isinstance(key.fileobj, socket.socket):
                    self.move(key.fileobj)
            if (code := child.poll()) is not None:
                return code

    def accept(self) -> None:
        """Take a connection and make its other half; where nobody listens inside, it is closed."""
        try:
            client, _ = self.listening.accept()
        except OSError:
            return
        try:
            server = socket.create_connection(("127.0.0.1", self.port), CONNECT_TIMEOUT_S)
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.selector.register(end, selectors.EVENT_READ)
        there, back = Flow(client, server), Flow(server, client)
        self.flows |= {client: (there, back), server: (back, there)}

    def move(self, end: socket.socket) -> None:
        """Do what can be done on one socket, and wait for what comes next."""
        if end not in self.flows:
            return  # closed by an event of the same round
        out, into = self.flows[end]
        try:
            if into.pending:
                into.write()
            if not out.pending and not out.ended:
                out.read()
        except OSError:
            self.close(out)
            return
        if out.ended and into.ended and not (out.pending or into.pending):
            self.close(out)
            return
        for one in (out.source, out.sink):
            self.watch(one)

    def watch(self, end: socket.socket) -> None:
        """Read unless what was read still waits; write where something waits."""
        out, into = self.flows[end]
        events = selectors.EVENT_READ if not out.pending and not out.ended else 0
        events |= selectors.EVENT_WRITE if into.pending else 0
        known = self.selector.get_map().get(end)
        if known is not None and known.events == events:
            return
        if known is not None and not events:
            self.selector.unregister(end)
        elif known is None and events:
            self.selector.register(end, events)
        elif known is not None:
            self.selector.modify(end, events)

    def close(self, flow: Flow) -> None:
        """Close both halves of a connection."""
        for end in (flow.source, flow.sink):
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(end)
            self.flows.pop(end, None)
            end.close()


def outside(host: str, port: int, program: list[str]) -> None:
    """Listen, and become the program that makes the new network."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        sys.exit(f"sandbox: {host}:{port}: {error.strerror or error}")
    os.dup2(listening.fileno(), LISTENING_FD, inheritable=True)
    # The server inside is asked to end by a signal of its own; until it has, its walls stay.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.execv(program[0], program)


def inside(port: int, command: list[str]) -> int:
    """Start the server and relay until it ends; returns its exit code (128 + N where signal N ended it)."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # nobody in here looks into this process
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    listening = socket.socket(fileno=LISTENING_FD)
    os.set_inheritable(LISTENING_FD, False)
    try:
        child = subprocess.Popen(command)
    except OSError as error:
        sys.exit(f"sandbox: cannot start {command[0]!r}: {error.strerror or error}")
    code = Relay(listening, port).serve(reading, child)
    return 128 - code if code < 0 else code


def main() -> None:
    """One of the two halves."""
    words = sys.argv[1:]
    cut = words.index("--")
    if words[0] == "outside":
        outside(words[1], int(words[2]), words[cut + 1 :])
    sys.exit(inside(int(words[1]), words[cut + 1 :]))


if __name__ == "__main__":
    main()
