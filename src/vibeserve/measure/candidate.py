"""What a candidate says about itself: `candidate.toml`, read strictly, and whether its requirements are there."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.files import read_toml

FILE = "candidate.toml"
PYTHONS = ("python", "python3")
READY_TIMEOUT_S = 600.0
_KINDS = ("start", "model", "kernel")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer on disk. One of three kinds: a server (`start`), an in-process model (`model`, as `module:Class`), a
    kernel (`kernel`, as `file.py:function`). `ready_timeout_s` bounds the time from start to the first healthy answer.
    """

    path: Path
    start: tuple[str, ...] = ()
    model: str = ""
    kernel: str = ""
    health: str = "/health"
    ready_timeout_s: float = READY_TIMEOUT_S

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def python(self) -> bool:
        """Whether it runs in our own interpreter."""
        return bool(self.model) or self.start[:1] in [(name,) for name in PYTHONS]

    def argv(self) -> tuple[str, ...]:
        """The command that starts it, our interpreter for `python`, without model directory, host and port."""
        if self.model:
            adapter = Path(__file__).parent / "in_process.py"
            return (sys.executable, "-P", str(adapter), "--model", self.model, "--health", self.health)
        if self.start[0] in PYTHONS:
            return (sys.executable, *self.start[1:])
        return self.start


def read_candidate(directory: Path) -> Candidate:
    """Read a candidate's directory. Raises InputError that names the file and the key."""
    directory = directory.resolve()
    path = directory / FILE
    try:
        document = read_toml(path)
    except (FileNotFoundError, NotADirectoryError):
        what = f"there is no {FILE} in {directory}" if directory.is_dir() else f"there is no directory {directory}"
        raise InputError(what, hint='write one: start = ["python", "server.py"]') from None
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}", hint="see docs/measure.md, 'A candidate'") from None
    known = {*_KINDS, "health", "ready_timeout_s"}
    if unknown := sorted(set(document) - known):
        raise InputError(f"{path}: unknown key {unknown[0]!r}", hint=f"known keys: {', '.join(sorted(known))}")
    kinds = [kind for kind in _KINDS if kind in document]
    if len(kinds) != 1:
        raise InputError(
            f"{path}: exactly one of {', '.join(_KINDS)} is needed, found {' and '.join(kinds) or 'none'}",
            hint='a server: start = ["python", "server.py"]; an in-process model: model = "main:VibeServeModel"',
        )
    return Candidate(directory, **{key: _value(path, key, value) for key, value in document.items()})


def _value(path: Path, key: str, value: Any) -> Any:
    """One value, checked. Raises InputError."""
    if key == "start":
        if isinstance(value, list) and value and all(isinstance(word, str) and word for word in value):
            return tuple(value)
        raise InputError(f"{path}: start must be a list of words", hint='start = ["python", "server.py"]')
    if key == "ready_timeout_s":
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
            return float(value)
        raise InputError(
            f"{path}: ready_timeout_s must be seconds above 0, not {value!r}", hint="ready_timeout_s = 120"
        )
    if not isinstance(value, str) or not value:
        raise InputError(f"{path}: {key} must be text, not {value!r}", hint="see docs/measure.md, 'A candidate'")
    if key == "health" and not value.startswith("/"):
        raise InputError(f"{path}: health must begin with '/', not {value!r}", hint='health = "/health"')
    if key in ("model", "kernel") and not all(value.partition(":")[::2]):
        raise InputError(f"{path}: {key} must name a file and what is in it", hint=f'{key} = "main:VibeServeModel"')
    return value


def missing_requirements(directory: Path) -> list[str]:
    """The lines of `requirements.txt` that our interpreter does not satisfy, each with what is there instead.

    Nothing is ever installed: what a run measures is the environment that it was started in. Lines for other platforms
    are passed over; options and links cannot be verified and are reported as such.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    path = directory / "requirements.txt"
    if not path.exists():
        return []
    missing = []
    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = raw.partition(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            missing.append(f"line {number} cannot be verified: {line}")
            continue
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.append(f"{line} (not installed)")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            missing.append(f"{line} (installed: {version})")
    return missing
