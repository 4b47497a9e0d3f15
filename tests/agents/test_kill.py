"""A run with an agent is killed with -9 at random moments, and goes on each time: nothing lost, nothing twice, nothing left."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.agents.conftest import AgentRun, put_on_path
from tests.agents.stand_in_http import Endpoint

from vibeserve.agents import confine
from vibeserve.base.processes import GROUP_MARK
from vibeserve.search.context import group_of
from vibeserve.search.store import RunView
from vibeserve.search.store.runstore import NotBegunError

pytestmark = pytest.mark.skipif(confine.here() is None, reason="not run: bubblewrap does not run here")
ROOT = Path(__file__).parents[2]
BEHAVIOUR = {"rounds": "3", "seconds": "0.15", "design 2": "half once"}

CHILD = """
import sys
from pathlib import Path
from tests.agents.conftest import AgentRun
from tests.agents.test_kill import begun
from vibeserve.search.start import begin, go_on
folder, agent, parallel = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
run = AgentRun(folder, agent, parallel=parallel)
known = begun(folder / "runs")
directory = known[0] if known else begin(run.request, folder / "runs", run.outside())
print(go_on(directory, run.outside())["state"])
"""


def begun(runs: Path) -> list[Path]:
    """The runs that hold their first row: one that was killed before it cannot be resumed, and says so."""
    found = []
    for path in sorted(runs.glob("*/run.db")):
        with contextlib.suppress(NotBegunError), RunView(path.parent) as view:
            view.run()
            found.append(path.parent)
    return found


def start(folder: Path, agent: str, parallel: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", CHILD, str(folder), agent, str(parallel)]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def left(directory: Path) -> list[str]:
    """Processes that carry the run's mark, a few seconds after its own process has gone."""
    deadline = time.monotonic() + 10
    while True:
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get(GROUP_MARK) == group_of(directory)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(" ".join(process.cmdline()))
            except (psutil.Error, OSError):
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def facts(directory: Path) -> dict[str, Any]:
    """What a run came to, whatever happened on the way."""
    with RunView(directory) as view:
        answered = Counter((row.round, row.task) for row in view.calls() if row.state == "answered")
        return {
            "state": view.run().state,
            "hypotheses": [(row.round, row.title, row.state) for row in view.hypotheses()],
            "candidates": [(row.id, row.parent, row.tree) for row in view.candidates()],
            "measurements": [(row.round, row.kind, row.pair, row.candidate, row.value) for row in view.measurements()],
            "decisions": [(row.round, row.kind, row.candidate, row.verdict) for row in view.decisions()],
            "answered": answered,
        }


def kill_and_resume(folder: Path, agent: str, kills: int, draw: random.Random, parallel: int) -> None:
    """So many kills, each at a random moment of what is left; then to the end, and looked at."""
    unbroken = AgentRun(folder / "unbroken", agent, parallel=parallel)
    unbroken.run()
    expected = facts(unbroken.directory)
    assert set(expected["answered"].values()) == {1}
    killed = 0
    for _ in range(kills):
        process = start(folder / "broken", agent, parallel)
        time.sleep(draw.uniform(0.5, 3.0))
        if process.poll() is None:
            process.kill()
            killed += 1
        process.communicate()
        for directory in (folder / "broken" / "runs").glob("*"):
            assert left(directory) == []
    process = start(folder / "broken", agent, parallel)
    out, err = process.communicate(timeout=120)
    assert out.strip() == "finished", err[-3000:]
    (directory,) = begun(folder / "broken" / "runs")
    assert killed > 0
    assert facts(directory) == expected
    with RunView(directory) as view:
        calls = view.calls()
        assert "running" not in {row.state for row in calls}
        assert len({(row.round, row.task, row.attempt) for row in calls}) == len(calls)
        for row in calls:
            assert (directory / row.transcript).is_dir() or row.state == "killed"
        claims = [(claim.call, claim.name) for claim in view.claims()]
    assert len(set(claims)) == len(claims)
    assert left(directory) == []


def test_a_few_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path / "bin", "claude", BEHAVIOUR, monkeypatch)
    kill_and_resume(tmp_path, "claude", 3, random.Random(2), parallel=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
def test_fifty_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    agent, parallel = [("claude", 1), ("acp:acp-agent", 1), ("openai:small", 1), ("claude", 3), ("codex", 1)][seed % 5]
    name = "acp-agent" if agent.startswith("acp") else agent.partition(":")[0]
    put_on_path(tmp_path / "bin", name, BEHAVIOUR, monkeypatch)
    endpoint = Endpoint(BEHAVIOUR)
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    try:
        kill_and_resume(tmp_path, agent, 5, random.Random(seed), parallel)
    finally:
        endpoint.close()
