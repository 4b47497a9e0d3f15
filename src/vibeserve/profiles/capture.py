"""Capturing a profile on the device: `neuron-explorer capture` with the environment and flags that make it useful."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import CheckError, InputError, MissingError
from vibeserve.base.files import DiskFiles, write_json
from vibeserve.profiles.ingest import explorer

_LIMIT_S = 1800


@dataclass(frozen=True, slots=True)
class Capture:
    """What a capture left: its folder `run_NNN`, the trace of the measured execution (None where the folder holds the
    tables of a simulated profile), the metrics."""

    folder: Path
    neff: Path
    ntff: Path | None
    metrics: dict[str, Any]


def next_run(profiles_dir: Path) -> Path:
    """The folder of the next capture: run_001, run_002, … (one after the highest)."""
    taken = [int(path.name[4:]) for path in profiles_dir.glob("run_*") if path.name[4:].isdecimal()]
    return profiles_dir / f"run_{max(taken, default=0) + 1:03d}"


def commands(neff: Path, folder: Path) -> list[str]:
    """The shell lines that capture on the device. DGE notifications are asked for by the variable: the flag is not relied on."""
    return [
        f"NEURON_RT_ENABLE_DGE_NOTIFICATIONS=1 neuron-explorer capture -n {neff} -s {folder}/profile.ntff --profile-nth-exec=2",
        f"neuron-explorer view --output-format summary-json -n {neff} -s {folder}/profile_exec_2.ntff > {folder}/metrics.json",
    ]


def capture(neff: Path, profiles_dir: Path) -> Capture:
    """Capture the second execution (the first warms up) of a NEFF into the next `run_NNN` folder. Of a profile that the
    simulator left in a NEFF's place (see `neffs`) the tables are copied there: nothing runs.

    Raises MissingError with the exact commands where `neuron-explorer` is not installed, CheckError with its words where
    it fails or leaves no trace.
    """
    if neff.is_dir() and any(neff.glob("*.parquet")):
        return _copy(neff, next_run(profiles_dir))
    if not neff.is_file():
        raise InputError(f"no such NEFF: {neff}", hint="find it with 'vibeserve nki neffs DIR KERNEL'")
    folder = next_run(profiles_dir)
    tool = explorer.find()
    if tool is None:
        raise MissingError(
            "neuron-explorer is not installed here: a capture needs the device",
            hint=f"on the device run: mkdir -p {folder} && {' && '.join(commands(neff, folder))}",
        )
    files = DiskFiles()
    files.make_dir(folder)
    session = folder / "profile.ntff"
    _run(
        [tool, "capture", "-n", str(neff), "-s", str(session), "--profile-nth-exec=2"],
        {"NEURON_RT_ENABLE_DGE_NOTIFICATIONS": "1"},
    )
    try:
        trace = explorer.session_file(session)
    except InputError:
        raise CheckError(
            f"the capture left no trace in {folder}", hint="is this machine a Trainium? neuron-ls"
        ) from None
    if trace.stat().st_size == 0:
        raise CheckError(
            f"{trace} is empty: nothing ran on the device", hint="check that the kernel runs, then capture again"
        )
    shown = _run([tool, "view", "--output-format", "summary-json", "-n", str(neff), "-s", str(trace)], {})
    metrics = flatten(shown)
    write_json(files, folder / "metrics.json", metrics)
    return Capture(folder, neff, trace, metrics)


def _copy(profile: Path, folder: Path) -> Capture:
    from vibeserve.profiles.profile import Profile
    from vibeserve.profiles.summary import metrics

    files = DiskFiles()
    files.make_dir(folder)
    for table in sorted(profile.glob("*.parquet")):
        shutil.copyfile(table, folder / table.name)
    found = metrics(Profile(folder.name, directory=folder))
    write_json(files, folder / "metrics.json", found)
    return Capture(folder, profile, None, found)


def flatten(text: str) -> dict[str, Any]:
    """The tool's summary-json with the first node's metrics (and `latency` in ms) at top level too, so that both
    "first value" and ".metric" read it."""
    try:
        document = json.loads(text)
    except ValueError:
        raise CheckError("neuron-explorer's summary is not JSON", hint="run its view command by hand") from None
    nodes = [value for value in document.values() if isinstance(value, dict)] if isinstance(document, dict) else []
    first = nodes[0] if nodes else {}
    total = first.get("total_time")
    return {**document, **first, **({"latency": total * 1e3} if total else {})}


def _run(argv: list[str], environment: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_LIMIT_S, check=False, env={**os.environ, **environment}
        )
    except subprocess.TimeoutExpired:
        raise CheckError(
            f"{' '.join(argv[:2])} took longer than {_LIMIT_S} s", hint="is another process on the core?"
        ) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-400:]
        raise CheckError(
            f"neuron-explorer {argv[1]} failed (exit {done.returncode}): {said}", hint="vibeserve nki doctor"
        )
    return done.stdout
