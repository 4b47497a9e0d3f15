"""The tools of an agent that has none of its own: list, read, search, edit, and run, all within its directory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vibeserve.agents.desk import Box, Desk, Task
from vibeserve.base.processes import Command, clean_environment

#: What one tool answers at most, how long a command may run, and what it may use.
ANSWER_CHARACTERS = 20_000
COMMAND_S = 180.0
COMMAND_BYTES = 8 << 30
LINES = 400
FILE_BYTES = 4 << 20


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class List(_Arguments):
    """The files under a directory."""

    path: str = "."


class Read(_Arguments):
    """Lines of a file, from `start` (1 is the first)."""

    path: str
    start: Annotated[int, Field(ge=1)] = 1
    lines: Annotated[int, Field(ge=1, le=LINES)] = LINES


class Search(_Arguments):
    """Lines that hold a text, with file and line number."""

    text: Annotated[str, Field(min_length=1)]
    path: str = "."


class EditFile(_Arguments):
    """Put `new` in the place of `old`, which must be in the file exactly once; an empty `old` writes the whole file."""

    path: str
    old: str
    new: str


class RunCommand(_Arguments):
    """Run a shell command in the directory, in a sandbox without a network."""

    command: str


class ToolError(Exception):
    """What is told to the agent; it may go on."""


@dataclass(frozen=True)
class Tools:
    """The tools of one task."""

    task: Task
    desk: Desk

    def specifications(self) -> list[dict[str, Any]]:
        """The tools as an OpenAI-compatible endpoint takes them; a task that only reads has no edit."""
        names = [name for name in _TOOLS if self.task.writes or name != "edit"]
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": (_TOOLS[name][0].__doc__ or "").strip(),
                    "parameters": _TOOLS[name][0].model_json_schema(),
                },
            }
            for name in names
            if name != "run" or self.desk.sandbox is not None
        ]

    def use(self, name: str, arguments: str) -> str:
        """What the tool answers; a mistake of the agent is an answer too."""
        if name not in [tool["function"]["name"] for tool in self.specifications()]:
            return f"error: there is no tool {name!r}"
        model, work = _TOOLS[name]
        try:
            answer = work(self, model.model_validate_json(arguments or "{}"))
        except ValidationError as error:
            first = error.errors()[0]
            return f"error: {'/'.join(map(str, first['loc']))}: {first['msg']}"
        except (ToolError, OSError) as error:
            return f"error: {error}"
        if len(answer) > ANSWER_CHARACTERS:
            return f"{answer[:ANSWER_CHARACTERS]}\n… cut: {len(answer)} characters in all"
        return answer

    def _path(self, text: str, *, write: bool = False) -> Path:
        """The file meant, links followed. Raises ToolError where it lies outside of what the task may touch."""
        path = Path(os.path.realpath(self.task.work / text))
        allowed = (self.task.work,) if write else (self.task.work, *self.task.readable)
        if not any(path.is_relative_to(place.resolve()) for place in allowed):
            raise ToolError(f"{text} lies outside of {', '.join(str(place) for place in allowed)}")
        return path

    def listing(self, asked: List) -> str:
        """Names, one a line."""
        return "\n".join(str(path) for path in self._files(asked.path)) or "nothing is there"

    def _files(self, text: str) -> list[Path]:
        top = self._path(text)
        if top.is_file():
            return [top]
        found = [path for path in sorted(top.rglob("*")) if path.is_file() and ".git" not in path.parts]
        return [path.relative_to(self.task.work) if path.is_relative_to(self.task.work) else path for path in found]

    def read(self, asked: Read) -> str:
        """The lines with their numbers."""
        lines = _text(self._path(asked.path)).splitlines()
        first = asked.start - 1
        chosen = lines[first : first + asked.lines]
        shown = "\n".join(f"{first + number}\t{line}" for number, line in enumerate(chosen, 1))
        return f"{shown}\n({len(lines)} lines in all)"

    def search(self, asked: Search) -> str:
        """`file:line: text`, at most 100 of them."""
        found: list[str] = []
        for name in self._files(asked.path):
            try:
                lines = _text(self._path(str(name))).splitlines()
            except (ToolError, OSError):
                continue
            found += [f"{name}:{number}: {line[:300]}" for number, line in enumerate(lines, 1) if asked.text in line]
        return "\n".join(found[:100]) or "not found"

    def edit(self, asked: EditFile) -> str:
        """Says what was done."""
        path = self._path(asked.path, write=True)
        if not asked.old:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(asked.new, encoding="utf-8")
            return f"wrote {asked.path}"
        text = _text(path)
        if (count := text.count(asked.old)) != 1:
            raise ToolError(f"`old` is {count} times in {asked.path}; it must be there once")
        path.write_text(text.replace(asked.old, asked.new), encoding="utf-8")
        return f"changed {asked.path}"

    def run(self, asked: RunCommand) -> str:
        """Exit code and output."""
        sandbox = self.desk.sandbox
        assert sandbox is not None
        with tempfile.TemporaryDirectory(prefix="vibeserve-tool-") as home:
            output = Path(home, "output.txt")
            inner = Path(home, "home")
            inner.mkdir()
            box = Box(self.task.work, self.task.writes, inner, self.task.readable)
            command = Command(
                sandbox.wrap(["/bin/sh", "-c", asked.command], box),
                cwd=self.task.work,
                stdout=output,
                env=clean_environment(),
                memory_bytes=COMMAND_BYTES,
                log_bytes=16 << 20,
                group=self.desk.group,
            )
            process = self.desk.runner.start(command)
            try:
                code = self.desk.wait(process, min(COMMAND_S, self.task.timeout_s))
            finally:
                process.end(1.0)
            text = output.read_bytes()[-ANSWER_CHARACTERS:].decode(errors="replace") if output.is_file() else ""
        ended = f"not ended within {COMMAND_S:.0f} s" if code is None else f"exit code {code}"
        return f"{ended}\n{text}"


def _text(path: Path) -> str:
    if path.stat().st_size > FILE_BYTES:
        raise ToolError(f"{path.name} has {path.stat().st_size} bytes: too large to be read")
    return path.read_text(encoding="utf-8", errors="replace")


_TOOLS: dict[str, tuple[type[BaseModel], Callable[[Tools, Any], str]]] = {
    "list": (List, Tools.listing),
    "read": (Read, Tools.read),
    "search": (Search, Tools.search),
    "edit": (EditFile, Tools.edit),
    "run": (RunCommand, Tools.run),
}
