"""Kill -9 of the command's process, of servers, of clients and of their guards at random moments: `resume` completes, no
row is lost or doubled, nothing is left running, no port is held."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.test_optimize import DRIVER, bundle

from vibeserve.base.processes import GROUP_MARK
from vibeserve.search import RunView
from vibeserve.search.context import group_of

__all__ = ["bundle"]  # the fixture
SPEEDS = (0.002, 0.02, 0.004)
TARGETS = ("command", "server", "client", "guard")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


def start(bundle: Path, runs: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", DRIVER, str(bundle), str(runs), json.dumps(SPEEDS)]
    with (runs.parent / f"{runs.name}.err").open("a") as errors:
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True)


def of_the_runs(runs: Path) -> list[psutil.Process]:
    """What carries the mark of one of the runs, and lives."""
    marks = {group_of(path) for path in runs.iterdir()} if runs.is_dir() else set()
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(GROUP_MARK) in marks and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def kind_of(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    if any(word.endswith(("checker.py", "benchmark.py")) for word in words):
        return "client"
    return "server" if "--model-dir" in words else "guard" if any(word.endswith("guard.py") for word in words) else ""


def strike(target: str, command: subprocess.Popen[str], runs: Path, chance: random.Random) -> bool:
    """SIGKILL for one process of this kind; False where there is none now."""
    if target == "command":
        command.kill()
        command.communicate()
        return True
    found = [process for process in of_the_runs(runs) if kind_of(process) == target]
    if not found:
        return False
    try:
        os.kill(chance.choice(found).pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def nothing_is_left(runs: Path) -> None:
    """No process of the runs a few seconds later, and nobody listens where their servers did."""
    deadline = time.monotonic() + 10
    while (found := of_the_runs(runs)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [kind_of(process) for process in found] == []
    for log in runs.glob("*/logs/*/server*.log"):
        for port in re.findall(r"--port (\d+)", log.read_text(errors="replace")):
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", int(port))) != 0, f"port {port} is held"


def one_run(bundle: Path, runs: Path, kills: Counter[str], limit: int, chance: random.Random) -> dict[str, Any]:
    """A run to its end, with kills on its way as long as fewer than `limit` have been made in all."""
    while True:
        command = start(bundle, runs)
        while kills.total() < limit:
            try:
                command.wait(chance.uniform(0.5, 5.0))
                break
            except subprocess.TimeoutExpired:
                target = chance.choice(TARGETS)
                if strike(target, command, runs, chance):
                    kills[target] += 1
                    if target == "command":
                        break
        out, _ = command.communicate(timeout=300)
        nothing_is_left(runs)
        if command.returncode == 0:
            return json.loads(out)
        # Killed, or a reference that was killed twice in a row: told with code 1. `resume` is all that either needs.
        assert command.returncode in (-signal.SIGKILL, 1), (runs.parent / f"{runs.name}.err").read_text()[-3000:]


def whole(runs: Path, document: dict[str, Any]) -> None:
    """No row is lost or doubled: every step is there once, every measured pair has both sides, every round its verdict."""
    assert document["state"] == "finished"
    with RunView(runs / document["run"]) as view:
        keys = [step["key"] for step in view.steps()]
        assert len(keys) == len(set(keys))
        decided = Counter((row.round, row.kind) for row in view.decisions())
        assert set(decided.values()) == {1}
        assert {row.round for row in view.candidates()} == {number for number, kind in decided if kind == "round"}
        paired = Counter(
            (row.round, row.kind, row.pair) for row in view.measurements() if row.kind in ("pair", "final")
        )
        assert set(paired.values()) <= {2}
        for row in view.decisions():
            if row.pairs:
                kind = "final" if row.kind == "final" else "pair"
                assert sum(name[:2] == (row.round, kind) for name in paired) == row.pairs
        gates = Counter((row.round, row.candidate, row.name) for row in view.gates())
        assert set(gates.values()) == {1}


def killed(bundle: Path, folder: Path, limit: int, seed: int) -> Counter[str]:
    """Runs until so many kills have been made; each one is looked at when it has ended."""
    kills: Counter[str] = Counter()
    chance, number = random.Random(seed), 0
    while kills.total() < limit:
        number += 1
        runs = folder / f"runs-{number}"
        document = one_run(bundle, runs, kills, limit, chance)
        whole(runs, document)
        print(f"run {number}: {[entry['verdict'] for entry in document['rounds']]} after {dict(kills)}", flush=True)
    return kills


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_kills_of_any_process(bundle: Path, tmp_path: Path) -> None:
    kills = killed(bundle, tmp_path, 100, seed=13)
    assert kills.total() == 100
    assert min(kills[target] for target in TARGETS) >= 5, kills
