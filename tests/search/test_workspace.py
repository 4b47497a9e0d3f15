"""Git as the run uses it: exactly a commit's tree, whatever lay around, whatever the user's settings."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from vibeserve.base.errors import VibeServeError
from vibeserve.search.workspace import Workspace

WHEN = datetime(2026, 1, 1, 12, tzinfo=UTC)


def tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


def two(workspace: Workspace) -> tuple[str, str]:
    folder = workspace.checkout(None)
    (folder / "a.txt").write_bytes(b"one\r\n")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "kept.log").write_text("ignored names are candidates' files too")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    first = workspace.commit("c0", "first", WHEN, parent=None)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "b.txt").write_text("two")
    (folder / "a.txt").unlink()
    second = workspace.commit("c1", "second", WHEN, parent=first.commit)
    return first.commit, second.commit


def test_returning_gives_exactly_that_tree(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    first, second = two(workspace)
    later = tree(workspace.path)
    (workspace.path / "stray.txt").write_text("added later")
    (workspace.path / "x.log").write_text("ignored and added later")
    workspace.checkout(first)
    assert set(tree(workspace.path)) == {"a.txt", ".gitignore", "kept.log", "run.sh"}
    assert tree(workspace.path)["a.txt"] == (b"one\r\n", False)
    assert tree(workspace.path)["run.sh"][1] is True
    workspace.checkout(second)
    assert tree(workspace.path) == later
    workspace.checkout(None)
    assert tree(workspace.path) == {}


def test_an_export_is_the_tree_without_history(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    first, second = two(workspace)
    target = tmp_path / "out" / "c"
    workspace.export(first, target)
    (target / "stray").write_text("left by a run")
    workspace.export(second, target)
    workspace.checkout(second)
    assert tree(target) == tree(workspace.path)
    assert not (target / ".git").exists()


def test_the_same_change_is_the_same_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = two(Workspace(tmp_path / "one"))
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[core]\nautocrlf = true\nhooksPath = /nowhere\n[user]\nname = Somebody\n[commit]\ngpgSign = true\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("TZ", "America/New_York")
    assert two(Workspace(tmp_path / "two")) == plain


def test_a_git_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    first, _ = two(workspace)
    (workspace.path / ".git" / "index.lock").touch()
    (workspace.path / ".git" / "refs" / "heads" / "c9.lock").touch()
    assert set(tree(Workspace(tmp_path / "w").checkout(first))) >= {"a.txt"}


def test_diffs(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    first, second = two(workspace)
    assert "+two" in workspace.diff(first, second)
    assert "+one" in workspace.diff(None, first)
    assert workspace.files(second) == [".gitignore", "deep/er/b.txt", "kept.log", "run.sh"]


def test_an_unknown_commit_is_told(tmp_path: Path) -> None:
    with pytest.raises(VibeServeError, match="git checkout"):
        Workspace(tmp_path / "w").checkout("0" * 40)
