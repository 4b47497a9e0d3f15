"""Where things lie: packaged data, the user's caches, the runs."""

from __future__ import annotations

import os
from pathlib import Path

import vibeserve
from vibeserve.base.errors import MissingError

_PACKAGE = Path(vibeserve.__file__).parent


def expanded(path: Path | str) -> Path:
    """The path with a leading `~` or `~user` read as that home, and as it is where nobody is called so."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def packaged(kind: str) -> Path:
    """The directory of packaged `examples`, `skills` or `docs`: inside the wheel, or the checkout that this runs from."""
    inside = _PACKAGE / "_data" / kind
    return inside if inside.is_dir() else _PACKAGE.parents[1] / kind


def cache_dir() -> Path:
    """The user's cache (`VIBESERVE_CACHE_DIR`, else the platform's): models, calibrations, indexes."""
    if chosen := os.environ.get("VIBESERVE_CACHE_DIR"):
        return Path(chosen)
    from platformdirs import user_cache_path

    return _known(user_cache_path("vibeserve"), "CACHE_DIR")


def profile_data_path() -> Path:
    """Where profiles lie by default: `VIBESERVE_DATA_PATH`, else ~/.local/share/neuron-profile."""
    return _known(Path(os.environ.get("VIBESERVE_DATA_PATH") or expanded("~/.local/share/neuron-profile")), "DATA_PATH")


def _known(path: Path, variable: str) -> Path:
    if path.parts[:1] == ("~",):
        raise MissingError("this user has no home directory", hint=f"set HOME, or VIBESERVE_{variable}")
    return path


def runs_dir() -> Path:
    """Where runs lie by default: `VIBESERVE_RUNS_DIR`, else ./runs."""
    return Path(os.environ.get("VIBESERVE_RUNS_DIR") or "runs")
