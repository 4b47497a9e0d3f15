"""Starting a candidate: a free port, a clean environment, readiness, and an end that leaves nothing behind."""

from __future__ import annotations

import http.client
import shlex
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vibeserve.base.clock import Clock, SystemClock
from vibeserve.base.errors import InputError
from vibeserve.base.files import DiskFiles, Files
from vibeserve.base.processes import (
    Command,
    Process,
    ProcessError,
    ProcessRunner,
    SystemRunner,
    clean_environment,
    owns_port,
)
from vibeserve.measure.candidate import Candidate, missing_requirements, read_candidate
from vibeserve.measure.cpus import plan_cpus
from vibeserve.measure.errors import (
    KilledError,
    RunError,
    StartError,
    cannot_write,
    killed_from_outside,
    last_line,
    tail_of,
)
from vibeserve.measure.sandbox import NoSandbox, Room, Sandbox

PORT_TRIES = 3
END_GRACE_S = 5.0
MEMORY_SHARE = 0.95
SIGNALLED = 128  # shells and sandboxes report the end by signal N as 128 + N
# Candidates serve what is on disk: a library that asks a hub first would make readiness depend on the network.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_NO_PROGRAM = (126, 127)  # what a shell says of a program that it cannot start
_WHAT_IT_SEES = "in the sandbox it sees its own directory, the system's programs, and the installation of the program that start names first"
_PORT_TAKEN = ("address already in use", "address in use", "eaddrinuse", "errno 98", "errno 48")

Probe = Callable[[str, int, str, float], int | None]


@dataclass(frozen=True)
class RunningServer:
    """A server that answered its health check. `ready_s` counts from its start; `log` holds stdout and stderr."""

    candidate: Candidate
    url: str
    host: str
    port: int
    ready_s: float
    log: Path
    process: Process

    @property
    def pid(self) -> int:
        """The process id of the program that was started."""
        return self.process.pid

    def failure(self) -> str | None:
        """Why it is not running any more, in one line; None while it runs."""
        exit_code = self.process.poll()
        return None if exit_code is None else death(self.process, exit_code, self.log)

    def require_alive(self) -> None:
        """Raises RunError where it has died, KilledError where it was killed from outside."""
        if (why := self.failure()) is not None:
            outside = killed_from_outside(self.process.poll(), self.process.reason)
            kind = KilledError if outside else RunError
            raise kind(f"{self.candidate.name}: the server died: {why}", hint=f"read {self.log}")

    def cpu_s(self) -> float:
        """CPU seconds used by all of it so far."""
        return self.process.cpu_s()

    def pause(self) -> None:
        """Stop all of it where it stands."""
        self.process.pause()

    def resume(self) -> None:
        """Let it go on."""
        self.process.resume()

    def stop(self, grace_s: float = END_GRACE_S) -> None:
        """End it and everything that came of it."""
        self.process.end(grace_s)

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def launch(
    candidate_dir: Path,
    model_dir: Path,
    *,
    log_dir: Path,
    host: str = "127.0.0.1",
    port: int | None = None,
    ready_timeout_s: float | None = None,
    cpus: frozenset[int] | None = None,
    env: Mapping[str, str] | None = None,
    memory_bytes: int | None = None,
    group: str = "",
    runner: ProcessRunner | None = None,
    clock: Clock | None = None,
    files: Files | None = None,
    probe: Probe | None = None,
    sandbox: Sandbox | None = None,
) -> RunningServer:
    """Start a candidate and wait until it is ready: `with launch(...) as server`, or `server.stop()`, ends it.

    Args:
        candidate_dir: holds `candidate.toml`.
        model_dir: the materialised model, handed on as `--model-dir`.
        log_dir: gets `server.log` (stdout and stderr; numbered where one is there).
        port: None takes a free one, and another where somebody was quicker.
        ready_timeout_s: overrides the candidate's own.
        cpus: the cores that it may use; None follows the plan (`plan_cpus`).
        env: added to the clean environment.
        memory_bytes: resident memory of the whole tree at which it is killed; None: 95 % of what is free now.
        group: marks its processes, for `vibeserve.base.processes.sweep`.
        sandbox: the walls that it runs behind (`vibeserve.measure.sandbox.choose`); None: none.

    Raises:
        InputError: `candidate.toml` is wrong.
        StartError: it ended early, did not get ready in time, or its requirements are not there.
        MissingError: the log cannot be written.
    """
    candidate = read_candidate(candidate_dir)
    if candidate.kernel:
        raise InputError(
            f"{candidate.path} is a kernel candidate ({candidate.kernel}): there is no server to start",
            hint="run it with 'vibeserve nki simulate'",
        )
    if candidate.python and (missing := missing_requirements(candidate.path)):
        raise StartError(
            f"{candidate.name}: requirements.txt is not satisfied: {'; '.join(missing)}",
            hint=f"nothing is installed during a run: pip install -r {candidate.path / 'requirements.txt'}",
        )
    starter = _Starter(
        candidate=candidate,
        model_dir=model_dir.absolute(),
        host=host,
        timeout_s=ready_timeout_s or candidate.ready_timeout_s,
        cpus=plan_cpus().server if cpus is None else cpus,
        env=clean_environment(OFFLINE | dict(env or {})),
        memory_bytes=_memory_limit() if memory_bytes is None else memory_bytes,
        group=group,
        runner=runner or SystemRunner(),
        clock=clock or SystemClock(),
        files=files or DiskFiles(),
        probe=probe or health_status,
        sandbox=sandbox or NoSandbox("not asked for"),
    )
    check_host(host)
    for _ in range(1 if port else PORT_TRIES):
        server = starter.try_port(port or free_port(host), log_dir)
        if server is not None:
            return server
    where = f"port {port} on {host}" if port else "the ports that it was given"
    raise StartError(f"{candidate.name}: {where}: taken by another program", hint="choose another with --port")


