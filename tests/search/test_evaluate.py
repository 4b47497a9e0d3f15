"""What `evaluate` makes of a winner's new life."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.judge.test_probes import bundle

from vibeserve.measure import BenchResult, RunError
from vibeserve.search import evaluate
from vibeserve.search.evaluate import _Course, _lost
from vibeserve.targets import Metric

COMPARISON: Any = SimpleNamespace(values_b=[9.0, 10.0, 30.0])


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Each window that was measured; `values` of the first are what comes out, one after the other."""
    calls: list[dict[str, Any]] = []

    def window(*arguments: Any, **rest: Any) -> tuple[BenchResult, None]:
        calls.append({"server": arguments[2], "others": arguments[3], **rest})
        value = window.values.pop(0)  # type: ignore[attr-defined]
        return BenchResult(value, {}, 0, detail="" if value else "no request ended"), None

    monkeypatch.setattr(evaluate, "measure_window", window)
    calls.append({"window": window})
    return calls


def result(looked: list[dict[str, Any]], *values: float | None, direction: Any = "higher") -> tuple[str, _Course]:
    looked[0]["window"].values = list(values)
    target = replace(bundle(), metric=Metric("m", "u", direction))
    course = _Course(
        target, Path("/m"), 5, Path("/out"), lambda text: None, None, SimpleNamespace(), None, Path("/c"), Path("/r")
    )  # type: ignore[arg-type]
    server: Any = "a server"
    return _lost(course, server, server, COMPARISON, 4.0), course


def test_a_gain_that_stays(looked: list[dict[str, Any]]) -> None:
    reason, course = result(looked, 7.0)
    assert reason == ""
    (gate,) = course.gates
    assert (gate.name, gate.ok) == ("restart", True)
    assert gate.detail == "started again, it has 0.7× of the value of its pairs"
    (call,) = looked[1:]
    assert (call["window_s"], call["output"]) == (4.0, Path("/out/windows/restart-1.json"))
    assert call["others"] == ["a server"]


def test_a_bad_moment_is_looked_at_again(looked: list[dict[str, Any]]) -> None:
    assert result(looked, 1.0, 10.0)[0] == ""
    assert len({call["seed"] for call in looked[1:]}) == 2


@pytest.mark.parametrize(("values", "direction"), [((6.9, 5.0), "higher"), ((15.0, 20.0), "lower")])
def test_a_gain_of_the_first_life_alone(looked: list[dict[str, Any]], values: Any, direction: Any) -> None:
    reason, course = result(looked, *values, direction=direction)
    assert reason == "its gain does not outlast a restart: 0.5× of the value of its pairs"
    assert (course.gates[0].ok, course.gates[0].detail) == (False, reason)


def test_no_value_in_the_new_life(looked: list[dict[str, Any]]) -> None:
    with pytest.raises(RunError, match="after a restart it has no value: no request ended"):
        result(looked, None)
