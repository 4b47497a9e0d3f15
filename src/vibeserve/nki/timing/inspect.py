"""What the device's runtime does under NEURON_RT_INSPECT_ENABLE=1: each launch leaves a profile in the output directory."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from vibeserve.nki.context import Core, Session
from vibeserve.nki.observe import Observer
from vibeserve.nki.timing.recorder import Recorder

ENABLE, OUTPUT = "NEURON_RT_INSPECT_ENABLE", "NEURON_RT_INSPECT_OUTPUT_DIR"


def inspectors(kernel: Any) -> tuple[Observer, ...]:
    """What watches a launch of `kernel` where the environment asks for a profile, else nothing."""
    folder = os.environ.get(OUTPUT)
    if os.environ.get(ENABLE) != "1" or not folder:
        return ()
    return (Inspector(re.sub(r"[^\w.-]+", "-", getattr(kernel, "__name__", "kernel")), Path(folder)),)


class Inspector(Recorder):
    """Records a launch, and when it has ended well saves its simulated profile as `name` under `folder`."""

    def __init__(self, name: str = "kernel", folder: Path = Path()):
        super().__init__()
        self.name, self.folder = name, folder

    def started(self, session: Session) -> None:
        self.session = session

    def finished(self, session: Session, cores: list[Core]) -> None:
        super().finished(session, cores)
        from vibeserve.nki.timing import save_profile
        from vibeserve.nki.timing.params import load
        from vibeserve.nki.timing.run import PROGRAM, Timed, schedule

        constants = load(session.target.number)
        run = Timed(
            self.name, session.target, session.cores_per_rank, self, schedule(self, constants), constants, PROGRAM,
            session.shape_only, self.peaks,
        )  # fmt: skip
        where = save_profile(run, self.name, self.folder)
        print(f"nki: simulated profile of {self.name} in {where} (not verified on hardware)", file=sys.stderr)
