"""Every change of what a candidate may not touch shows."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import py_compile
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from vibeserve.judge import Integrity
from vibeserve.judge.integrity import environment, environment_roots, is_compiled_source
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
    assert is_compiled_source(target) is False
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


def test_what_is_looked_at(bundle: Bundle, tmp_path: Path) -> None:
    """The model goes by its own name, version control and locks by none; what cannot be read has its error for a digest."""
    reference = tmp_path / "reference"
    (reference / "model").symlink_to(tmp_path / "model")
    (reference / "draft_model").write_text("a file of that name")
    (reference / "parts" / "model").mkdir(parents=True)
    (reference / "parts" / "model" / "part.py").write_text("# looked at")
    (reference / "parts" / "draft_model").write_text("# looked at")
    for folder in (tmp_path / "benchmark", tmp_path / "benchmark" / "parts"):
        (folder / ".git").mkdir(parents=True)
        (folder / ".git" / "HEAD").write_text("ref")
        (folder / "one.lock").write_text("")
    (tmp_path / "benchmark" / "gone.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "benchmark" / "model").write_text("no model here")
    found = {
        n: digest for n, digest in Integrity(bundle, tmp_path / "model").digests().items() if "environment" not in n
    }
    assert sorted(found) == [
        "accuracy_checker/checker.py", "benchmark/benchmark.py", "benchmark/gone.py", "benchmark/model", "bundle.toml",
        "model/model.safetensors", "reference/parts/draft_model", "reference/parts/model/part.py",
        "reference/reference.py",
    ]  # fmt: skip
    assert found["benchmark/gone.py"] == "unreadable: No such file or directory"
    assert found["model/model.safetensors"] == hashlib.sha256(b"weights").hexdigest()


def test_a_large_file_is_read_to_its_end(bundle: Bundle, tmp_path: Path) -> None:
    data = os.urandom(5 << 20)
    (tmp_path / "model" / "model.safetensors").write_bytes(data)
    found = Integrity(bundle, tmp_path / "model").digests()
    assert found["model/model.safetensors"] == hashlib.sha256(data).hexdigest()


def test_a_bundle_without_a_description(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "bundle.toml").unlink()
    integrity = Integrity(bundle, tmp_path / "model")
    before = integrity.digests()
    assert "bundle.toml" not in before
    (tmp_path / "bundle.toml").write_text("[metric]")
    assert changed(before, integrity.digests()) == {"bundle.toml"}
    (tmp_path / "bundle.toml").unlink()
    (tmp_path / "bundle.toml").mkdir()
    assert "bundle.toml" not in integrity.digests()


def packages(folder: Path, label: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of packages that is all of the environment."""
    folder.mkdir()
    monkeypatch.setattr("vibeserve.judge.integrity.environment_roots", lambda: [(label, folder)])
    return folder


def names(found: dict[str, str], label: str) -> set[str]:
    return {name.removeprefix(f"environment/{label}/") for name in found if name.startswith(f"environment/{label}/")}


@pytest.mark.parametrize(("label", "left_out"), [("stdlib", True), ("packages", False)])
def test_of_the_standard_library_what_is_not_imported_is_left_out(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str, left_out: bool
) -> None:
    root = packages(tmp_path / "lib", label, monkeypatch)
    for name in ("site-packages", "dist-packages", "test", "json", "json/test"):
        (root / name).mkdir()
        (root / name / "one.py").write_text("")
    integrity = Integrity(bundle, tmp_path / "model")
    before = integrity.digests()
    apart = set() if left_out else {"site-packages", "dist-packages", "test"}
    assert names(before, label) == {"json", *apart}
    (root / "json" / "test" / "one.py").write_text("changed")
    assert changed(before, integrity.digests()) == {f"environment/{label}/json"}


