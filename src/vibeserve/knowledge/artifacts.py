"""What a compile left behind: the work directory's files, and what its log says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.knowledge import catalogue
from vibeserve.knowledge.explain import explain

# A line of the log: a time, the level, the process in the newer ones, the part of the compiler, the message.
_LINE = re.compile(
    r"(?:\S+Z|\d\d/\d\d/\d{4} \d\d:\d\d:\d\d [AP]M|\S+ [\d:.]+: +\d+ ) *(?P<level>[A-Z]+)(?: +\d+)? +\[(?P<part>[^\]]+)\]: ?(?P<text>.*)"
)
_LEVELS = {"ERROR": "ERROR", "CRITICAL": "ERROR", "FATAL": "ERROR", "WARNING": "WARNING", "WARN": "WARNING"}
_LEVEL = re.compile(r"\b(ERROR|CRITICAL|FATAL|WARNING|WARN)\b")
_RULE_OF_STARS = re.compile(r"\**\s*")
_PASSES = (
    re.compile(r"(?P<name>[A-Za-z][\w.:-]*) finished after (?P<time>[\d.]+) (?P<unit>seconds)"),
    re.compile(r"Exit time region: delta=(?P<time>[\d.]+)(?P<unit>s)"),
    re.compile(r"\((?P<name>[A-Za-z]\w*)\) Time: (?P<time>[\d.]+) (?P<unit>seconds)"),
    re.compile(
        r"[Ff]inished (?:pass )?(?P<name>[A-Za-z][\w.:-]{2,60}) in (?P<time>[\d.]+) ?(?P<unit>s|sec|seconds|ms)\b"
    ),
)
_MEMORY = (
    re.compile(
        r"(?P<what>[A-Za-z][\w /-]*?)\s*[:=]\s*(?P<value>[0-9][0-9.,]*)\s*(?P<unit>bytes(?:/partition)?|[KMG] ?i?B?(?:ytes)?)\b",
        re.I,
    ),
    re.compile(
        r"(?P<what>[A-Za-z][\w ]*?)\s+(?P<value>[0-9][0-9.,]*)\s*(?P<unit>bytes(?:/partition)?|[KMG]i?B)\b", re.I
    ),
    re.compile(r"(?P<what>[A-Za-z][\w ]*\bbytes\b[\w ]*?)\s*[:=]?\s*(?P<value>[0-9][0-9,]*)$", re.I),
)
_OF_MEMORY = re.compile(r"\b(sbuf|psum|hbm|dram|memory|spill\w*|reload\w*|weights?|dma|savings?)\b", re.I)
_LARGEST_LOG = 50_000_000


@dataclass(frozen=True, slots=True)
class File:
    """One file of the directory."""

    path: str
    what: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Artifacts:
    """A work directory as read."""

    directory: Path
    files: tuple[File, ...]
    errors: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]
    passes: tuple[dict[str, Any], ...]
    memory: tuple[dict[str, Any], ...]
    neffs: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The JSON of `nki artifacts`."""
        return {
            "dir": str(self.directory),
            "files": [{"path": item.path, "what": item.what, "bytes": item.bytes} for item in self.files],
            "errors": list(self.errors),
            "warnings": list(self.warnings),
            "passes": list(self.passes),
            "memory": list(self.memory),
            "neffs": list(self.neffs),
        }