@dataclass(frozen=True)
class _Starter:
    candidate: Candidate
    model_dir: Path
    host: str
    timeout_s: float
    cpus: frozenset[int] | None
    env: Mapping[str, str]
    memory_bytes: int | None
    group: str
    runner: ProcessRunner
    clock: Clock
    files: Files
    probe: Probe
    sandbox: Sandbox

    def try_port(self, port: int, log_dir: Path) -> RunningServer | None:
        """Start it on `port`; None where somebody else has that port."""
        # In a network of its own a server listens on that network's loopback; the relay has the address that was asked for.
        host = "127.0.0.1" if self.sandbox.relayed else self.host
        address = ("--model-dir", str(self.model_dir), "--host", host, "--port", str(port))
        argv = (*self.candidate.argv(), *address)
        room = Room(self.candidate.path, self.model_dir, self.host, port)
        log = _new_log(self.files, log_dir, argv)
        begin_s = self.clock.monotonic_s()
        try:
            process = self.runner.start(
                Command(
                    argv=self.sandbox.wrap(argv, room),
                    cwd=self.candidate.path,
                    stdout=log,
                    env={**self.env, **self.sandbox.variables(room)},
                    cpus=self.cpus,
                    memory_bytes=self.memory_bytes,
                    limits={"RLIMIT_CORE": 0},  # a crash must not fill the disk
                    group=self.group,
                )
            )
        except ProcessError as error:
            raise StartError(
                f"{self.candidate.name}: {error.message}", hint="look at start in candidate.toml"
            ) from None
        try:
            ready = self._wait(process, port, log, begin_s)
        except BaseException:
            process.end(END_GRACE_S)
            raise
        if not ready:
            process.end(END_GRACE_S)
            return None
        ready_s = self.clock.monotonic_s() - begin_s
        url = f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}"
        return RunningServer(self.candidate, url, self.host, port, ready_s, log, process)

    def _wait(self, process: Process, port: int, log: Path, begin_s: float) -> bool:
        """Poll until healthy; False where the port belongs to somebody else. Raises StartError."""
        deadline_s = begin_s + self.timeout_s
        pause_s, status = 0.02, None
        while True:
            if (exit_code := process.poll()) is not None:
                tail = tail_of(log)
                if any(words in tail.lower() for words in _PORT_TAKEN):
                    return False
                why = death(process, exit_code, log)
                hidden = self.sandbox.isolated and exit_code in _NO_PROGRAM
                raise StartError(
                    f"{self.candidate.name}: the server ended before it was ready: {why}"
                    + (f"; {_WHAT_IT_SEES}" if hidden else ""),
                    hint=f"read {log}",
                    tail=tail,
                    killed=killed_from_outside(exit_code, process.reason),
                )
            left_s = deadline_s - self.clock.monotonic_s()
            if left_s <= 0:
                raise StartError(
                    f"{self.candidate.name}: not ready after {self.timeout_s:g} s: {self.candidate.health} "
                    + (f"answers {status}" if status else "does not answer"),
                    hint=f"read {log}; ready_timeout_s in candidate.toml gives it longer",
                    tail=tail_of(log),
                )
            status = self.probe(self.host, port, self.candidate.health, min(2.0, max(0.1, left_s)))
            if status == 200:
                # The relay has bound the port before anything started behind it: nobody else can have it.
                return self.sandbox.relayed or owns_port([process.pid], port) is not False
            self.clock.sleep(pause_s)
            pause_s = min(0.2, pause_s * 1.3)


def health_status(host: str, port: int, path: str, timeout_s: float) -> int | None:
    """The HTTP status of one GET; None where nobody answers in time, or what answers does not speak HTTP."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def check_host(host: str) -> None:
    """Raises InputError for what is no address and no name of one."""
    try:
        found = socket.getaddrinfo(host, None) if host else []
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise InputError(f"no address to listen on: {host!r}", hint="use 127.0.0.1, or 0.0.0.0 for every address")


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now; `launch` takes another where it is taken in the meantime."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise InputError(f"cannot listen on {host!r}: {error.strerror or error}", hint="use 127.0.0.1") from None
        port: int = probe.getsockname()[1]
        return port


def death(process: Process, exit_code: int, log: Path) -> str:
    """How a process ended, with the last line of its log."""
    said = last_line(tail_of(log))
    if process.reason == "memory":
        how = "killed: it took more memory than it may"
    elif process.reason == "log":
        how = "killed: it printed more than a log may hold"
    elif exit_code < 0 or exit_code > SIGNALLED:
        how = f"ended by signal {-exit_code if exit_code < 0 else exit_code - SIGNALLED}"
    else:
        how = f"exit code {exit_code}"
    return f"{how} ({said})" if said and not said.startswith("$ ") else how


def _memory_limit() -> int:
    import psutil

    return int(psutil.virtual_memory().available * MEMORY_SHARE)


def _new_log(files: Files, log_dir: Path, argv: tuple[str, ...]) -> Path:
    """A log file of its own, begun with the command. Raises MissingError where it cannot be written."""
    number = 1
    while (path := log_dir / ("server.log" if number == 1 else f"server-{number}.log")).exists():
        number += 1
    try:
        files.append_text(path, f"$ {shlex.join(argv)}\n")
    except OSError as error:
        raise cannot_write(path, error) from None
    return path
