"""Machine descriptions as data, and this machine, measured.

    get("trn2").share(lnc=2).bandwidth_bytes_per_s     # 0.75e12: two of eight cores
    get("h100").peak_flops_per_s("bfloat16")           # 989.4e12, dense
    detect().bandwidth_bytes_per_s                     # this machine, measured once and kept

Every figure has its source: `machine.sources` lists them, the used one first; where sources differ, all are there.
"""

from __future__ import annotations

from vibeserve.hardware.catalog import find, machines
from vibeserve.hardware.detection import NAMES as THIS_MACHINE
from vibeserve.hardware.detection import detect, detect_higher, is_measured
from vibeserve.hardware.dtypes import bytes_of, canonical
from vibeserve.hardware.machine import Array, Figure, Machine, Noise, Share


def get(name: str) -> Machine:
    """The machine of this name or alias; `cpu` (or `this`, `here`, `local`) is this one, measured if need be.

    Raises InputError for an unknown name, with what is near it.
    """
    return detect() if name.strip().lower() in THIS_MACHINE else find(name)


def names() -> list[str]:
    """Every machine's name; `cpu`, this machine, comes last."""
    return [*machines(), THIS_MACHINE[0]]


def describe(machine: Machine) -> dict[str, object]:
    """What `vibeserve hardware NAME --json` prints."""
    return {
        "name": machine.name,
        "title": machine.title,
        "vendor": machine.vendor,
        "kind": machine.kind,
        "generation": machine.generation,
        "peaks": dict(machine.peaks),
        "vector_peaks": dict(machine.vector_peaks),
        "bandwidth_bytes_per_s": machine.bandwidth_bytes_per_s,
        "memory_bytes": machine.memory_bytes,
        "cores": machine.cores,
        "lnc": list(machine.lnc),
        "array": machine.array,
        "aliases": list(machine.aliases),
        "sources": {
            quantity: [
                {"value": one.value, "unit": one.unit, "used": place == 0, "provenance": one.provenance}
                | {"source": one.source, "name": one.name, "note": one.note, "noise": one.noise}
                for place, one in enumerate(figures)
            ]
            for quantity, figures in machine.figures.items()
        },
        **machine.about,
    }


__all__ = [
    "THIS_MACHINE",
    "Array",
    "Figure",
    "Machine",
    "Noise",
    "Share",
    "bytes_of",
    "canonical",
    "describe",
    "detect",
    "detect_higher",
    "find",
    "get",
    "is_measured",
    "machines",
    "names",
]