def latest_workdir(roots: tuple[Path, ...] = (Path("/tmp"),)) -> Path:
    """The newest `neuroncc_compile_workdir/<uuid>` below the roots. Raises InputError where there is none."""
    found = [
        path
        for root in roots
        for pattern in ("neuroncc_compile_workdir/*", "*/neuroncc_compile_workdir/*")
        for path in root.glob(pattern)
        if path.is_dir()
    ]
    if not found:
        raise InputError(
            "no compiler work directory below /tmp",
            hint="run the kernel first, or give the directory; it is printed at the end of a compile",
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def read_artifacts(directory: Path) -> Artifacts:
    """Read a work directory. Raises InputError where it is none."""
    if not directory.is_dir():
        raise InputError(f"no such directory: {directory}", hint="give a compiler work directory, or 'latest'")
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    files = tuple(File(str(path.relative_to(directory)), _what(path.name), path.stat().st_size) for path in paths)
    logs = [path for path in paths if path.name == "log-neuron-cc.txt"] or [
        path for path in paths if path.suffix in (".log", ".txt")
    ]
    text = ""
    for path in logs:
        with path.open(encoding="utf-8", errors="replace") as file:
            text += file.read(_LARGEST_LOG) + "\n"
    return Artifacts(
        directory=directory,
        files=files,
        errors=tuple(_errors(text)),
        warnings=tuple(dict.fromkeys(line.strip()[:300] for line in text.splitlines() if _level(line) == "WARNING")),
        passes=tuple(_passes(text)),
        memory=tuple(_memory(text)),
        neffs=tuple(str(path) for path in paths if path.suffix == ".neff"),
    )


@cache
def _facts() -> dict[str, Any]:
    return dict(catalogue.load("artifacts.yaml"))


def artifact_help() -> dict[str, list[dict[str, str]]]:
    """How to keep what the compiler makes, and where it lands: {"keep": [{"set", "keeps"}], "places": [{"path", "holds"}]}."""
    return {key: [dict(item) for item in _facts()[key]] for key in ("keep", "places")}


def _what(name: str) -> str:
    return next((what for pattern, what in _facts()["files"] if re.fullmatch(pattern, name)), "unknown")


def _level(line: str) -> str | None:
    """'ERROR' or 'WARNING' of a line at such a level (a line without the log's head: by the word itself)."""
    match = _LINE.match(line)
    if match is not None:
        return None if _RULE_OF_STARS.fullmatch(match["text"]) else _LEVELS.get(match["level"])
    word = _LEVEL.search(line[:200])
    return _LEVELS[word.group(1)] if word is not None else None


def _errors(text: str) -> list[dict[str, Any]]:
    """Lines at error level, and lines with a known code, each with what the code means."""
    explained = {item.at_line: item for item in explain(text)}
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        match = explained.get(number)
        if _level(line) == "ERROR" or match is not None:
            out.append(
                {
                    "text": line.strip()[:400],
                    "line": number,
                    "code": match.code if match else None,
                    "title": match.title if match else None,
                    "fix": list(match.fix) if match else [],
                }
            )
    return out


def _passes(text: str) -> list[dict[str, Any]]:
    """Time of each pass over all its turns, longest first. A pass of the outermost level holds the time of those in it."""
    seconds: dict[str, list[float]] = {}
    for line in text.splitlines():
        head = _LINE.match(line)
        match = next((found for pattern in _PASSES if (found := pattern.search(line))), None)
        if match is None:
            continue
        part = head["part"].rpartition("/")[2] if head is not None else ""
        name = match.groupdict().get("name") or part
        if name:
            seconds.setdefault(name, []).append(float(match["time"]) / (1000 if match["unit"] == "ms" else 1))
    rows = [{"name": name, "seconds": sum(times), "turns": len(times)} for name, times in seconds.items()]
    return sorted(rows, key=lambda item: -float(str(item["seconds"])))


def _memory(text: str) -> list[dict[str, Any]]:
    """Memory figures of lines that speak of memory: {"what", "value" (as written), "unit"}."""
    out: list[dict[str, Any]] = []
    for line in text.splitlines():
        head = _LINE.match(line)
        said = head["text"] if head is not None else line
        if not _OF_MEMORY.search(said):
            continue
        for pattern in _MEMORY:
            matches = list(pattern.finditer(said.strip()))
            for match in matches:
                unit = match.groupdict().get("unit") or "bytes"
                out.append({"what": match["what"].strip(), "value": match["value"], "unit": unit})
            if matches:
                break
    return out
