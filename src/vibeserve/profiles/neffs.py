"""Which of the NEFFs that a run left behind are NKI kernels: told by the HLO in each one's compile work directory.

A NEFF's header names the directory that it was compiled in; the HLO module there holds a custom call
`AwsNeuronCustomNativeKernel` for each NKI kernel, with a base64 JSON that gives the kernel's name, inputs and outputs.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import CheckError, InputError

MARKER = b"AwsNeuronCustomNativeKernel"
_OPS = ("dot", "maximum", "add", "multiply", "reduce", "broadcast", "transpose", "convolution", "reshape", "slice")
_PRINTABLE = re.compile(rb"[\x20-\x7e]{8,}")
_WORKDIR = re.compile(r"/tmp/(?:[^/\s]+/)*?neuroncc_compile_workdir/[^/\s]+")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{80,}={0,2}")
_GONE = (
    "its compile work directory {workdir} is gone, so the kernel cannot be told: run this right after the kernel, or keep the "
    "directory"
)


@dataclass(frozen=True, slots=True)
class Neff:
    """One NEFF: kind is nki, xla or unknown; `kernel` the kernel's name; `ops` the HLO operations of an XLA graph."""

    neff: Path
    kind: str
    kernel: str | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ntff: Path | None
    ops: tuple[str, ...] = ()
    note: str = ""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "neff": str(self.neff),
            "kind": self.kind,
            "kernel": self.kernel,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "ntff": str(self.ntff) if self.ntff else None,
            "ops": list(self.ops),
            "note": self.note,
        }

    def lines(self) -> list[str]:
        """As the device tools' script prints it."""
        if self.kind == "nki":
            out = [f"[NKI:{self.kernel}] {self.neff}", f"  inputs: {list(self.inputs)}  outputs: {list(self.outputs)}"]
        else:
            out = [f"[XLA:{','.join(self.ops) or 'unknown'}] {self.neff}"]
        if self.ntff is not None:
            out.append(f"  ntff: {self.ntff}")
        return out


def identify(directories: Sequence[Path], kernel: str | None = None) -> list[Neff]:
    """Every NEFF below the directories, or those of one kernel; a profile that the simulator left there stands for the NEFF
    that there is none of (its note says so).

    Raises CheckError (exit 1) where there is neither, or none of that kernel; InputError where a directory is missing.
    """
    for directory in directories:
        if not directory.is_dir():
            raise InputError(
                f"no such directory: {directory}", hint="give the run's output directory (NEURON_RT_INSPECT_OUTPUT_DIR)"
            )
    files = sorted({path for directory in directories for path in directory.rglob("*.neff")})
    simulated = [item for directory in directories for item in _simulated(directory)]
    if not files and not simulated:
        shown = ", ".join(str(directory) for directory in directories)
        raise CheckError(
            f"No NEFF files found in {shown}",
            hint="set NEURON_RT_INSPECT_ENABLE=1 before imports, and check that the kernel ran (print its result)",
        )
    found = [*(examine(path) for path in files), *simulated]
    if kernel is None:
        return found
    chosen = [item for item in found if item.kernel == kernel]
    if not chosen:
        names = sorted({item.kernel for item in found if item.kernel})
        unknown = next((item.note for item in found if item.note), "")
        raise CheckError(
            f"No NEFF found for kernel '{kernel}'", hint=f"there is {', '.join(names)}" if names else unknown
        )
    return chosen


def _simulated(directory: Path) -> list[Neff]:
    """The newest simulated profile of each kernel below a directory."""
    from vibeserve.profiles.profile import Profile

    found = []
    for folder in sorted(directory.rglob("*@latest")):
        profile = Profile(folder.name.removesuffix("@latest"), directory=folder)
        if not folder.is_dir() or not profile.first("Metadata").get("is_simulation"):
            continue
        tensors = profile.table("TensorInfo", ["variable_name", "type"]).to_pylist()
        names = {kind: tuple(row["variable_name"] for row in tensors if row["type"] == kind) for kind in ("IN", "OUT")}
        note = f"simulated, no NEFF: it is a profile already (vibeserve profile bounds {profile.name} --data-path {directory})"
        found.append(Neff(folder, "nki", profile.name, names["IN"], names["OUT"], None, note=note))
    return found


def examine(path: Path) -> Neff:
    """What one NEFF is."""
    ntff = _trace_of(path)
    workdir = workdir_of(path)
    if workdir is None:
        return Neff(path, "unknown", None, (), (), ntff, note="it names no compile work directory")
    hlo = next(iter([*sorted(workdir.glob("*.hlo_module.pb")), *sorted(workdir.glob("*.hlo.pb"))]), None)
    if hlo is None:
        return Neff(path, "unknown", None, (), (), ntff, note=_GONE.format(workdir=workdir))
    data = hlo.read_bytes()
    if MARKER in data:
        config = kernel_config(data)
        binary = config.get("klir_binary") or {}
        inputs = tuple(str(name) for name in binary.get("input_names", config.get("input_names", ())))
        outputs = tuple(str(name) for name in binary.get("output_names", config.get("output_names", ())))
        note = "" if config else "its kernel's configuration cannot be read"
        return Neff(path, "nki", config.get("func_name"), inputs, outputs, ntff, note=note)
    return Neff(path, "xla", None, (), (), ntff, ops=_operations(data))


def workdir_of(path: Path) -> Path | None:
    """The compile work directory that the NEFF names, whether it still exists or not."""
    with path.open("rb") as file:
        data = file.read(1 << 20)
    for run in _PRINTABLE.findall(data):
        match = _WORKDIR.search(run.decode("ascii"))
        if match:
            return Path(match.group(0))
    return None


def kernel_config(data: bytes) -> dict[str, Any]:
    """The first base64 JSON with a `func_name` in an HLO module; empty where there is none."""
    for text in _BASE64.findall(data):
        for padded in (text, text[: len(text) - len(text) % 4]):
            try:
                value = json.loads(base64.b64decode(padded, validate=True))
            except (binascii.Error, ValueError):
                continue
            if isinstance(value, dict) and "func_name" in value:
                return value
    return {}


def _trace_of(path: Path) -> Path | None:
    number = path.stem.removeprefix("neff_")
    exact = path.with_name(f"{number}.ntff")
    if exact.exists():
        return exact
    return next(iter(sorted(path.parent.glob(f"{number.split('_')[0]}_*.ntff"))), None)


def _operations(data: bytes) -> tuple[str, ...]:
    seen: set[str] = set()
    for run in re.findall(rb"[\x20-\x7e]{2,}", data):
        word = run.decode("ascii").strip().split(".")[0]
        seen.update(op for op in _OPS if word == op)
    return tuple(sorted(seen))


def as_text(found: Iterable[Neff]) -> str:
    """The listing."""
    return "\n".join(line for item in found for line in item.lines())
