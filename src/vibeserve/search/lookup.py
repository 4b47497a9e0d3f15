"""Finding runs and candidates by what a user types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.paths import runs_dir
from vibeserve.search.document import document
from vibeserve.search.store import RunView


@dataclass(frozen=True)
class Found:
    """A run's directory, and the candidate that was named with it (None: the best one)."""

    directory: Path
    candidate: str | None


def find(text: str, folder: Path | None = None) -> Found:
    """RUN or RUN:CANDIDATE: a name under the runs' folder (`latest` is the newest), or a path. Raises InputError."""
    directory = _directory(text, folder)
    candidate = None
    if directory is None and ":" in text:
        name, _, candidate = text.rpartition(":")
        directory = _directory(name, folder)
    if directory is None:
        known = [path.name for path in _directories(folder or runs_dir())][-5:]
        hint = f"known runs: {', '.join(known)}" if known else "'vibeserve optimize BUNDLE' makes one"
        raise InputError(f"there is no run {text!r} in {folder or runs_dir()}", hint=hint)
    return Found(directory, candidate)


def _directory(name: str, folder: Path | None) -> Path | None:
    base = (folder or runs_dir()).absolute()  # servers, scripts and git work in directories of their own
    if name == "latest":
        known = _directories(base)
        return known[-1] if known else None
    for place in (base / name, Path(name).absolute()):
        if name and (place / "run.db").is_file():
            return place
    return None


def _directories(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/run.db"))


def list_runs(folder: Path | None = None) -> list[dict[str, Any]]:
    """Every run of a folder, oldest first; one that cannot be read says why and hides no other."""
    rows = []
    for directory in _directories(folder or runs_dir()):
        try:
            with RunView(directory) as view:
                whole = document(view)
        except (InputError, LookupError) as error:
            rows.append({"run": directory.name, "bundle": None, "state": "unreadable", "started": None, "best": None,
                         "improvement": None, "reason": str(error)})  # fmt: skip
            continue
        kept = ("run", "bundle", "state", "started", "best", "improvement", "metric")
        rows.append({name: whole[name] for name in kept})
    return rows


def candidate_of(view: RunView, name: str | None) -> str:
    """The candidate that is meant: the one named, else the best. Raises InputError for an unknown one."""
    known = [row.id for row in view.candidates()]
    chosen = name or document(view)["best"]["candidate"]
    if chosen not in known:
        raise InputError(
            f"run {view.directory.name} has no candidate {name!r}"
            if name
            else f"run {view.directory.name} has no candidate yet",
            hint=f"it has {', '.join(known)}" if known else "'vibeserve resume' goes on with it",
        )
    return chosen
