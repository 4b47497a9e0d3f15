"""Starting other programs, and having none of them outlive us.

Everything that is run (servers, checkers, benchmarks) goes through a `ProcessRunner` that is handed in. The real one
puts a guard (`vibeserve.base.guard`) between us and the program: whatever came of it is ended with it, and all of it is
ended when we are gone, killed with -9 included. `vibeserve.base.scripted` has the runner that tests hand in.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vibeserve.base import guard
from vibeserve.base.errors import VibeServeError

MARK = "VIBESERVE_PROCESS"
GROUP_MARK = "VIBESERVE_PROCESS_GROUP"

# What a started program may know of our environment. Everything else (keys, tokens, proxies, settings) stays here.
KEPT_VARIABLES = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "TERM",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "NEURON_RT_VISIBLE_CORES",
    "NEURON_RT_NUM_CORES",
    "ROCR_VISIBLE_DEVICES",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "XDG_CACHE_HOME",
]


class ProcessError(VibeServeError):
    """A program could not be started, or could not be ended."""

    code = "process"


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. `stderr` None: with stdout. `memory_bytes` bounds resident memory of all that comes of it, and
    `log_bytes` what it prints: beyond either, it is ended.

    `limits` are names of the `resource` module with their values (`{"RLIMIT_NOFILE": 4096}`), set on the program.
    `group` marks everything of one run, so that `sweep` finds what a crash of the guard itself left behind.
    """

    argv: tuple[str, ...]
    cwd: Path
    stdout: Path
    stderr: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cpus: frozenset[int] | None = None
    memory_bytes: int | None = None
    log_bytes: int = 1 << 30
    limits: Mapping[str, int] = field(default_factory=dict)
    group: str = ""


class Process(Protocol):
    """A program that was started. Leaving it running is an error of the caller: use `end`, or `with`."""

    @property
    def pid(self) -> int:
        """The program's process id."""
        ...

    @property
    def reason(self) -> str:
        """Why it is over: exited | ended | memory | log | lost; empty while it runs."""
        ...

    def poll(self) -> int | None:
        """Its exit code (negative: the signal), or None while it runs."""
        ...

    def wait(self, timeout_s: float) -> int | None:
        """Wait until it is over; None where it still runs after `timeout_s`."""
        ...

    def end(self, grace_s: float = 5.0) -> int:
        """SIGTERM, after `grace_s` SIGKILL, to all that came of it; returns the exit code when nothing is left."""
        ...

    def cpu_s(self) -> float:
        """CPU seconds used by all that came of it, so far."""
        ...

    def memory_bytes(self) -> int:
        """Resident memory of all that came of it, now."""
        ...

    def pause(self) -> None:
        """Stop all of it where it stands."""
        ...

    def resume(self) -> None:
        """Let it go on."""
        ...


