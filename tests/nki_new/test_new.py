"""`nki new`: what it writes runs and passes as made, with utilities pasted and imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vibeserve.base.errors import InputError
from vibeserve.nki.scaffold import KINDS, new


def test_every_kind_passes_its_own_tests(tmp_path):
    for kind in KINDS:
        new(f"my-{kind}", kind, tmp_path, utilities="paste")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{6 * len(KINDS)} passed" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_imported_utilities_run_too(kind, tmp_path, cli):
    folder = new("mine", kind, tmp_path, utilities="import")[0].parent
    assert "from nkilib.core.utils" in (folder / "kernel.py").read_text()
    code, out, err = cli("nki", "simulate", f"{folder / 'kernel.py'}:mine", "--json")
    assert code == 0, err
    assert json.loads(out)["outputs"]


@pytest.mark.parametrize("kind", ["softmax", "attention"])
def test_the_device_script_runs_and_agrees(kind, tmp_path, cli, monkeypatch):
    pytest.importorskip("torch")
    for name in ("NEURON_CC_FLAGS", "NEURON_PLATFORM_TARGET_OVERRIDE", "NEURON_RT_INSPECT_ENABLE"):
        monkeypatch.setenv(name, "")  # the script sets them for its process; this gives them back
    folder = new("mine", kind, tmp_path)[0].parent
    argv = [sys.executable, "-m", "vibeserve.cli.main", "nki", "run", str(folder / "device.py")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines() if " " in line)
    assert lines["allclose"] == "True"
    assert float(lines["cosine similarity"]) > 0.99999


@pytest.mark.parametrize("kind", KINDS)
def test_the_lint_finds_nothing_but_advice(kind, tmp_path, cli):
    folder = new("mine", kind, tmp_path)[0].parent
    _, out, _ = cli("nki", "lint", folder, "--json")
    assert {finding["severity"] for finding in json.loads(out)["findings"]} <= {"perf"}


def test_nothing_is_overwritten_and_nonsense_is_told(tmp_path, cli):
    assert cli("nki", "new", "mine", "--from", "scan", "--dest", tmp_path, "--json")[0] == 0
    for words, said in (
        (("mine", "--from", "scan"), "exists"),
        (("other", "--from", "magic"), "there is no kind 'magic'"),
        (("../x", "--from", "scan"), "no name for a kernel"),
        (("Big", "--from", "scan"), "no name for a kernel"),
    ):
        code, _, err = cli("nki", "new", *words, "--dest", tmp_path)
        assert code == 2
        assert said in err
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["mine"]
    for taken in ("class", "nki", "np"):
        with pytest.raises(InputError, match="is a word of Python"):
            new(taken, "scan", tmp_path)
    with pytest.raises(InputError):
        new("third", "scan", tmp_path, utilities="steal")
