"""What a probe found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ProbeResult:
    """`ok` None: it could not be run, and `detail` says why; that is never a pass."""

    name: str
    ok: bool | None
    detail: str
    document: dict[str, Any] = field(default_factory=dict)
