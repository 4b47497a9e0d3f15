"""Every change of what a candidate may not touch shows."""

from __future__ import annotations

import importlib.util
import os
import py_compile
from pathlib import Path
from typing import Any

import pytest

from vibeserve.judge import Integrity
from vibeserve.judge.integrity import is_compiled_source
from vibeserve.targets import Bundle, Metric, ModelMeta


@pytest.fixture(autouse=True)
def _a_small_environment(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tens of thousands of files are looked at only where they are what a test is about."""
    if "environment" not in request.node.name:
        monkeypatch.setattr("vibeserve.judge.integrity.environment_roots", lambda: [("packages", tmp_path / "none")])
        (tmp_path / "none").mkdir()


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


def test_a_removed_file_shows(bundle: Bundle, tmp_path: Path) -> None:
    integrity = Integrity(bundle, tmp_path / "model")
    before = integrity.digests()
    (tmp_path / "benchmark" / "benchmark.py").unlink()
    assert changed(before, integrity.digests()) == {"benchmark/benchmark.py"}


def compiled(folder: Path, code: str) -> Path:
    """The bytecode of `code`, where Python looks for that of benchmark.py."""
    other = folder / "other.py"
    other.write_text(code)
    target = Path(importlib.util.cache_from_source(str(folder / "benchmark.py")))
    py_compile.compile(str(other), cfile=str(target), dfile=str(folder / "benchmark.py"), doraise=True)
    other.unlink()
    return target


def test_bytecode_of_the_source_does_not_show_and_other_bytecode_does(bundle: Bundle, tmp_path: Path) -> None:
    integrity = Integrity(bundle, tmp_path / "model")
    before = integrity.digests()
    target = compiled(tmp_path / "benchmark", (tmp_path / "benchmark" / "benchmark.py").read_text())
    assert is_compiled_source(target)
    assert changed(before, integrity.digests()) == set()
    compiled(tmp_path / "benchmark", "print('a figure of my own')")
    assert not is_compiled_source(target)
    assert changed(before, integrity.digests()) == {f"benchmark/__pycache__/{target.name}"}
    target.write_bytes(b"no bytecode at all")
    assert changed(before, integrity.digests()) == {f"benchmark/__pycache__/{target.name}"}


def test_a_change_in_an_installed_package_shows(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    (packages / "client").mkdir(parents=True)
    (packages / "client" / "__init__.py").write_text("import time\n")
    monkeypatch.setattr("vibeserve.judge.integrity.environment_roots", lambda: [("packages", packages)])
    integrity = Integrity(bundle, tmp_path / "model")
    before = integrity.digests()
    stat = (packages / "client" / "__init__.py").stat()
    (packages / "client" / "__init__.py").write_text("import tame\n")
    os.utime(packages / "client" / "__init__.py", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert changed(before, integrity.digests()) == {"environment/packages/client"}
    (packages / "time.py").write_text("def perf_counter(): return 0\n")
    assert changed(before, integrity.digests()) == {"environment/packages/client", "environment/packages/time.py"}


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
    integrity = Integrity(bundle, tmp_path / "model")
    digests = integrity.digests()
    assert {"environment/packages", "environment/python", "environment/packages/pytest"} <= digests.keys()
    assert "environment/stdlib/json" in digests
    assert changed(digests, integrity.digests()) == set()
