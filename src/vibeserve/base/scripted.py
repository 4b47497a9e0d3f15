"""A process runner for tests: no process is started, a script says what each one would have done, on a logical clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vibeserve.base.clock import LogicalClock
from vibeserve.base.processes import Command, ProcessError, ProcessRunner


@dataclass(frozen=True, slots=True)
class Script:
    """What a program does: it runs for `runs_for_s` (None: until it is ended), prints `output`, writes `files`, ends.

    `error` set: it cannot be started at all. `deaf`: it ignores SIGTERM, so that ending it takes the whole grace.
    """

    exit_code: int = 0
    runs_for_s: float | None = 0.0
    output: str = ""
    files: Mapping[Path, str] = field(default_factory=dict)
    cpu_s: float = 0.0
    memory_bytes: int = 0
    deaf: bool = False
    error: str = ""


class ScriptedProcess:
    """One scripted program."""

    def __init__(self, script: Script, command: Command, clock: LogicalClock, pid: int):
        self.script, self.command, self.clock, self.pid = script, command, clock, pid
        self.started_s = clock.monotonic_s()
        self.reason = ""
        self.paused = False
        self._exit_code: int | None = None
        _append(command.stdout, script.output)

    def poll(self) -> int | None:
        return self.wait(0.0)

    def wait(self, timeout_s: float) -> int | None:
        if self._exit_code is not None:
            return self._exit_code
        left_s = None
        if self.script.runs_for_s is not None:
            left_s = max(0.0, self.started_s + self.script.runs_for_s - self.clock.monotonic_s())
        if left_s is None or left_s > timeout_s:
            self.clock.sleep(timeout_s)
            return None
        self.clock.sleep(left_s)
        for path, text in self.script.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self._exit_code, self.reason = self.script.exit_code, "exited"
        return self._exit_code

    def end(self, grace_s: float = 5.0) -> int:
        if self._exit_code is None:
            self.clock.sleep(grace_s if self.script.deaf else 0.0)
            self._exit_code, self.reason = (-9 if self.script.deaf else -15), "ended"
        return self._exit_code

    def cpu_s(self) -> float:
        return self.script.cpu_s

    def memory_bytes(self) -> int:
        return self.script.memory_bytes

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class ScriptedRunner:
    """Hands each command to `play`, which returns its script; `started` lists what was asked for."""

    def __init__(self, play: Callable[[Command], Script], clock: LogicalClock | None = None):
        self.play = play
        self.clock = clock or LogicalClock()
        self.started: list[ScriptedProcess] = []
        self._pids = itertools.count(100_001)

    def start(self, command: Command) -> ScriptedProcess:
        script = self.play(command)
        if script.error:
            raise ProcessError(f"cannot start {command.argv[0]!r} in {command.cwd}: {script.error}")
        process = ScriptedProcess(script, command, self.clock, next(self._pids))
        self.started.append(process)
        return process


def _append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


if TYPE_CHECKING:
    _RUNNER: ProcessRunner = ScriptedRunner(lambda command: Script())  # it is one
