"""A winner is started again and measured again before it becomes the best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vibeserve.base.errors import VibeServeError
from vibeserve.measure import StartError
from vibeserve.search.lives import GATE, LOOKS, lost
from vibeserve.search.scripted import Behaviour, ScriptedLab

ONE = [{"techniques": ["batching"]}]


def rows(document: dict[str, Any], number: int = 1) -> list[dict[str, Any]]:
    """What was measured of a candidate in its new life."""
    return [row for row in document["rounds"][number]["measurements"] if row["kind"] == GATE]


def gate(document: dict[str, Any], number: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in document["rounds"][number]["gates"] if one["name"] == GATE)
    return found


def test_a_winner_is_measured_in_a_new_life(scenario: Any) -> None:
    run = scenario({"c0": Behaviour(10), "c1": Behaviour(20)}, ONE)
    document = run.run()
    assert document["best"]["candidate"] == "c1"
    (row,) = rows(document)
    assert (row["candidate"], row["window_s"], row["failed"]) == ("c1", 4.0, 0)
    assert row["value"] == pytest.approx(20, rel=0.1)
    found = gate(document)
    assert found["ok"] is True
    assert found["document"]["share"] == pytest.approx(1, rel=0.1)
    assert found["detail"].startswith("started again after 5.0 s, it has ")
    acts = run.world.labs[-1].acts
    assert acts.count("start c1") == 2
    assert acts.index("answers c1") < len(acts) - 1 - acts[::-1].index("start c1")
    assert any(text.startswith("round 1: started again") for text in run.told)


def test_who_has_not_won_is_not_started_again(scenario: Any) -> None:
    run = scenario({"c0": Behaviour(10), "c1": Behaviour(10)}, ONE)
    document = run.run()
    assert rows(document) == []
    assert run.world.labs[-1].acts.count("start c1") == 1


@pytest.mark.parametrize("direction", ["higher", "lower"])
def test_fast_only_in_its_first_life(scenario: Any, direction: str) -> None:
    better, worse = (20, 0.5) if direction == "higher" else (5, 2.0)
    behaviours = {"c0": Behaviour(10), "c1": Behaviour(better, next_lives=worse)}
    document = scenario(behaviours, ONE, direction, direction=direction).run()
    assert [entry["verdict"] for entry in document["rounds"]] == ["kept", "not-better"]
    assert document["rounds"][1]["reason"].startswith("its gain does not outlast a restart: 0.5")
    assert gate(document)["ok"] is False
    assert len(rows(document)) == LOOKS == 2
    assert len({row["seed"] for row in rows(document)}) == 2
    assert document["best"]["candidate"] == "c0"
    assert document["rounds"][1]["ci95"][0] > 1


@pytest.mark.parametrize(("value", "verdict"), [(5.0, "kept"), (0.0, "kept")])
def test_one_bad_moment_is_no_verdict(scenario: Any, value: float, verdict: str) -> None:
    run = scenario({"c0": Behaviour(10), "c1": Behaviour(20, spread=0.0)}, ONE)
    run.begin()
    seen = 0

    def bad_moment(act: str) -> None:
        nonlocal seen
        if act == "window c1":
            seen += 1
            object.__setattr__(run.behaviours["c1"], "value", value if seen == 7 else 20.0)

    document = run.go_on(die=bad_moment)
    assert document["rounds"][1]["verdict"] == verdict
    assert [row["value"] for row in rows(document)] == [value, 20.0]


@pytest.mark.parametrize(("disturbed", "verdict", "ok", "looks"), [(4, "kept", None, 4), (2, "not-better", False, 4)])
def test_a_disturbed_window_rejects_nothing(
    scenario: Any, monkeypatch: pytest.MonkeyPatch, disturbed: int, verdict: str, ok: bool | None, looks: int
) -> None:
    plain = ScriptedLab.window
    seen = 0

    def noisy(lab: ScriptedLab, server: Any, others: Any, **how: Any) -> Any:
        nonlocal seen
        window = plain(lab, server, others, **how)
        seen += how["log"].name.startswith("restart")
        if not how["log"].name.startswith("restart") or seen > disturbed:
            return window
        return replace(window, noisy="other processes used 1.30 cores")

    monkeypatch.setattr(ScriptedLab, "window", noisy)
    document = scenario({"c0": Behaviour(10), "c1": Behaviour(20, next_lives=0.5)}, ONE).run()
    assert document["rounds"][1]["verdict"] == verdict
    assert gate(document)["ok"] is ok
    assert len(rows(document)) == looks
    assert ("not run: every window after the restart was disturbed" in gate(document)["detail"]) == (ok is None)


def test_requests_that_fail_in_the_new_life(scenario: Any) -> None:
    run = scenario({"c0": Behaviour(10), "c1": Behaviour(20)}, ONE)
    run.begin()
    seen = 0

    def failing(act: str) -> None:
        nonlocal seen
        if act == "window c1":
            seen += 1
            object.__setattr__(run.behaviours["c1"], "failed", 3 if seen > 6 else 0)

    document = run.go_on(die=failing)
    assert document["rounds"][1]["verdict"] == "not-better"
    assert document["rounds"][1]["reason"] == "after a restart 3 requests failed under load"


def test_nothing_measured_in_the_new_life(scenario: Any) -> None:
    run = scenario({"c0": Behaviour(10), "c1": Behaviour(20)}, ONE)
    run.begin()
    seen = 0

    def empty(act: str) -> None:
        nonlocal seen
        if act == "window c1":
            seen += 1
            object.__setattr__(run.behaviours["c1"], "value", 0.0 if seen > 6 else 20.0)

    document = run.go_on(die=empty)
    assert document["rounds"][1]["reason"] == "after a restart it has no value: 0.0"


def test_who_does_not_start_again_has_failed(scenario: Any) -> None:
    run = scenario({"c0": Behaviour(10), "c1": Behaviour(20)}, ONE)
    run.begin()
    starts = 0

    def refuses(act: str) -> None:
        nonlocal starts
        if act == "start c1":
            starts += 1
            if starts > 1:
                raise StartError("the port is taken")

    document = run.go_on(die=refuses)
    assert document["rounds"][1]["verdict"] == "failed-run"
    assert document["rounds"][1]["reason"] == "c1 started once, but not again: the port is taken"
    assert issubclass(StartError, VibeServeError)


def test_values_below_one_are_values(scenario: Any) -> None:
    document = scenario({"c0": Behaviour(0.1), "c1": Behaviour(0.5)}, ONE).run()
    assert document["rounds"][1]["verdict"] == "kept"
    assert len(rows(document)) == 1


def test_a_disturbed_window_is_one_of_the_looks_and_is_not_repeated_beside_them(
    scenario: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    original = ScriptedLab.window

    def window(self: ScriptedLab, *arguments: Any, **rest: Any) -> Any:
        if rest["log"].name.startswith(GATE):
            asked.append(rest["again"])
        return original(self, *arguments, **rest)

    monkeypatch.setattr(ScriptedLab, "window", window)
    scenario({"c0": Behaviour(10), "c1": Behaviour(20)}, ONE).run()
    assert asked == [False]


@pytest.mark.parametrize(
    ("value", "before", "direction", "told"),
    [(0.69, 1.0, "higher", True), (0.7, 1.0, "higher", False), (1.0, 0.69, "lower", True), (1.0, 0.7, "lower", False),
     (2.0, 1.0, "higher", False), (1.0, 2.0, "lower", False)],
)  # fmt: skip
def test_far_behind(value: float, before: float, direction: Any, told: bool) -> None:
    assert lost(value, before, direction) is told
