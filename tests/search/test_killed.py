"""A server or a client that is killed from outside costs what was in flight; killed each time, it has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.search.test_crash import BEHAVIOURS, PROPOSALS, At, record

from vibeserve.measure import KilledError, RunError, StartError


def without_events(run: Any) -> dict[str, Any]:
    found = record(run)
    found.pop("events")
    return found


def at(number: int) -> Callable[[str], None]:
    """Kills the server or the client of the n-th act, once."""
    count = 0

    def die(act: str) -> None:
        nonlocal count
        count += 1
        if count != number or act == "facts":
            return
        if act.startswith("start"):
            raise StartError(f"{act}: ended by signal 9", killed=True)
        raise KilledError(f"{act}: ended by signal 9")

    return die


def test_killed_once_in_every_act_a_run_comes_to_the_same(scenario: Any) -> None:
    unbroken = scenario(BEHAVIOURS, PROPOSALS, "unbroken")
    count = At()
    unbroken.begin()
    unbroken.go_on(die=count)
    expected = without_events(unbroken)
    for number in range(1, count.calls + 1, 3):
        run = scenario(BEHAVIOURS, PROPOSALS, f"killed-{number}")
        run.begin()
        assert run.go_on(die=at(number))["state"] == "finished"
        assert without_events(run) == expected, f"killed in act {number}"


def each_time(word: str, error: type[RunError] = KilledError) -> Callable[[str], None]:
    def die(act: str) -> None:
        if act == word:
            raise error(f"{act}: ended by signal 9")

    return die


def test_the_record_says_what_was_lost(scenario: Any) -> None:
    run = scenario(BEHAVIOURS, PROPOSALS)
    run.begin()

    def die(act: str) -> None:
        if act == "check c2":
            run.world.labs[-1].open_servers.discard("c2")
            raise KilledError(f"{act}: ended by signal 9")

    document = run.go_on(die=die)
    lost = [event["text"] for event in document["events"] if event["kind"] == "again"]
    assert lost == ["lost, and done once more: check c2: ended by signal 9"]
    assert [entry["verdict"] for entry in document["rounds"]] == ["kept", "kept", "failed-run", "kept"]


def test_a_client_that_is_killed_is_started_again_a_few_times(scenario: Any) -> None:
    run = scenario(BEHAVIOURS, PROPOSALS)
    run.begin()
    left = [KilledError("checker.py: exit code -9")] * 3

    def die(act: str) -> None:
        if act == "check c2" and left:
            raise left.pop()

    document = run.go_on(die=die)
    assert [entry["verdict"] for entry in document["rounds"]] == ["kept", "kept", "not-better", "kept"]
    assert [event["kind"] for event in document["events"]].count("again") == 3


@pytest.mark.parametrize("act", ["check c0", "window c0"])
def test_a_reference_that_is_killed_each_time_ends_the_run_and_resume_goes_on(scenario: Any, act: str) -> None:
    run = scenario(BEHAVIOURS, PROPOSALS)
    run.begin()
    with pytest.raises(RunError, match="signal 9"):
        run.go_on(die=each_time(act))
    assert run.go_on()["state"] == "finished"


def test_a_reference_that_dies_by_itself_is_started_anew(scenario: Any) -> None:
    """Its death is no fault of the candidates that are compared with it."""
    run = scenario(BEHAVIOURS, PROPOSALS)
    run.begin()

    def die(act: str) -> None:
        lab = run.world.labs[-1]
        if act == "window c0" and lab.acts.count(act) == 3:
            lab.open_servers.discard("c0")
            raise RunError("c0: the server died: exit code 1")

    document = run.go_on(die=die)
    assert [entry["verdict"] for entry in document["rounds"]] == ["kept", "kept", "not-better", "kept"]
    assert run.world.labs[-1].acts.count("start c0") == 2
