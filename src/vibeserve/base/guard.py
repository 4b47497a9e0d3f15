"""The small process that stands between us and one that we started: run as a script, it imports nothing of this package.

It starts one command in a session of its own and ends everything that came of it when it is told to, when the command
ends by itself, when its memory or its log passes the limit, or when whoever started the guard is gone, killed with -9 included:
the kernel then closes the pipe that is the guard's standard input. On Linux the guard is a subreaper, so what forks
away, leaves its session or loses its parent is still a descendant of the guard; elsewhere a mark in the environment
finds it.

Spoken over standard input: one line of JSON (the command), then `end SECONDS` lines. Over standard output: one line of
JSON with `pid` or `error`, and one at the end with `exit`, `cpu_s`, `reason` and `left` (what could not be killed).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ORPHAN_GRACE_S = 1.0  # nobody waits for the answers of an orphan
UNKILLABLE_S = 10.0
LOOK_EVERY_S = 1.0


def prctl(option: int, value: int) -> None:
    """Linux's prctl; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Guard:
    """One guarded command."""

    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self.parent = os.getppid()
        self.exit_code: int | None = None
        self.reason = ""
        self.next_look_s = 0.0
        self.woken = _wake_on_children()
        self.child = self._start()

    def _start(self) -> int:
        def prepare() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            if self.spec["cpus"] is not None and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, self.spec["cpus"])
            for name, value in self.spec["limits"].items():
                resource.setrlimit(getattr(resource, name), (value, value))

        with contextlib.ExitStack() as stack:
            out = stack.enter_context(open(self.spec["stdout"], "ab"))
            err = stack.enter_context(open(self.spec["stderr"], "ab"))
            process = subprocess.Popen(
                self.spec["argv"],
                cwd=self.spec["cwd"],
                env=self.spec["env"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509 (the guard has one thread)
            )
        process.returncode = 0  # reaped here, with everything else, never by this object
        return process.pid

    # What there is

    def reap(self) -> None:
        """Take the exit codes of what has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                self.exit_code = os.waitstatus_to_exitcode(status)

    def tree(self) -> list[Any]:
        """Everything alive that came of the command."""
        import psutil

        found = {}
        with contextlib.suppress(psutil.Error):
            found = {process.pid: process for process in psutil.Process().children(recursive=True)}
        if sys.platform != "linux":
            found |= {process.pid: process for process in marked(self.spec["mark_name"], self.spec["mark"])}
        return [process for process in found.values() if alive(process)]

    def memory_bytes(self) -> int:
        """Resident memory of all of it; shared pages count once a process."""
        import psutil

        total = 0
        for process in self.tree():
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    # Until the end

    def watch(self) -> float:
        """Wait for a reason to end; returns the seconds that the command has to end by itself."""
        buffer = b""
        while True:
            self.reap()
            if self.exit_code is not None:
                self.reason = "exited"
                return 0.0
            if excess := self._excess():
                self.reason = excess
                return 0.0
            ready, _, _ = select.select([0, self.woken], [], [], LOOK_EVERY_S)
            if self.woken in ready:
                os.read(self.woken, 4096)
            if 0 in ready:
                data = os.read(0, 4096)
                if not data:
                    self.reason = "orphaned"
                    return ORPHAN_GRACE_S
                buffer += data
                if b"\n" in buffer:
                    word, _, grace = buffer.split(b"\n")[0].decode().partition(" ")
                    self.reason = "ended"
                    return float(grace) if word == "end" else 0.0
            elif os.getppid() != self.parent:
                self.reason = "orphaned"
                return ORPHAN_GRACE_S

    def _excess(self) -> str:
        """What it has had too much of: memory | log; looked at once in a while."""
        now = time.monotonic()
        if now < self.next_look_s:
            return ""
        self.next_look_s = now + LOOK_EVERY_S
        limit = self.spec["memory_bytes"]
        if limit is not None and self.memory_bytes() > limit:
            return "memory"
        for name in ("stdout", "stderr"):
            with contextlib.suppress(OSError):
                if os.stat(self.spec[name]).st_size > self.spec["log_bytes"]:
                    return "log"
        return ""

    def end(self, grace_s: float) -> list[int]:
        """SIGTERM to all of it, SIGKILL after `grace_s`; returns the ids of what is still there."""
        if grace_s > 0:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            if self._gone_within(grace_s):
                return []
        deadline = time.monotonic() + UNKILLABLE_S
        while time.monotonic() < deadline:
            self._signal(signal.SIGSTOP)  # what is stopped cannot fork away between the look and the blow
            self._signal(signal.SIGKILL)
            if self._gone_within(0.05):
                return []
        return [process.pid for process in self.tree()]

    def _signal(self, number: signal.Signals) -> None:
        import psutil

        for process in self.tree():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                process.send_signal(number)

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            self.reap()
            if not self.tree():
                self.reap()
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)


def _wake_on_children() -> int:
    """A pipe that becomes readable when a child ends: the guard sleeps until there is something to do."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def alive(process: Any) -> bool:
    """Whether it still runs: a zombie does not."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def marked(name: str, value: str) -> list[Any]:
    """All processes of ours whose environment says `name=value`."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(name) == value:
                found.append(process)
    return found


def say(message: dict[str, Any]) -> None:
    """One line of JSON to whoever started us, who may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def read_spec() -> dict[str, Any]:
    """The first line of standard input, byte by byte: what follows belongs to `watch`."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)
        line += byte
    spec: dict[str, Any] = json.loads(line)
    return spec


def main() -> None:
    """Guard one command."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    spec = read_spec()
    sys.path[:] = spec["sys_path"]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        guard = Guard(spec)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"pid": guard.child})
    left = guard.end(guard.watch())
    used = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in used)
    say({"exit": guard.exit_code, "cpu_s": cpu_s, "reason": guard.reason, "left": left})


if __name__ == "__main__":
    main()
