"""A scripted run: behaviours by candidate, a list of proposals, a logical clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vibeserve.base.clock import LogicalClock
from vibeserve.search.request import Request
from vibeserve.search.scripted import GOAL, Behaviour, ScriptedAgent, ScriptedLab, ScriptedWorld
from vibeserve.search.start import Outside, begin, go_on


class Scenario:
    """One scripted run that can be begun, broken and resumed."""

    def __init__(
        self, folder: Path, behaviours: Mapping[str, Behaviour], proposals: Sequence[Mapping[str, Any]], **rest: Any
    ):
        self.folder = folder
        self.behaviours = behaviours
        self.proposals = proposals
        self.direction = rest.pop("direction", "higher")
        self.limit_again = rest.pop("limit_again", None)
        self.request = Request(bundle="scripted", **rest)
        self.clock = LogicalClock()
        self.reference = folder / "reference"
        self.reference.mkdir(parents=True, exist_ok=True)
        (self.reference / "reference.py").write_text("print('reference')\n")
        self.told: list[str] = []
        self.world = self.new_world()
        self.directory: Path | None = None

    def new_world(self, die: Callable[[str], None] = lambda act: None) -> ScriptedWorld:
        def make_lab() -> ScriptedLab:
            return ScriptedLab(
                self.behaviours, self.clock, die=die, direction=self.direction, limit_again=self.limit_again
            )

        goal = replace(GOAL, direction=self.direction)
        return ScriptedWorld(make_lab, lambda: ScriptedAgent(self.proposals), self.reference, goal)

    def outside(
        self, hook: Callable[[str], None] | None = None, die: Callable[[str], None] = lambda act: None
    ) -> Outside:
        self.world = self.new_world(die)
        return Outside(self.world, self.clock, lambda at_s, kind, text: self.told.append(text), hook, pid=1)

    def begin(self, hook: Callable[[str], None] | None = None) -> Path:
        self.directory = begin(self.request, self.folder / "runs", self.outside(hook))
        return self.directory

    def go_on(
        self, hook: Callable[[str], None] | None = None, die: Callable[[str], None] = lambda act: None
    ) -> dict[str, Any]:
        assert self.directory is not None
        return go_on(self.directory, self.outside(hook, die))

    def run(self) -> dict[str, Any]:
        self.begin()
        return self.go_on()


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., Scenario]:
    def make(
        behaviours: Mapping[str, Behaviour], proposals: Sequence[Mapping[str, Any]], name: str = "one", **rest: Any
    ) -> Scenario:
        return Scenario(tmp_path / name, behaviours, proposals, **rest)

    return make
