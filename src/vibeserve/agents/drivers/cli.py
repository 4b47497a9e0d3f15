"""A coding agent's own command line, run without a person: confined, in a home of its own, its answer read from lines."""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from vibeserve.agents.confine import places_of
from vibeserve.agents.desk import AgentError, Box, Desk, Reply, Task
from vibeserve.agents.drivers import own_tools
from vibeserve.agents.drivers.readers import READERS
from vibeserve.base.errors import MissingError
from vibeserve.base.processes import Command, clean_environment

#: What an agent may print before it is ended.
LOG_BYTES = 64 << 20
#: Resident memory of an agent with all that it starts.
MEMORY_BYTES = 8 << 30
#: The longest argument that Linux takes.
ARGUMENT_BYTES = 120_000


@dataclass(frozen=True)
class Form:
    """One entry of clis.toml."""

    name: str
    argv: tuple[str, ...]
    model: tuple[str, ...]
    tells_cost: bool
    variables: tuple[str, ...]
    also: tuple[str, ...]
    files: tuple[str, ...]
    install: str
    login: str
    set: Mapping[str, str] = field(default_factory=dict)
    with_files: Mapping[str, str] = field(default_factory=dict)
    mcp_argv: tuple[str, ...] = ()
    mcp_file: str = ""
    mcp_text: str = ""


@functools.cache
def forms() -> dict[str, Form]:
    """The command lines by name."""
    document = tomllib.loads(files("vibeserve.agents.drivers").joinpath("clis.toml").read_text(encoding="utf-8"))
    return {name: _form(name, table) for name, table in document.items()}


def _form(name: str, table: Mapping[str, Any]) -> Form:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return Form(name=name, **values)


