"""The copies that agents edit: made without history, looked at before they are taken back."""

from __future__ import annotations

import difflib
import os
import shutil
import stat
from pathlib import Path

from vibeserve.base.errors import VibeServeError

#: A candidate holds code, not weights.
MAX_BYTES, MAX_FILES = 64 << 20, 5_000
#: What is no part of a candidate wherever it lies.
LEFT_OUT = (".git", "__pycache__", ".pytest_cache", ".claude", ".codex", ".gemini", ".opencode", "node_modules")
DIFF_CHARACTERS = 60_000


class TreeError(VibeServeError):
    """An agent left something in its directory that no candidate may have."""

    code = "bad-tree"


def copy(source: Path, destination: Path) -> Path:
    """`destination` becomes a copy of `source` (what is LEFT_OUT left out), whatever it was before."""
    shutil.rmtree(destination, ignore_errors=True)
    shutil.copytree(source, destination, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    return destination


def inspect(folder: Path) -> list[str]:
    """The names of its files, sorted. Raises TreeError for links, special files, and too much of either size or number."""
    names, total = [], 0
    for place, folders, found in os.walk(folder, followlinks=False):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in [*folders, *found]:
            path = Path(place, name)
            mode = path.lstat().st_mode
            shown = path.relative_to(folder)
            if stat.S_ISLNK(mode):
                raise TreeError(f"{shown} is a link: a candidate holds its own files")
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise TreeError(f"{shown} is neither a file nor a directory")
            if stat.S_ISREG(mode):
                names.append(str(shown))
                total += path.lstat().st_size
    if len(names) > MAX_FILES or total > MAX_BYTES:
        raise TreeError(f"{len(names)} files of {total} bytes: a candidate has at most {MAX_FILES} and {MAX_BYTES}")
    return sorted(names)


def take_back(work: Path, worktree: Path) -> tuple[str, ...]:
    """Make `worktree` (its .git aside) what `work` is; returns the names. Raises TreeError."""
    names = inspect(work)
    for path in worktree.iterdir():
        if path.name != ".git":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in names:
        (worktree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(work / name, worktree / name)
    return tuple(names)


def diff(before: Path, after: Path) -> str:
    """The change as a unified diff, cut where it is too long to be read."""
    old, new = set(inspect(before)), set(inspect(after))
    parts: list[str] = []
    for name in sorted(old | new):
        a, b = _lines(before / name), _lines(after / name)
        if a != b:
            parts += difflib.unified_diff(a, b, f"a/{name}", f"b/{name}", lineterm="")
    text = "\n".join(parts)
    return text if len(text) <= DIFF_CHARACTERS else f"{text[:DIFF_CHARACTERS]}\n… cut: {len(text)} characters in all"


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
