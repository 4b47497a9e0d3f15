"""A run is killed at every write, and in every act; resumed, it is the unbroken run, field by field."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vibeserve.base.errors import InputError, InterruptedRunError, MissingError
from vibeserve.base.jsonio import plain
from vibeserve.search.scripted import Behaviour
from vibeserve.search.start import go_on
from vibeserve.search.store import RunView

PROPOSALS = [{"techniques": ["batching"]}, {"techniques": ["cache"]}, {"techniques": ["late"], "parent": "c1"}]
BEHAVIOURS = {"c0": Behaviour(25), "c1": Behaviour(250), "c2": Behaviour(120, spread=0), "c3": Behaviour(300)}


class Killed(BaseException):
    """Stands for kill -9: nothing in the program may catch it."""


def record(run: Any) -> dict[str, Any]:
    """Everything in the store but the processes that worked on it."""
    with RunView(run.directory) as view:
        return plain(
            {
                "run": view.run().state,
                "hypotheses": view.hypotheses(),
                "candidates": view.candidates(),
                "gates": view.gates(),
                "measurements": view.measurements(),
                "evidence": [view.evidence(row.id) for row in view.candidates()],
                "decisions": view.decisions(),
                "events": view.events(),
                "steps": view.steps(),
                "elapsed_s": view.elapsed_s(),
            }
        )


def broken(scenario: Any, name: str, **where: Any) -> dict[str, Any]:
    """The record of a run that is killed once, then resumed."""
    run = scenario(BEHAVIOURS, PROPOSALS, name)
    run.begin()
    with pytest.raises(Killed):
        run.go_on(**where)
    run.go_on()
    assert all(lab.open_servers == set() for lab in run.world.labs)
    return record(run)


class At:
    """Raises at the n-th call, once; `limit` None only counts."""

    def __init__(self, limit: int | None = None, error: BaseException | None = None):
        self.limit = limit
        self.error = error
        self.calls = 0

    def __call__(self, point: str) -> None:
        self.calls += 1
        if self.limit is not None and self.calls == self.limit:
            raise self.error or Killed(point)


EVERY = [pytest.param(1, marks=pytest.mark.slow), 9]


@pytest.mark.parametrize("stride", EVERY)
def test_killed_at_every_write(scenario: Any, stride: int) -> None:
    unbroken = scenario(BEHAVIOURS, PROPOSALS, "unbroken")
    unbroken.begin()
    count = At()
    unbroken.go_on(hook=count)
    expected = record(unbroken)
    assert len(expected["decisions"]) == 5
    for number in range(1, count.calls + 1, stride):
        run = scenario(BEHAVIOURS, PROPOSALS, f"killed-{number}")
        run.begin()
        with pytest.raises(Killed):
            run.go_on(hook=At(number))
        run.go_on()
        assert record(run) == expected, f"killed at write {number}"


@pytest.mark.parametrize("stride", EVERY)
def test_killed_in_every_act(scenario: Any, stride: int) -> None:
    unbroken = scenario(BEHAVIOURS, PROPOSALS, "unbroken")
    unbroken.begin()
    count = At()
    unbroken.go_on(die=count)
    expected = record(unbroken)
    for number in range(1, count.calls + 1, stride):
        assert broken(scenario, f"killed-{number}", die=At(number)) == expected, f"killed in act {number}"


_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.search.conftest import Scenario
from tests.search.test_crash import BEHAVIOURS, PROPOSALS, At

class Kill(At):
    def __call__(self, point):
        self.calls += 1
        if self.calls == self.limit:
            os.kill(os.getpid(), signal.SIGKILL)

run = Scenario(Path(sys.argv[1]), BEHAVIOURS, PROPOSALS)
run.directory = Path(sys.argv[2])
run.go_on(hook=Kill(int(sys.argv[3])))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_for_real_at_every_write(scenario: Any) -> None:
    """As above, but the process is gone with SIGKILL: nothing of it can tidy up."""
    unbroken = scenario(BEHAVIOURS, PROPOSALS, "unbroken")
    unbroken.begin()
    count = At()
    unbroken.go_on(hook=count)
    expected = record(unbroken)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for number in range(1, count.calls + 1):
        run = scenario(BEHAVIOURS, PROPOSALS, f"killed-{number}")
        argv = [sys.executable, "-c", _KILLED, str(run.folder), str(run.begin()), str(number)]
        assert subprocess.run(argv, env=environment, check=False).returncode == -signal.SIGKILL
        run.go_on()
        assert record(run) == expected, f"killed at write {number}"


def test_killed_while_it_begins(scenario: Any) -> None:
    run = scenario(BEHAVIOURS, PROPOSALS)
    with pytest.raises(Killed):
        run.begin(hook=At(3))  # the store is made, its first row is not written
    (half,) = (run.folder / "runs").iterdir()
    with pytest.raises(InputError, match="it was ended before it began") as caught:
        go_on(half, run.outside())
    assert "begin again" in caught.value.hint
    run.begin()
    assert run.go_on()["state"] == "finished"


@pytest.mark.parametrize("number", [2, 9, 20])
def test_a_full_disk_is_told_and_resumed(scenario: Any, number: int) -> None:
    run = scenario(BEHAVIOURS, PROPOSALS)
    run.begin()
    full = At(number, OSError(28, "No space left on device"))
    with pytest.raises(MissingError, match="No space left on device") as caught:
        run.go_on(hook=full)
    assert "vibeserve resume" in caught.value.hint
    assert run.go_on()["state"] == "finished"


def test_ctrl_c_says_how_to_go_on(scenario: Any) -> None:
    run = scenario(BEHAVIOURS, PROPOSALS)
    run.begin()

    def interrupt(act: str) -> None:
        if act == "check c1":
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError) as caught:
        run.go_on(die=interrupt)
    assert caught.value.hint == f"vibeserve resume {run.directory}"
    assert caught.value.exit_code == 4
    assert run.world.labs[-1].open_servers == set()
    with RunView(run.directory) as view:
        assert view.run().state == "interrupted"
    assert run.go_on()["state"] == "finished"
    with RunView(run.directory) as view:
        assert [row["how"] for row in view.sessions()] == ["interrupted", "finished"]


def test_another_environment_is_refused_with_what_differs(scenario: Any) -> None:
    run = scenario(BEHAVIOURS, PROPOSALS)
    run.begin()
    world = run.new_world()
    world.environment["cpu"] = "another"
    from vibeserve.search.start import Outside, go_on

    with pytest.raises(InputError, match="cpu: was scripted, is another"):
        go_on(run.directory, Outside(world, run.clock))


def test_two_writers_are_one_too_many(scenario: Any) -> None:
    run = scenario(BEHAVIOURS, PROPOSALS)
    run.begin()

    def second(act: str) -> None:
        if act == "check c1":
            run.go_on()

    with pytest.raises(InputError, match="is being written by process"):
        run.go_on(die=second)


_CHILD = """
import json, sys
from pathlib import Path
from vibeserve.base.clock import LogicalClock
from vibeserve.search.request import Request
from vibeserve.search.scripted import Behaviour, ScriptedAgent, ScriptedLab, ScriptedWorld
from vibeserve.search.start import Outside, begin, go_on
folder = Path(sys.argv[1])
(folder / "reference").mkdir(parents=True)
(folder / "reference" / "reference.py").write_text("x = 1")
clock = LogicalClock()
names = ["z", "a", "m", "b", "k"]
behaviours = {f"c{n}": Behaviour(10 + 5 * n, facts={name: n for name in names}) for n in range(5)}
lab = lambda: ScriptedLab(behaviours, clock)
agent = lambda: ScriptedAgent([{"techniques": [name], "settings": {name: True}} for name in names[:4]])
outside = Outside(ScriptedWorld(lab, agent, folder / "reference"), clock, pid=1)
document = go_on(begin(Request(bundle="b"), folder / "runs", outside), outside)
print(json.dumps(document | {"sessions": []}, default=str).replace(str(folder), ""))
"""


def test_the_record_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    outputs = set()
    for seed in ("0", "1", "12345"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        argv = [sys.executable, "-c", _CHILD, str(tmp_path / seed)]
        outputs.add(subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(outputs) == 1
    assert json.loads(outputs.pop())["best"]["candidate"] == "c4"
