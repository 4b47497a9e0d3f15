"""Every number says how it is known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Provenance(StrEnum):
    """How a figure is known; reports print the word."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    COUNTED = "counted by hand"
    DOCUMENTED = "documented"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit, how it is known, and where it came from (a command, a page, a formula)."""

    value: float
    unit: str
    provenance: Provenance
    source: str = ""
