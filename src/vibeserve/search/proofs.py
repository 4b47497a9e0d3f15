"""That a reference passes its own checker is proved once: for these files, this model and this environment, and kept.

It takes long (the reference is slow, which is why it is here), and nothing in it can change from run to run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vibeserve.base.clock import Clock, SystemClock
from vibeserve.base.files import DiskFiles, Files, write_json
from vibeserve.base.jsonio import dumps
from vibeserve.search.lab import Gate


@dataclass(frozen=True)
class Proofs:
    """Proofs in `folder`, one file for each environment that a proof holds in."""

    folder: Path
    environment: Mapping[str, Any]
    files: Files = field(default_factory=DiskFiles)
    clock: Clock = field(default_factory=SystemClock)

    @property
    def path(self) -> Path:
        """The file of this environment."""
        return self.folder / f"{hashlib.sha256(dumps(self.environment).encode()).hexdigest()[:24]}.json"

    def find(self) -> Gate | None:
        """The gate as it was passed, with its date; None where it was not, or the file cannot be read."""
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            detail = f"{document['detail']}, proved on {document['on'][:10]} with the same files, model and environment"
            return Gate("check", True, detail, document["document"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, gate: Gate) -> None:
        """Keep a passed gate."""
        now = self.clock.now().isoformat()
        write_json(self.files, self.path, {"detail": gate.detail, "document": gate.document, "on": now})
