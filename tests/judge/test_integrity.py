"""Every change of what a candidate may not touch shows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from vibeserve.judge import Integrity
from vibeserve.targets import Bundle, Metric, ModelMeta


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    for name, script in (
        ("reference", "reference.py"),
        ("accuracy_checker", "checker.py"),
        ("benchmark", "benchmark.py"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / script).write_text(f"# {script}\n")
    (tmp_path / "bundle.toml").write_text("[metric]\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    return Bundle(
        path=tmp_path,
        slug="b",
        reference=tmp_path / "reference",
        checker=tmp_path / "accuracy_checker",
        benchmark=tmp_path / "benchmark",
        objective=None,
        metric=Metric("output_tokens_per_s", "tokens/s", "higher"),
        meta=ModelMeta("none"),
    )


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("accuracy_checker/checker.py", "accuracy_checker/checker.py"),
        ("benchmark/benchmark.py", "benchmark/benchmark.py"),
        ("reference/reference.py", "reference/reference.py"),
        ("bundle.toml", "bundle.toml"),
        ("model/model.safetensors", "model/model.safetensors"),
        ("accuracy_checker/sitecustomize.py", "accuracy_checker/sitecustomize.py"),
    ],
)
def test_a_change_shows(bundle: Bundle, tmp_path: Path, path: str, name: str) -> None:
    integrity = Integrity(bundle, tmp_path / "model")
    before = integrity.digests()
    assert changed(before, integrity.digests()) == set()
    (tmp_path / path).write_text("changed")
    assert changed(before, integrity.digests()) == {name}


def test_a_change_that_sets_the_time_back_shows(bundle: Bundle, tmp_path: Path) -> None:
    integrity = Integrity(bundle, tmp_path / "model")
    before = integrity.digests()
    weights = tmp_path / "model" / "model.safetensors"
    stat = weights.stat()
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert changed(before, integrity.digests()) == {"model/model.safetensors"}


def test_a_removed_file_shows_and_caches_do_not(bundle: Bundle, tmp_path: Path) -> None:
    integrity = Integrity(bundle, tmp_path / "model")
    before = integrity.digests()
    (tmp_path / "benchmark" / "__pycache__").mkdir()
    (tmp_path / "benchmark" / "__pycache__" / "benchmark.pyc").write_bytes(b"x")
    assert changed(before, integrity.digests()) == set()
    (tmp_path / "benchmark" / "benchmark.py").unlink()
    assert changed(before, integrity.digests()) == {"benchmark/benchmark.py"}


def test_weights_are_read_again_only_where_they_changed(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    integrity = Integrity(bundle, tmp_path / "model")
    before = integrity.digests()
    opened: list[Path] = []
    original = Path.open

    def watch(self: Path, *arguments: Any, **rest: Any) -> Any:
        opened.append(self)
        return original(self, *arguments, **rest)

    monkeypatch.setattr(Path, "open", watch)
    assert integrity.digests() == before
    assert tmp_path / "model" / "model.safetensors" not in opened


def test_the_environment_is_part_of_it(bundle: Bundle, tmp_path: Path) -> None:
    digests = Integrity(bundle, tmp_path / "model").digests()
    assert {"environment/packages", "environment/python"} <= digests.keys()