class ProcessRunner(Protocol):
    """What starts programs."""

    def start(self, command: Command) -> Process:
        """Start it. Raises ProcessError where it cannot be started (no such program, no such directory)."""
        ...


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a started program: the allow list of `KEPT_VARIABLES`, our interpreter first, then `extra`."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    here = str(Path(sys.executable).parent)
    kept["PATH"] = os.pathsep.join([here, kept.get("PATH", os.defpath)])
    kept.update(PYTHONNOUSERSITE="1", PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1", PYTHONHASHSEED="0")
    return kept | dict(extra or {})


class SystemRunner:
    """Starts real programs, each under a guard."""

    def start(self, command: Command) -> GuardedProcess:
        return GuardedProcess(command)


class GuardedProcess:
    """A program under its guard."""

    def __init__(self, command: Command):
        self.command = command
        self.mark = uuid.uuid4().hex
        self.reason = ""
        self._exit_code: int | None = None
        self._cpu_s = 0.0
        self._buffer = b""
        self._guard = self._start_guard()
        first = self._read(30.0)
        if first is None or "pid" not in first:
            self._close()
            why = (first or {}).get("error", "its guard did not answer")
            raise ProcessError(f"cannot start {command.argv[0]!r} in {command.cwd}: {why}")
        self.pid: int = first["pid"]

    def _start_guard(self) -> subprocess.Popen[bytes]:
        command = self.command
        marks = {MARK: self.mark} | ({GROUP_MARK: command.group} if command.group else {})
        spec = {
            "argv": list(command.argv),
            "cwd": str(command.cwd),
            "env": dict(command.env) | marks,
            "stdout": str(command.stdout.absolute()),
            "stderr": str((command.stderr or command.stdout).absolute()),
            "cpus": None if command.cpus is None else sorted(command.cpus),
            "limits": dict(command.limits),
            "memory_bytes": command.memory_bytes,
            "log_bytes": command.log_bytes,
            "mark": self.mark,
            "mark_name": MARK,
            "sys_path": [path for path in sys.path if path],
        }
        process = subprocess.Popen(
            [sys.executable, "-I", guard.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=clean_environment(marks),
            start_new_session=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(spec).encode() + b"\n")
            process.stdin.flush()
        return process

    def _read(self, timeout_s: float) -> dict[str, Any] | None:
        """The guard's next line; None where none came within `timeout_s`, or the guard is gone."""
        if self._guard.stdout is None or self._guard.stdout.closed:
            return None
        deadline = time.monotonic() + timeout_s
        handle = self._guard.stdout.fileno()
        while b"\n" not in self._buffer:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([handle], [], [], left_s)[0]:
                return None
            data = os.read(handle, 65536)
            if not data:
                return {"exit": None, "cpu_s": self._cpu_s, "reason": "lost", "left": []}
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _finish(self, message: dict[str, Any]) -> int:
        self._cpu_s = message["cpu_s"]
        self.reason = message["reason"]
        exit_code = message["exit"]
        self._exit_code = -9 if exit_code is None else exit_code
        self._close()
        if self.reason == "lost":
            kill_marked(MARK, self.mark)
        if message["left"]:
            raise ProcessError(f"could not end {self.command.argv[0]!r}: still there: {message['left']}")
        return self._exit_code

    def _close(self) -> None:
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(30.0)
        if self._guard.poll() is None:
            self._guard.kill()
            self._guard.wait()
            kill_marked(MARK, self.mark)

    def poll(self) -> int | None:
        return self.wait(0.0)

    def wait(self, timeout_s: float) -> int | None:
        if self._exit_code is None:
            message = self._read(timeout_s)
            if message is not None:
                return self._finish(message)
        return self._exit_code

    def end(self, grace_s: float = 5.0) -> int:
        if self._exit_code is not None:
            return self._exit_code
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.write(f"end {grace_s}\n".encode())
            self._guard.stdin.flush()
        message = self._read(grace_s + guard.UNKILLABLE_S + 5.0)
        if message is None:  # the guard hangs: it was stopped, or the machine is out of breath
            message = {"exit": None, "cpu_s": self._cpu_s, "reason": "lost", "left": []}
            self._guard.kill()
        return self._finish(message)

    def _tree(self) -> list[Any]:
        import psutil

        try:
            above = psutil.Process(self._guard.pid)
            return [above, *above.children(recursive=True)]
        except psutil.Error:
            return []

    def cpu_s(self) -> float:
        if self._exit_code is None:
            self._cpu_s = max(self._cpu_s, sum(_cpu_s(process) for process in self._tree()))
        return self._cpu_s

    def memory_bytes(self) -> int:
        import psutil

        total = 0
        for process in self._tree()[1:]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def pause(self) -> None:
        self._each("suspend")

    def resume(self) -> None:
        self._each("resume")

    def _each(self, action: str) -> None:
        import psutil

        for process in self._tree()[1:]:
            with contextlib.suppress(psutil.Error):
                getattr(process, action)()

    def __enter__(self) -> GuardedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _cpu_s(process: Any) -> float:
    """What it used, with those of its children that it has waited for."""
    import psutil

    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.Error:
        return 0.0


def kill_marked(name: str, value: str, tries: int = 50) -> int:
    """SIGKILL for every process whose environment says `name=value`; returns how many there were."""
    import psutil

    hit: set[int] = set()
    for _ in range(tries):
        found = [process for process in guard.marked(name, value) if guard.alive(process)]
        if not found:
            break
        for process in found:
            hit.add(process.pid)
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)
    return len(hit)


def sweep(group: str) -> int:
    """End what an earlier, crashed run marked with `group` has left behind; returns how many processes there were."""
    return kill_marked(GROUP_MARK, group)


def owns_port(pids: Iterable[int], port: int) -> bool | None:
    """Whether one of `pids` (or a descendant) listens on `port`; None where the system does not tell."""
    import psutil

    try:
        processes = [psutil.Process(pid) for pid in pids]
        everyone = processes + [child for process in processes for child in process.children(recursive=True)]
        for process in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                for connection in process.net_connections(kind="tcp"):
                    if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                        return True
    except (psutil.Error, OSError):
        return None
    return False
