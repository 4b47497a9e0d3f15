"""Files are written through one small layer, so that tests can make any write fail or be the last one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
import tomllib
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
    """The real disk: writes are atomic (a temporary file beside it, fsync, rename), but for a device or a pipe, which is
    written as it stands."""

    def write_bytes(self, path: Path, data: bytes) -> None:
        if _is_device(path):
            with path.open("wb") as file:
                file.write(data)
            return
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException as error:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            if isinstance(error, OSError) and error.errno:  # the temporary name is nobody's business
                raise type(error)(error.errno, error.strerror, str(path)) from error
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


def _is_device(path: Path) -> bool:
    """Whether it is no place for another file's name: /dev/stdout, /dev/null, a named pipe, a shell's `>(…)`."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or str(path.absolute()).startswith(("/dev/", "/proc/"))


def write_text(files: Files, path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    files.write_bytes(path, text.encode())


def write_json(files: Files, path: Path, value: Any) -> None:
    """Write one JSON document atomically; non-finite numbers are refused (see `jsonio`)."""
    files.write_bytes(path, (dumps(value) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read one JSON document. Raises OSError, and ValueError for what is none."""
    return parse_json(path.read_text(encoding="utf-8"))


def read_toml(path: Path) -> dict[str, Any]:
    """Read one TOML document. Raises OSError, and ValueError for what is none."""
    return parse_toml(path.read_text(encoding="utf-8"))


def parse_json(text: str | bytes, **how: Any) -> Any:
    """`json.loads`, which has a RecursionError for what is nested too deeply: that is a ValueError here as well."""
    try:
        return json.loads(text, **how)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """`tomllib.loads`, in which nesting that is too deep is a ValueError as well."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


_TOO_DEEP = "it is nested too deeply"
