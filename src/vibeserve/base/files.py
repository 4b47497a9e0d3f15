"""Files are written through one small layer, so that tests can make any write fail or be the last one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

from vibeserve.base.jsonio import dumps


class Files(Protocol):
    """What changes the disk. Reading needs no layer."""

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Put `data` at `path`, whole or not at all; parents are made."""
        ...

    def append_text(self, path: Path, text: str) -> None:
        """Add `text` at the end of `path`, and have it on disk when this returns."""
        ...

    def make_dir(self, path: Path) -> None:
        """Make the directory and its parents."""
        ...

    def replace(self, source: Path, destination: Path) -> None:
        """Rename `source` to `destination`, in one step, replacing a file there."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file, a link or a whole directory; nothing there is no error."""
        ...


class DiskFiles:
    """The real disk: writes are atomic (a temporary file beside it, fsync, rename)."""

    def write_bytes(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise

    def append_text(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def make_dir(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def replace(self, source: Path, destination: Path) -> None:
        os.replace(source, destination)

    def remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_text(files: Files, path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    files.write_bytes(path, text.encode())


def write_json(files: Files, path: Path, value: Any) -> None:
    """Write one JSON document atomically; non-finite numbers are refused (see `jsonio`)."""
    files.write_bytes(path, (dumps(value) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read one JSON document."""
    return json.loads(path.read_text(encoding="utf-8"))
