"""One row of a benchmark: a claim with its target, what was measured, and whether it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Row:
    """`actual` None: not run, `note` says why (such a row does not fail, and does not pass)."""

    name: str
    target: float | None
    actual: float | None
    unit: str
    better: Literal["lower", "higher"] = "lower"
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """Whether the target is met; None where there is none, or nothing was measured."""
        if self.target is None or self.actual is None:
            return None
        return self.actual <= self.target if self.better == "lower" else self.actual >= self.target

    @property
    def verdict(self) -> str:
        """pass, MISSED, not run, or nothing for a figure without a target."""
        if self.actual is None:
            return "not run"
        return {True: "pass", False: "MISSED", None: ""}[self.passed]
