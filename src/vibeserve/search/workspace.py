"""The candidates' git repository: a commit a candidate, and exactly its tree when it is asked for again.

`git` itself is run as a program, with no configuration but ours, so that a run does not depend on the user's settings,
and with dates that are handed in, so that the same change gives the same commit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from vibeserve.base.errors import MissingError, VibeServeError

_AUTHOR = {"NAME": "vibeserve", "EMAIL": "vibeserve@localhost"}
_SETTINGS = (
    "core.autocrlf=false",
    "core.hooksPath=/dev/null",
    "core.fsync=all",
    "commit.gpgSign=false",
    "gc.auto=0",
    "init.defaultBranch=main",
    "advice.detachedHead=false",
)


@dataclass(frozen=True)
class Commit:
    """A candidate in git: the commit and its tree."""

    commit: str
    tree: str


class Workspace:
    """The repository at `path` (made where it is not there). One process at a time: the run's lock sees to that."""

    def __init__(self, path: Path):
        if shutil.which("git") is None:
            raise MissingError("git is not installed, and every candidate is a commit", hint="install git")
        self.path = path
        if not (path / ".git" / "HEAD").is_file():
            path.mkdir(parents=True, exist_ok=True)
            self._git("init", "--quiet")
        for stale in (path / ".git").rglob("*.lock"):
            stale.unlink(missing_ok=True)  # a git that was killed left it: the run's lock says that none is running

    def checkout(self, commit: str | None) -> Path:
        """Make the worktree exactly `commit`'s tree (None: empty), files added since then gone; returns its path."""
        if commit is None:
            self._git("read-tree", "--empty")
            self._git("symbolic-ref", "HEAD", "refs/heads/nothing")
        else:
            self._git("checkout", "--quiet", "--force", "--detach", commit)
        self._git("clean", "--quiet", "-ffdx")
        return self.path

    def commit(self, name: str, message: str, when: datetime, *, parent: str | None) -> Commit:
        """Commit all files of the worktree as `name` (a branch), with the date given."""
        self._git("add", "--all", "--force", ".")
        tree = self._git("write-tree")
        parents = ("-p", parent) if parent else ()
        date = f"{int(when.timestamp())} +0000"
        commit = self._git(
            "commit-tree", tree, *parents, "-m", message, env={"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        )
        self._git("update-ref", f"refs/heads/{name}", commit)
        self._git("checkout", "--quiet", "--force", "--detach", commit)
        return Commit(commit, tree)

    def export(self, commit: str, destination: Path) -> Path:
        """Write exactly `commit`'s tree to `destination` (replaced where it is there), without any history."""
        partial = destination.with_name(f".{destination.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        index = {"GIT_INDEX_FILE": str(self.path / ".git" / "export.index")}
        self._git("read-tree", commit, env=index)
        self._git("checkout-index", "--all", "--force", f"--prefix={partial.resolve()}/", env=index)
        shutil.rmtree(destination, ignore_errors=True)
        partial.rename(destination)
        return destination

    def diff(self, before: str | None, after: str) -> str:
        """The change from one commit to another as a unified diff, renames followed (None: from the empty tree)."""
        base = before or self._git("hash-object", "-t", "tree", "-w", "/dev/null")
        return self._git("diff", "--no-color", "--no-ext-diff", "--find-renames", base, after)

    def files(self, commit: str) -> list[str]:
        """The names of a commit's files."""
        return self._git("ls-tree", "-r", "--name-only", commit).splitlines()

    def _git(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        done = subprocess.run(
            ["git", *settings, *arguments],
            cwd=self.path,
            env=_environment() | (env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            what = " ".join(arguments[:2])
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise VibeServeError(f"git {what} failed in {self.path}: {last}", hint="is the disk full or read-only?")
        return done.stdout.strip() if arguments[0] != "diff" else done.stdout


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    people = {f"GIT_{who}_{key}": value for who in ("AUTHOR", "COMMITTER") for key, value in _AUTHOR.items()}
    return kept | people | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C", "TZ": "UTC"}
