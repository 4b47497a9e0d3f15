"""Whole runs with real processes: a small bundle whose servers are fake, everything around them real."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from vibeserve.hardware import detect
from vibeserve.search import RunView
from vibeserve.search.context import digest_of

MINI = Path(__file__).parents[1] / "measure" / "data" / "mini"
KEYS = {"run", "bundle", "device", "metric", "baseline", "best", "improvement", "limit", "rounds", "report"}
ROUND_KEYS = {
    "round", "candidate", "parent", "technique", "hypothesis", "verdict", "reason", "value", "evidence"
}  # fmt: skip

# A run with an agent of its own: `speeds` are seconds a token of the candidates that it proposes one after the other.
DRIVER = """
import dataclasses, json, sys
from pathlib import Path
from vibeserve.agents import Edit, Proposal, Stop
from vibeserve.measure import fake_server
from vibeserve.search import Outside, Request, begin, document, find, go_on
from vibeserve.search.plan import Plan
from vibeserve.search.world import SystemWorld
from vibeserve.base.errors import VibeServeError

class Speeds:
    name = "speeds"
    def __init__(self, speeds): self.speeds = speeds
    def propose(self, state):
        if state.round > len(self.speeds): return Stop("done", "all speeds were tried")
        speed = self.speeds[state.round - 1]
        return Proposal((f"speed-{speed}",), f"a token in {speed} s", state.incumbent, "it is faster", "more tokens", 2.0,
                        "the interval holds 1", settings={"tpot_s": speed})
    def edit(self, proposal, worktree):
        for path in worktree.iterdir():
            if path.name != ".git": path.unlink()
        (worktree / "server.py").write_bytes(Path(fake_server.__file__).read_bytes())
        speed = proposal.settings["tpot_s"]
        start = ["python", "server.py", "--ttft-s", "0.001", "--tpot-s", str(speed)]
        if speed == "wrong": start = ["python", "server.py", "--fault", "wrong-tokens"]
        if speed == "never": start = ["python", "server.py", "--fault", "early-exit"]
        (worktree / "candidate.toml").write_text(f"start = {json.dumps(start)}\\nready_timeout_s = 60\\n")
        return Edit(f"set {speed}")
    def floor(self, state): return []

class World(SystemWorld):
    def prepare(self, request, directory):
        return dataclasses.replace(super().prepare(request, directory), agent=Speeds(json.loads(sys.argv[3])))
    def _machine(self): return None

plan = Plan(None, 9, 5, 0.4, 0.4, 5, 0.4, (), 0.4)
outside = Outside(World(), tell=lambda at_s, kind, text: print(text, file=sys.stderr, flush=True))
runs = Path(sys.argv[2])
try:
    known = sorted(path.parent for path in runs.glob("*/run.db"))
    directory = known[-1] if known else begin(Request(bundle=sys.argv[1], rounds=9, seed=3), runs, outside, plan)
    print(json.dumps(go_on(directory, outside), default=str))
