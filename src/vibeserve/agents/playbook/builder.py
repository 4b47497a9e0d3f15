"""Writes a candidate: the engine's parts that it uses, its settings, and a few lines that start it."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

from vibeserve.agents.agent import Edit, Proposal
from vibeserve.base.errors import InputError
from vibeserve.base.files import DiskFiles, Files, write_text

_SERVER = '''"""Starts this server: python server.py --model-dir DIR --host H --port P"""

from engine.serve import main

main()
'''


@dataclass(frozen=True)
class Part:
    """A part of the engine: its files, the parts it needs, and the packages that it imports."""

    name: str
    files: tuple[str, ...]
    needs: tuple[str, ...]
    requires: tuple[str, ...]
    what: str


@functools.cache
def parts() -> dict[str, Part]:
    """The engine's parts by name, from its parts.toml."""
    document = tomllib.loads(files("vibeserve.engine").joinpath("parts.toml").read_text(encoding="utf-8"))
    return {
        name: Part(
            name,
            tuple(table["files"]),
            tuple(table.get("needs", ())),
            tuple(table.get("requires", ())),
            table.get("what", ""),
        )
        for name, table in document.items()
    }


@functools.cache
def _architectures() -> frozenset[str]:
    document = tomllib.loads(files("vibeserve.engine").joinpath("families.toml").read_text(encoding="utf-8"))
    return frozenset(family["architecture"] for family in document.values())


def engine_builds(architecture: str) -> bool:
    """Whether the engine has its own model code for this architecture (the first of config.json's `architectures`)."""
    return architecture in _architectures()


def closure(names: Iterable[str]) -> list[Part]:
    """These parts and all that they need, each once. Raises InputError for an unknown one."""
    known, found, waiting = parts(), {}, list(names)
    while waiting:
        name = waiting.pop(0)
        if name not in known:
            raise InputError(f"the engine has no part {name!r}", hint=f"it has {', '.join(known)}")
        if name not in found:
            found[name] = known[name]
            waiting += known[name].needs
    return [known[name] for name in known if name in found]


def build(worktree: Path, proposal: Proposal, files_layer: Files | None = None) -> Edit:
    """Make `worktree` the candidate of this proposal. Parts that are there stay, so a parent's are added to.

    Raises InputError where a part is not to be had.
    """
    disk = files_layer or DiskFiles()
    before = set(_present(worktree))
    chosen = closure([*before, *proposal.parts])
    for path in sorted(worktree.iterdir()):
        if path.name != ".git":
            disk.remove(path)
    source = files("vibeserve.engine")
    for part in chosen:
        for name in part.files:
            data = source.joinpath(name).read_bytes()
            disk.write_bytes(worktree / "engine" / name, data)
    write_text(disk, worktree / "engine" / "PARTS", "".join(f"{part.name}\n" for part in chosen))
    write_text(disk, worktree / "server.py", _SERVER)
    write_text(disk, worktree / "engine.toml", engine_toml(proposal.settings))
    start = 'start = ["python", "server.py"]\nhealth = "/health"\nready_timeout_s = 300\n'
    write_text(disk, worktree / "candidate.toml", start)
    write_text(disk, worktree / "requirements.txt", requirements(chosen))
    added = [part.name for part in chosen if part.name not in before]
    shown = ", ".join(f"{name} = {value}" for name, value in proposal.settings.items())
    summary = (
        f"added the parts {', '.join(added)}; " if added else ""
    ) + f"settings {shown or 'as they are by default'}"
    return Edit(summary, tuple(name for part in chosen for name in part.files))


def _present(worktree: Path) -> list[str]:
    listed = worktree / "engine" / "PARTS"
    return listed.read_text(encoding="utf-8").split() if listed.is_file() else []


def engine_toml(settings: dict[str, Any]) -> str:
    """`[engine]`, one setting a line; a name with a dot is a setting of another table (`http.stream_interval`)."""
    import tomlkit

    tables: dict[str, dict[str, Any]] = {"engine": {}}
    for name, value in settings.items():
        table, _, own = name.rpartition(".")
        tables.setdefault(table or "engine", {})[own] = value
    document = tomlkit.document()
    for table, values in tables.items():
        document.add(table, tomlkit.item(values))
    return tomlkit.dumps(document)


def requirements(chosen: list[Part]) -> str:
    """The packages that the parts import, at the versions that are installed and measured here."""
    lines = []
    for name in sorted({name for part in chosen for name in part.requires}):
        try:
            # A local version label (2.13.0+cpu) names a build that package indexes do not list.
            lines.append(f"{name}=={metadata.version(name).partition('+')[0]}")
        except metadata.PackageNotFoundError as error:
            raise InputError(
                f"the candidate needs {name}, which is not installed", hint="pip install 'vibeserve[engine]'"
            ) from error
    return "".join(f"{line}\n" for line in lines)
