"""What no candidate may change: the evaluator's files, the model's weights, the environment of the benchmark.

Digests are taken before anything runs and compared around every gate. A file is read again only where its size, times or
inode have changed since it was read last: a change that keeps all of those needs more rights than a candidate has.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from vibeserve.targets.types import Bundle

_LEFT_OUT = ("__pycache__", ".git")
_CHUNK = 1 << 22


class Integrity:
    """Digests by name for one bundle and model."""

    def __init__(self, bundle: Bundle, model_dir: Path):
        self._roots = {
            "accuracy_checker": bundle.checker,
            "benchmark": bundle.benchmark,
            "reference": bundle.reference,
            "model": model_dir,
        }
        self._bundle_file = bundle.path / "bundle.toml" if bundle.path else None
        self._known: dict[Path, tuple[tuple[int, ...], str]] = {}

    def digests(self) -> dict[str, str]:
        """Every part's digest now. A file that cannot be read has the error's name for a digest."""
        found = {}
        for name, root in self._roots.items():
            # reference/model is a link to the model, which is looked at by its own name.
            for path in _files(root, skip=("model", "draft_model") if name == "reference" else ()):
                found[f"{name}/{path.relative_to(root).as_posix()}"] = self._digest(path)
        if self._bundle_file is not None and self._bundle_file.is_file():
            found["bundle.toml"] = self._digest(self._bundle_file)
        return found | environment()

    def _digest(self, path: Path) -> str:
        try:
            stat = path.stat()
            state = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            known = self._known.get(path)
            if known is not None and known[0] == state:
                return known[1]
            digest = _sha256(path)
        except OSError as error:
            return f"unreadable: {error.strerror or error}"
        self._known[path] = (state, digest)
        return digest


def _files(root: Path, skip: tuple[str, ...]) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = sorted(
            name for name in names if name not in _LEFT_OUT and not (Path(folder) == root and name in skip)
        )
        for name in sorted(files):
            if not (Path(folder) == root and name in skip) and not name.endswith((".pyc", ".lock")):
                yield Path(folder) / name


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def environment() -> dict[str, str]:
    """The interpreter, the packages by version, and every file that Python runs by itself when it starts."""
    folder = Path(sysconfig.get_paths()["purelib"])
    names = sorted(f"{entry.name}=={entry.version}" for entry in metadata.distributions())
    found = {"environment/packages": hashlib.sha256("\n".join(names).encode()).hexdigest()}
    try:
        stat = Path(sys.executable).resolve().stat()
        found["environment/python"] = f"{stat.st_size} {stat.st_mtime_ns}"
    except OSError as error:
        found["environment/python"] = f"unreadable: {error.strerror or error}"
    for pattern in ("*.pth", "sitecustomize.py", "usercustomize.py"):
        for path in sorted(folder.glob(pattern)):
            found[f"environment/{path.name}"] = _sha256(path)
    return found