except VibeServeError as error:
    print(error.message, error.hint, file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The smallest bundle with a model directory that nobody reads."""
    folder = tmp_path / "mini"
    shutil.copytree(MINI, folder)
    reference = folder / "reference" / "reference.py"
    slow = 'sys.argv += ["--ttft-s", "0.01", "--tpot-s", "0.01"]\n    sys.exit(main())'
    reference.write_text(reference.read_text().replace("sys.exit(main())", slow))
    model = folder / "reference" / "model"
    model.mkdir()
    save_file({"w": np.zeros((2, 2), np.float32)}, model / "model.safetensors")
    (model / "config.json").write_text(json.dumps({"model_type": "none", "architectures": ["NoneForCausalLM"]}))
    (model / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    rates = {name: {"samples": [1e12], "with": "these tests"} for name in ("float32", "bandwidth")}
    detect(probe=lambda: {"bandwidth": rates["bandwidth"], "peaks": {"float32": rates["float32"]}})  # spares 15 s


@pytest.fixture
def drive(bundle: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the driver; whatever is left of it at the end is a failure of its own test."""
    started: list[subprocess.Popen[str]] = []

    def start(speeds: list[Any]) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", DRIVER, str(bundle), str(tmp_path / "runs"), json.dumps(speeds)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out)


def left_behind(runs: Path) -> list[str]:
    """Processes that carry a run's mark."""
    marks = [f"{path.name}-{digest_of(str(path.resolve()))}" for path in runs.iterdir()]
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            values = process.environ().values()
        except (psutil.Error, OSError):
            continue
        if any(mark in value for mark in marks for value in values):
            found.append(" ".join(process.info["cmdline"] or []))
    return found


@pytest.mark.slow
def test_a_better_server_is_found_proved_and_runs_alone(drive: Any, tmp_path: Path, cli: Any) -> None:
    document = finish(drive(["wrong", "never", 0.002, 0.05]))
    assert document.keys() >= KEYS
    assert all(entry.keys() >= ROUND_KEYS for entry in document["rounds"])
    verdicts = [entry["verdict"] for entry in document["rounds"]]
    assert verdicts == ["kept", "rejected-accuracy", "failed-start", "kept", "not-better"]
    assert document["best"]["candidate"] == "c3"
    assert document["improvement"]["ci95"][0] > 1
    assert document["improvement"]["pairs"] == 5
    assert left_behind(tmp_path / "runs") == []

    run = tmp_path / "runs" / document["run"]
    code, out, _ = cli("show", f"{run}:c3", "--json")
    assert code == 0
    assert json.loads(out)["commit"] == document["best"]["commit"]
    code, out, _ = cli("runs", "--runs-dir", tmp_path / "runs", "--json")
    assert json.loads(out)["runs"][0]["improvement"]["ratio"] == document["improvement"]["ratio"]
    code, out, _ = cli("report", run, "--json")
    assert Path(json.loads(out)["report"]).read_text().startswith("<!doctype html>")
    words = ("evaluate", tmp_path / "mini", "--candidate", f"{run}:c3", "--pairs", 5, "--window", 0.4, "--json")
    code, out, _ = cli(*words)
    replayed = json.loads(out)
    assert (code, replayed["verdict"]) == (0, "kept"), "a verdict can be replayed on fresh prompts"
    assert replayed["candidate"].endswith(":c3")
    code, out, _ = cli("export", run, tmp_path / "out", "--json")
    assert json.loads(out)["candidate"] == "c3"
    assert (tmp_path / "out" / "README.md").read_text().startswith("# A server for mini")
    assert not (tmp_path / "out" / ".git").exists()
    code, _, err = cli("export", run, tmp_path / "out")
    assert code == 2
    assert "is not empty" in err


def kill_and_resume(
    drive: Any, runs: Path, kills: int, seed: int, speeds: tuple[float, ...] = (0.002, 0.02)
) -> dict[str, Any]:
    """Kill the driver with -9 `kills` times at random moments, then let it finish."""
    chance = random.Random(seed)
    for _ in range(kills):
        process = drive(list(speeds))
        time.sleep(chance.uniform(0.8, 9.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        deadline = time.monotonic() + 60
        while (found := left_behind(runs) if runs.is_dir() else []) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found == []
    return finish(drive(list(speeds)))


def whole(runs: Path, document: dict[str, Any]) -> None:
    """No row is lost or doubled: every pair has both sides, every step is there once."""
    assert document["state"] == "finished"
    with RunView(runs / document["run"]) as view:
        keys = [step["key"] for step in view.steps()]
        assert len(keys) == len(set(keys))
        for kind in ("pair", "final"):
            for row in view.decisions():
                rows = [taken for taken in view.measurements() if taken.kind == kind and taken.round == row.round]
                assert len(rows) % 2 == 0
        final = [row for row in view.measurements() if row.kind == "final"]
        assert len(final) == (10 if document["best"]["candidate"] != "c0" else 0)


@pytest.mark.slow
def test_killed_once_and_resumed(drive: Any, tmp_path: Path) -> None:
    whole(tmp_path / "runs", kill_and_resume(drive, tmp_path / "runs", 1, 5, (0.002,)))


@pytest.mark.slow
def test_killed_a_few_times_and_resumed(drive: Any, tmp_path: Path) -> None:
    whole(tmp_path / "runs", kill_and_resume(drive, tmp_path / "runs", 4, 11))


def test_the_command_line_on_a_model_that_nothing_builds(bundle: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "VIBESERVE_RUNS_DIR": "runs"}  # from here, as without the variable
    toml = bundle / "bundle.toml"
    other = '\n[target]\nhardware = "h100"\n'  # made for another machine, and run here all the same
    toml.write_text(toml.read_text().replace("text -> text", "text -> image") + other)

    def run(*words: str) -> tuple[int, str, str]:
        argv = [sys.executable, "-m", "vibeserve.cli.main", *words]
        done = subprocess.run(
            argv, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
        )
        return done.returncode, done.stdout, done.stderr

    code, out, err = run("optimize", str(bundle), "--here", "--budget", "30s", "--json", "--require-improvement")
    assert code == 1, err
    assert json.loads(out)["best"]["candidate"] == "c0"
    assert "no improvement was proved" in err
    assert "no technique can build a server for unknown" in json.loads(out)["stopped"]["reason"]
    code, out, _ = run("show", "latest")
    assert code == 0
    assert "no candidate was better than the reference" in out
    assert left_behind(tmp_path / "runs") == []
    code, _, err = run("show", "no-such-run")
    assert (code, err.splitlines()[0][:6]) == (2, "error:")
    code, _, err = run("show", "latest:c9")
    assert code == 2
    assert "no candidate 'c9'" in err


def test_a_bundle_for_another_machine_is_refused_and_here_overrides(bundle: Path, tmp_path: Path, cli: Any) -> None:
    toml = bundle / "bundle.toml"
    toml.write_text(toml.read_text() + '\n[target]\nhardware = "h100"\n')
    code, _, err = cli("optimize", bundle, "--runs-dir", tmp_path / "runs")
    assert code == 3
    assert "the bundle is for" in err
    assert "--here" in err
    assert not (tmp_path / "runs").exists()


def test_a_refusal_leaves_no_directory_behind(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIBESERVE_RUNS_DIR", raising=False)
    words = [
        "--ref",
        "/nonexistent",
        "--acc-checker",
        "/nonexistent",
        "--bench",
        "/nonexistent",
        "--metric",
        "a:higher",
    ]
    for more in ([], ["--runs-dir", tmp_path / "deep" / "runs"]):
        assert cli(*words, *more)[0] == 2
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").mkdir()
    assert cli(*words)[0] == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]


def test_what_makes_no_sense_is_told(bundle: Path, tmp_path: Path, cli: Any) -> None:
    for words, said in (
        (["optimize"], "no bundle was named"),
        (["optimize", bundle, "--ref", bundle], "both a bundle and directories"),
        (["--ref", bundle / "reference"], "no bundle was named"),
        (["optimize", bundle, "--agent", "nobody"], "unknown agent 'nobody'"),
        (["optimize", bundle, "--rounds", "0"], "--rounds must be at least 1"),
        (["resume", "nothing"], "there is no run 'nothing'"),
    ):
        code, _, err = cli(*words)
        assert code == 2, (words, err)
        assert said in err


def test_the_seeds_three_directories(bundle: Path, tmp_path: Path) -> None:
    from vibeserve.search import Request
    from vibeserve.search.world import bundle_of

    for name in ("reference", "accuracy_checker", "benchmark"):
        shutil.copytree(bundle / name, tmp_path / "apart" / name / name)
    apart = {name: str(tmp_path / "apart" / name / name) for name in ("reference", "accuracy_checker", "benchmark")}
    request = Request(
        ref=apart["reference"],
        acc_checker=apart["accuracy_checker"],
        bench=apart["benchmark"],
        metric="p95_latency_s:lower",
    )
    read = bundle_of(request)
    assert read.path is None
    assert (read.metric.name, read.metric.direction) == ("p95_latency_s", "lower")
    assert Request.from_dict(json.loads(json.dumps(dataclasses.asdict(request)))) == request
