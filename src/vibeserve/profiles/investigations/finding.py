"""What an investigation answers, the same for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One source line's part: its cost in seconds where that can be said, how many rows, and more by name."""

    location: str | None
    cost_s: float | None
    count: int
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str | None:
        """Path of the source file, or None where the row has no source location."""
        return self.location.rpartition(":")[0] if self.location and ":" in self.location else self.location or None

    @property
    def line(self) -> int | None:
        """Line number in the file."""
        number = self.location.rpartition(":")[2] if self.location else ""
        return int(number) if number.isdecimal() else None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        out: dict[str, Any] = {
            "file": self.file,
            "line": self.line,
            "cost_s": self.cost_s,
            "count": self.count,
            **self.details,
        }
        return out | ({"cost_s_reason": "only a share of bytes or FLOPs is known"} if self.cost_s is None else {})


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one investigation.

    `ran` False: it could not, `reason` says why. `found` False: it ran and found nothing, `reason` says by what measure.
    `cost_s` is the gap that it explains (a lower limit of the inefficiency, never a promised saving).
    """

    name: str
    engine: str
    ran: bool
    found: bool
    reason: str
    cost_s: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    coverage: float | None = None
    notes: tuple[str, ...] = ()
    experimental: bool = False

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "engine": self.engine,
            "ran": self.ran,
            "reason": self.reason,
            "found": self.found,
            "cost_s": self.cost_s,
            **({"cost_s_reason": self.reason} if self.cost_s is None else {}),
            "lines": [line.document() for line in self.lines],
            "metrics": self.metrics,
            "coverage": self.coverage,
            "notes": list(self.notes),
            "experimental": self.experimental,
        }


def could_not(name: str, engine: str, reason: str) -> Finding:
    """The answer of an investigation that could not run."""
    return Finding(name, engine, ran=False, found=False, reason=reason)
