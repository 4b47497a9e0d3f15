"""What a figure depends on beside the code: the machine and the software under it. Taken without importing torch."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from vibeserve.measure.noise import governor

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "vibeserve")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KMP_AFFINITY")


@dataclass(frozen=True)
class Fingerprint:
    """Everything that makes two measurements comparable. JSON-able; `device` is one line for people."""

    device: str
    system: str
    kernel: str
    architecture: str
    cpu_model: str
    cpu_features: str
    cores_physical: int | None
    cores_logical: int
    cores_usable: int
    memory_gib: float
    hypervisor: bool
    governor: str | None
    accelerators: tuple[str, ...]
    python: str
    packages: dict[str, str | None]
    threads: dict[str, str | None]


def fingerprint() -> Fingerprint:
    """This machine and this environment, now."""
    import psutil

    cpu_model, features = _cpu()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory_gib = round(psutil.virtual_memory().total / 2**30, 1)
    accelerators = _accelerators()
    device = ", ".join([*accelerators, f"{cpu_model}, {usable} cores, {memory_gib:g} GiB"])
    return Fingerprint(
        device=device,
        system=platform.system(),
        kernel=platform.release(),
        architecture=platform.machine(),
        cpu_model=cpu_model,
        cpu_features=" ".join(word for word in features.split() if word.startswith(("avx", "amx", "sve", "asimd"))),
        cores_physical=psutil.cpu_count(logical=False),
        cores_logical=os.cpu_count() or 1,
        cores_usable=usable,
        memory_gib=memory_gib,
        hypervisor="hypervisor" in features.split(),
        governor=governor(),
        accelerators=accelerators,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        packages={name: _version(name) for name in PACKAGES},
        threads={name: os.environ.get(name) for name in _THREADS},
    )


def explain_difference(was: Mapping[str, Any] | Fingerprint, now: Mapping[str, Any] | Fingerprint) -> list[str]:
    """What differs between two fingerprints (as values, or as read back from JSON), a line each; empty: comparable."""
    before, after = _flat(was), _flat(now)
    lines = []
    for name in dict.fromkeys([*before, *after]):
        if name != "device" and before.get(name) != after.get(name):
            lines.append(f"{name}: was {_words(before.get(name))}, is {_words(after.get(name))}")
    return lines


def _flat(value: Mapping[str, Any] | Fingerprint) -> dict[str, Any]:
    plain = dataclasses.asdict(value) if isinstance(value, Fingerprint) else dict(value)
    flat: dict[str, Any] = {}
    for name, item in plain.items():
        if isinstance(item, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in item.items()}
        else:
            flat[name] = list(item) if isinstance(item, tuple) else item
    return flat


def _words(value: Any) -> str:
    if value is None or value == "":
        return "not set"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> tuple[str, str]:
    """(model, features) of the first core."""
    if sys.platform == "darwin":
        return _run("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor(), ""
    found: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    return (
        found.get("model name") or platform.processor() or platform.machine(),
        found.get("flags") or found.get("Features", ""),
    )


def _accelerators() -> tuple[str, ...]:
    """GPUs and Neuron devices by name."""
    found = [
        line.strip()
        for line in _run("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    ]
    neurons = sorted(Path("/dev").glob("neuron[0-9]*"))
    if neurons:
        found.append(f"{len(neurons)} Neuron devices")
    return tuple(line for line in found if line)


def _run(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        return ""
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (subprocess.SubprocessError, OSError):
        return ""
