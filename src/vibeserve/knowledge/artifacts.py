"""What a compile left behind: the work directory's files, and what its log says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.knowledge.explain import explain

# File name patterns (first that fits) and what such a file is.
KINDS_OF_FILE = (
    (r".*\.hlo_module\.pb$|.*\.hlo\.pb$", "the graph that was compiled (HLO)"),
    (r".*\.neff$", "the executable (NEFF)"),
    (r"log-neuron-cc\.txt$|.*\.log$", "the compiler's log: passes, warnings, memory, the reason behind a failure"),
    (r".*\.ntff$", "an execution trace"),
    (r".*\.klir$", "an NKI kernel's own IR, referred to by the graph"),
    (r"command\.txt$|.*\.cmd$", "the command line of the compile"),
    (r"kernel_debug_info\.json$", "instruction to kernel source line"),
    (r".*\.json$", "a description (JSON)"),
    (r".*\.(bin|npy)$", "data"),
    (r".*\.(txt|asm|ir)$", "text, or IR before or after a pass"),
)
_LEVEL = re.compile(r"\b(ERROR|CRITICAL|FATAL|WARNING|WARN)\b")
_PASS = re.compile(
    r"(?:Finished|finished|completed|Running|pass)\b\s*(?:pass\s+)?[\"']?([A-Za-z][\w:.-]{2,60})[\"']?.*?\b(?:in|took|elapsed(?: time)?:?|:)\s*([0-9.]+)\s*(s|sec|seconds|ms)\b"
)
_MEMORY = re.compile(r"([A-Za-z][\w ]{2,40}?)\s*[:=]\s*([0-9][0-9.,]*)\s*(bytes|[KMG]i?B)\b", re.I)
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


def _what(name: str) -> str:
    return next((what for pattern, what in KINDS_OF_FILE if re.fullmatch(pattern, name)), "unknown")


def _level(line: str) -> str | None:
    match = _LEVEL.search(line[:200])
    if match is None:
        return None
    return "WARNING" if match.group(1).startswith("WARN") else "ERROR"


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
    """Pass times, longest first."""
    found = [
        {"name": match.group(1), "seconds": float(match.group(2)) / (1000 if match.group(3) == "ms" else 1)}
        for line in text.splitlines()
        if (match := _PASS.search(line))
    ]
    return sorted(found, key=lambda item: -float(str(item["seconds"])))


def _memory(text: str) -> list[dict[str, Any]]:
    """Memory figures of lines that speak of memory."""
    out = []
    for line in text.splitlines():
        if re.search(r"\b(sbuf|psum|hbm|dram|memory|spill)", line, re.I):
            out += [
                {"what": match.group(1).strip(), "value": match.group(2), "unit": match.group(3)}
                for match in _MEMORY.finditer(line)
            ]
    return out