@dataclass(frozen=True)
class CliDriver:
    """Runs one of the command lines. `home` is where the user's logins lie: they are copied, never used in place."""

    form: Form
    model: str = ""
    home: Path = field(default_factory=Path.home)
    confined: bool = True

    @property
    def name(self) -> str:
        """The agent, with its model where one was named."""
        return f"{self.form.name}:{self.model}" if self.model else self.form.name

    @property
    def tells_cost(self) -> bool:
        return self.form.tells_cost

    def ready(self) -> None:
        """The program is on PATH, and a login is there. Raises MissingError."""
        form = self.form
        if shutil.which(form.argv[0]) is None:
            raise MissingError(
                f"{form.argv[0]} is not installed", hint=f"{form.install}; '--agent playbook' works without it"
            )
        if not any(os.environ.get(name) for name in form.variables) and not self._logins():
            raise MissingError(f"{form.argv[0]} has no login here", hint=form.login)

    def _logins(self) -> list[str]:
        return [name for name in self.form.files if (self.home / name).is_file()]

    def call(self, task: Task, desk: Desk) -> Reply:
        """Run it once on the task. Raises AgentError; nothing of it is left running."""
        if desk.sandbox is None:
            raise AgentError(f"{self.name} only runs in a sandbox, and there is none here")
        with tempfile.TemporaryDirectory(prefix="vibeserve-agent-") as home:
            self._furnish(Path(home))
            line = [*self._argv(task), *self._tools(Path(home), task.work)]
            argv = desk.sandbox.wrap(line, self._box(task, Path(home)))
            # The program's standard input is the prompt; the shell that opens it is outside of the sandbox.
            prompt = "/dev/null" if "{prompt}" in self.form.argv else str((task.folder / "prompt.md").resolve())
            whole = ("/bin/sh", "-c", 'exec "$@" < "$0"', prompt, *argv)
            command = Command(
                whole,
                cwd=task.work,
                stdout=task.folder / "output.jsonl",
                stderr=task.folder / "stderr.txt",
                env=self._environment(Path(home)),
                memory_bytes=MEMORY_BYTES,
                log_bytes=LOG_BYTES,
                group=desk.group,
            )
            process = desk.runner.start(command)
            try:
                code = desk.wait(process, task.timeout_s)
            finally:
                process.end(2.0)
        return self._answer(task, code, process.reason)

    def _answer(self, task: Task, code: int | None, reason: str) -> Reply:
        """The reply, with what the end of the program says about it."""
        problem = ""
        if code is None:
            problem = f"no answer within {task.timeout_s:.0f} s"
        elif reason in ("memory", "log"):
            problem = f"ended: it used more {'memory' if reason == 'memory' else 'output'} than it may"
        elif code != 0:
            last = tail(task.folder / "stderr.txt") or tail(task.folder / "output.jsonl") or "it printed nothing"
            problem = f"exit code {code}: {last}"
        try:
            reply = READERS[self.form.name](_events(task.folder / "output.jsonl"))
        except AgentError as error:
            if not problem:
                raise AgentError(f"{self.name}: {error.message}", state=error.state, usage=error.usage) from None
            state = "timed out" if code is None else "failed"
            said = f" ({error.message})" if error.state == "failed" else ""
            raise AgentError(
                f"{self.name}: {problem}{said}", state=state, usage=error.usage, hint=self.form.login
            ) from None
        if problem:
            state = "timed out" if code is None else "failed"
            raise AgentError(f"{self.name}: {problem}", state=state, usage=reply.usage)
        return reply

    def _argv(self, task: Task) -> list[str]:
        schema = json.dumps(task.schema())
        values = {"{schema}": schema, "{prompt}": task.prompt, "{model}": self.model}
        if "{prompt}" in self.form.argv and len(task.prompt.encode()) > ARGUMENT_BYTES:
            raise AgentError(f"the prompt is longer than {self.form.argv[0]} takes on its command line")
        if "{schema_file}" in self.form.argv:
            path = task.folder / "schema.json"
            path.write_text(schema, encoding="utf-8")
            values["{schema_file}"] = str(path.resolve())
        line = [*self.form.argv, *(self.form.model if self.model else ())]
        return [values.get(part, part) for part in line]

    def _box(self, task: Task, home: Path) -> Box:
        program = Path(shutil.which(self.form.argv[0]) or self.form.argv[0])
        places = [*places_of(program), *task.readable]
        if "{schema_file}" in self.form.argv:
            places.append((task.folder / "schema.json").resolve())
        if own_tools.there():
            places += own_tools.readable()
        places = list(dict.fromkeys(places))
        return Box(task.work, task.writes, home, tuple(places), network=True, hidden=own_tools.hidden())

    def _environment(self, home: Path) -> dict[str, str]:
        names = (*self.form.variables, *self.form.also)
        kept = {name: os.environ[name] for name in names if os.environ.get(name)}
        return clean_environment({**kept, **self.form.set, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")})

    def _furnish(self, home: Path) -> None:
        logins = self._logins()
        for name in logins:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.home / name, home / name)
        for name, text in self.form.with_files.items() if logins else ():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text, encoding="utf-8")

    def _tools(self, home: Path, work: Path) -> list[str]:
        """Lay out what tells it of our own tools; returns the words for its command line."""
        form = self.form
        if not own_tools.there():
            return []
        place = home / form.mcp_file
        if form.mcp_file:
            place.parent.mkdir(parents=True, exist_ok=True)
            known = place.read_text(encoding="utf-8") if place.is_file() else ""
            place.write_text(own_tools.merged(known, own_tools.filled(form.mcp_text, work)), encoding="utf-8")
        return [own_tools.filled(word, work).replace("{mcp_file}", str(place)) for word in form.mcp_argv]


def _events(path: Path) -> Iterator[Mapping[str, Any]]:
    """The JSON objects among the lines; a line that is none (a banner, half an object) is passed over."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value


def tail(path: Path) -> str:
    """The last line of a file; empty where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as handle:
        handle.seek(max(0, path.stat().st_size - 2000))
        lines = handle.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
