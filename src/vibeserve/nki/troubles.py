"""The troubles of a profiling run, told by what its output directory holds: each with its remedies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vibeserve.base.errors import VibeServeError
from vibeserve.base.files import read_json
from vibeserve.nki import compiled

SMALLEST_TRACE_BYTES = 1024
MOST_SPREAD = 0.05
_LATENCIES = ("latency", "latency_s", "total_time")
NO_NEFF = (
    "set NEURON_RT_INSPECT_ENABLE=1 before the imports; see that NEURON_RT_INSPECT_OUTPUT_DIR exists and is writable; print the "
    "result, which forces the run; neuron-ls: is this a Trainium?"
)
FAILED_CAPTURE = (
    "on the device: vibeserve nki capture NEFF; see that the NEFF's path is right (ls -la), that the neuronx packages are in the "
    "kernel environment, and that the disk has room for the trace"
)
EMPTY_PROFILE = (
    "--profile-nth-exec=2 to skip the warm-up, --enable-dge-notifs (NEURON_RT_ENABLE_DGE_NOTIFICATIONS=1) for transfers; see that "
    "the kernel ran before it was profiled, and that the trace is no few bytes (ls -lh)"
)
SEVERAL_NEFFS = (
    "compute references on the CPU, so that the kernel alone makes a NEFF; vibeserve nki neffs DIR KERNEL tells which is which, and "
    "neff_<id>_vnc_0.neff goes with <id>_vnc_0.ntff"
)
VARIES = (
    "--profile-nth-exec=2 or more to skip the warm-up; no other load, a core of its own (NEURON_RT_VISIBLE_CORES); average several "
    "runs; look for throttling"
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One look at the directory. `ok` False: this trouble is there, `fix` says what to do."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


def troubles(folder: Path) -> Iterator[Trouble]:
    """What the output directory of a run (NEFFs and traces), or a folder of profiles (run_*/profile.ntff, metrics.json), says."""
    found = folder.is_dir()
    neffs, traces = (sorted(folder.rglob(f"*.{kind}")) if found else [] for kind in ("neff", "ntff"))
    latencies = _latencies(folder) if found else []
    if not neffs and not traces and not latencies:
        yield Trouble(
            "output: NEFF", False, f"no NEFF below {folder}" if found else f"no such directory: {folder}", NO_NEFF
        )
        return
    if neffs:
        yield Trouble("output: NEFF", True, f"{len(neffs)} NEFF(s)")
    if len(neffs) > 1:
        yield Trouble("output: several NEFFs", False, _which(folder, neffs), SEVERAL_NEFFS)
    if neffs and not traces:
        yield Trouble("output: trace", False, "no NTFF: the capture failed", FAILED_CAPTURE)
    empty = [path for path in traces if path.stat().st_size < SMALLEST_TRACE_BYTES]
    if empty:
        shown = ", ".join(f"{path.name} holds {path.stat().st_size} bytes" for path in empty[:3])
        yield Trouble("output: empty trace", False, shown, EMPTY_PROFILE)
    if len(latencies) > 1:
        spread = (max(latencies) - min(latencies)) / min(latencies)
        steady = spread <= MOST_SPREAD
        yield Trouble(
            "output: latency varies", steady, f"{len(latencies)} runs, {spread:.1%} apart", "" if steady else VARIES
        )


def _which(folder: Path, neffs: list[Path]) -> str:
    """How many graphs ran, and which are kernels, where their compile folders are still there."""
    try:
        kernels = [f"{item.kernel} in {Path(item.neff).name}" for item in compiled.kernels(folder) if item.kernel]
    except VibeServeError:
        kernels = []
    return f"{len(neffs)} graphs ran on the device" + (f"; kernels: {', '.join(kernels[:4])}" if kernels else "")


def _latencies(folder: Path) -> list[float]:
    """The latency of each metrics.json, in whatever unit it has."""
    out = []
    for path in sorted(folder.rglob("metrics.json")):
        try:
            document = read_json(path)
        except (ValueError, OSError):
            continue
        nodes = [document, *document.values()] if isinstance(document, dict) else []
        values = [node[key] for node in nodes if isinstance(node, dict) for key in _LATENCIES if key in node]
        numbers = [float(value) for value in values if isinstance(value, int | float) and value > 0]
        if numbers:
            out.append(numbers[0])
    return out