def test_a_link_to_a_directory_is_a_link(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = packages(tmp_path / "lib", "packages", monkeypatch)
    (root / "round").symlink_to(root)
    (root / "lost").symlink_to(tmp_path / "nowhere")
    integrity = Integrity(bundle, tmp_path / "model")
    before = integrity.digests()
    assert names(before, "packages") == {"round", "lost"}
    (root / "new.py").write_text("")
    assert changed(before, integrity.digests()) == {"environment/packages/new.py"}
    (root / "round").unlink()
    (root / "round").symlink_to(tmp_path)
    assert changed(before, integrity.digests()) == {"environment/packages/new.py", "environment/packages/round"}


def test_roots_inside_of_roots_are_looked_at_once(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer, inner = tmp_path / "lib", tmp_path / "lib" / "inner"
    (inner / "deep").mkdir(parents=True)
    (inner / "deep" / "one.py").write_text("")
    (outer / "two.py").write_text("")
    monkeypatch.setattr("vibeserve.judge.integrity.environment_roots", lambda: [("a", outer), ("b", inner)])
    found = Integrity(bundle, tmp_path / "model").digests()
    assert (names(found, "a"), names(found, "b")) == ({"two.py"}, {"deep"})


def test_bytecode_in_an_installed_package(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = packages(tmp_path / "lib", "packages", monkeypatch)
    (root / "benchmark.py").write_text("import time\n")
    (root / "old.pyc").write_bytes(b"was there before")
    integrity = Integrity(bundle, tmp_path / "model")
    before = integrity.digests()
    assert names(before, "packages") == {"benchmark.py"}
    target = compiled(root, "import time\n")
    again = integrity.digests()
    assert changed(before, again) == set()
    assert integrity.digests() == again
    compiled(root, "import tame\n")
    name = f"environment/packages/__pycache__/{target.name}"
    found = integrity.digests()
    assert changed(before, found) == {name}
    assert found[name] == hashlib.sha256(target.read_bytes()).hexdigest()
    compiled(root, "import time\n")
    assert changed(before, integrity.digests()) == set()
    (root / "old.pyc").write_bytes(b"is another now")
    assert changed(before, integrity.digests()) == {"environment/packages/old.pyc"}


def test_bytecode_that_is_vouched_for_is_not_compiled_again(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    integrity = Integrity(bundle, tmp_path / "model")
    integrity.digests()
    compiled(tmp_path / "benchmark", (tmp_path / "benchmark" / "benchmark.py").read_text())
    asked: list[Path] = []
    monkeypatch.setattr("vibeserve.judge.integrity.is_compiled_source", lambda path: not asked.append(path))
    first, second = integrity.digests(), integrity.digests()
    assert first == second
    assert len(asked) == 1


def test_bytecode_without_a_source_or_elsewhere_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benchmark.py").write_text("a = 1\n")
    target = compiled(tmp_path, "a = 1\n")
    assert is_compiled_source(target)
    beside = tmp_path / "benchmark.pyc"
    beside.write_bytes(target.read_bytes())
    assert is_compiled_source(beside) is False  # Python takes the source, and the bytecode in its folder
    (tmp_path / "benchmark.py").rename(tmp_path / "another.py")
    assert is_compiled_source(target) is False
    (tmp_path / "another.py").rename(tmp_path / "benchmark.py")

    def never(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("python", 30)

    monkeypatch.setattr(subprocess, "run", never)
    assert is_compiled_source(target) is False


def test_the_roots_of_the_environment() -> None:
    found = environment_roots()
    assert len({path for _, path in found}) == len(found)
    assert dict(found)["packages"] == Path(sysconfig.get_paths()["purelib"]).resolve()
    assert dict(found)["stdlib"] == Path(sysconfig.get_paths()["stdlib"]).resolve()


def test_what_runs_by_itself_is_part_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sysconfig.get_paths()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {**before, "purelib": str(tmp_path)})
    (tmp_path / "zoo.pth").write_text("import zoo")
    (tmp_path / "sitecustomize.py").write_text("import zoo")
    (tmp_path / "other.py").write_text("import zoo")
    found = environment()
    digest = hashlib.sha256(b"import zoo").hexdigest()
    assert {name: value for name, value in found.items() if "zoo" in name or "custom" in name} == {
        "environment/zoo.pth": digest, "environment/sitecustomize.py": digest,
    }  # fmt: skip
    assert "environment/other.py" not in found
    stat = Path(sys.executable).resolve().stat()
    assert found["environment/python"] == f"{stat.st_size} {stat.st_mtime_ns}"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    assert environment()["environment/python"] == "unreadable: No such file or directory"
