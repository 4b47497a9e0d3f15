"""This machine, measured: memory bandwidth and matmul peak by data type, kept until the machine or its software changes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from vibeserve.base.errors import MissingError
from vibeserve.base.files import DiskFiles, Files, write_json
from vibeserve.base.paths import cache_dir
from vibeserve.base.processes import clean_environment
from vibeserve.base.provenance import Provenance
from vibeserve.hardware.machine import Figure, Machine, Noise

NAMES = ("cpu", "this", "here", "local")
_TIMEOUT_S = 240
_FORMAT = 2  # 2: float peaks from compiled multiply-adds too


def detect(
    refresh: bool = False, *, files: Files | None = None, probe: Callable[[], Mapping[str, Any]] | None = None
) -> Machine:
    """This machine, named `cpu`: measured once, then read from the user's cache.

    `refresh` measures again. The cache is keyed by processor, CPUs that may be used, memory, Python, NumPy and torch.
    Measuring takes about ten seconds in a process of its own. Raises MissingError where it cannot be measured.
    """
    facts = _facts()
    path = cache_path(facts)
    if not refresh and (kept := _kept(path)) is not None:
        return _machine(facts, kept)
    samples = dict((probe or run_probes)())
    document = {"format": _FORMAT, "facts": facts, "measured_at": datetime.now(UTC).isoformat(), **samples}
    write_json(files or DiskFiles(), path, document)
    return _machine(facts, document)


def detect_higher(*, files: Files | None = None, probe: Callable[[], Mapping[str, Any]] | None = None) -> Machine:
    """This machine measured once more: of each rate the higher of what was kept and what is measured now is kept.

    For when something ran faster than the rates allow: a peak is what the machine can do, and one that was taken while
    the machine was slow is too low. Raises MissingError where it cannot be measured.
    """
    from vibeserve.hardware.probes import highest

    facts = _facts()
    path = cache_path(facts)
    samples = dict((probe or run_probes)())
    kept = _kept(path)
    if kept is not None:
        both = highest({"bandwidth": samples["bandwidth"], **samples["peaks"]}, _rates(kept))
        samples |= {"bandwidth": both.pop("bandwidth"), "peaks": both}
    document = {"format": _FORMAT, "facts": facts, "measured_at": datetime.now(UTC).isoformat(), **samples}
    write_json(files or DiskFiles(), path, document)
    return _machine(facts, document)


def _rates(document: Mapping[str, Any]) -> dict[str, Any]:
    """The probes of a kept measurement, each with its own day."""
    day = document["measured_at"][:10]
    rates = {"bandwidth": document["bandwidth"], **document["peaks"]}
    return {name: {"on": day, **row} for name, row in rates.items()}


def is_measured() -> bool:
    """Whether `detect` would answer from the cache, without measuring."""
    return _kept(cache_path(_facts())) is not None


def cache_path(facts: Mapping[str, Any]) -> Path:
    """Where the measurement of a machine with these facts is kept."""
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "hardware" / f"{key}.json"


def run_probes() -> Mapping[str, Any]:
    """Run `vibeserve.hardware.probes` in a clean environment (a BLAS setting of ours would slow it) and read it."""
    argv = [sys.executable, "-m", "vibeserve.hardware.probes"]
    here = str(Path(__file__).parents[2])
    environment = clean_environment({"PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])})
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment, check=True)
    except subprocess.TimeoutExpired as error:
        raise MissingError(
            f"this machine could not be measured within {_TIMEOUT_S} s",
            hint="try again when it is idle; documented machines need no measurement",
        ) from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise MissingError(
            f"this machine could not be measured: {last}", hint="documented machines need no measurement"
        ) from error
    return json.loads(done.stdout)


def _kept(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if document.get("format") == _FORMAT else None


def _facts() -> dict[str, Any]:
    import psutil

    from vibeserve.hardware.probes import usable_cpus

    return {
        "processor": _processor(),
        "machine": platform.machine(),
        "cpus": usable_cpus(),
        "memory_bytes": _memory_limit(psutil.virtual_memory().total),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "torch")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = found.get("model name") or platform.processor() or platform.machine()
    return f"{name}, family {found['cpu family']} model {found['model']}" if "cpu family" in found else name


def _memory_limit(total: int) -> int:
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        return total if text == "max" else min(total, int(text))
    except (OSError, ValueError):
        return total


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def noise_of(samples: Sequence[float]) -> Noise:
    """Median, extremes and relative spread of samples."""
    middle = median(samples)
    return Noise(middle, min(samples), max(samples), (max(samples) - min(samples)) / middle, len(samples))


def _figure(probe: Mapping[str, Any], unit: str, when: str) -> Figure:
    noise = noise_of(probe["samples"])
    return Figure(
        noise.median, unit, Provenance.MEASURED, f"{probe['with']}, {probe.get('on', when[:10])}", noise=noise
    )


def _machine(facts: Mapping[str, Any], document: Mapping[str, Any]) -> Machine:
    when = document["measured_at"]
    figures: dict[str, tuple[Figure, ...]] = {
        "memory_bytes": (Figure(facts["memory_bytes"], "bytes", Provenance.MEASURED, "the operating system"),),
        "bandwidth_bytes_per_s": (_figure(document["bandwidth"], "bytes/s", when),),
    }
    missing = {}
    for dtype, probe in document["peaks"].items():
        if "samples" in probe:
            figures[f"peaks.{dtype}"] = (_figure(probe, "FLOP/s", when),)
        else:
            missing[dtype] = probe["reason"]
    return Machine(
        name="cpu",
        title=f"This machine: {facts['processor']}, {facts['cpus']} CPUs",
        vendor=facts["processor"].split(" ")[0],
        kind="cpu",
        generation=f"{facts['machine']} {facts['processor'].partition(',')[2].strip()}".strip(),
        peaks={key.removeprefix("peaks."): found[0].value for key, found in figures.items() if key.startswith("peaks")},
        bandwidth_bytes_per_s=figures["bandwidth_bytes_per_s"][0].value,
        memory_bytes=facts["memory_bytes"],
        figures=figures,
        aliases=NAMES[1:],
        about={"facts": dict(facts), "measured_at": when, "not_measured": missing},
    )
