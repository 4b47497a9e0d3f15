"""Which kernel is in which NEFF of a compiler's work directory, also one that was moved or kept elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vibeserve import profiles
from vibeserve.profiles import neffs


def kernels(directory: Path) -> list[neffs.Neff]:
    """Every NEFF below a work directory with its kernel: told by the directory that the NEFF names, and where that is gone by the
    graph (HLO) of the same module that lies beside it. Raises CheckError where there is no NEFF."""
    return [_beside(item) if item.kind == "unknown" else item for item in profiles.identify([directory])]


def _beside(item: neffs.Neff) -> neffs.Neff:
    """The NEFF told by `model.MODULE_x.hlo_module.pb` (or .hlo.pb) beside `model.MODULE_x.neff`."""
    path = Path(item.neff)
    for suffix in (".hlo_module.pb", ".hlo.pb"):
        graph = path.with_name(path.stem + suffix)
        if not graph.is_file():
            continue
        data = graph.read_bytes()
        if neffs.MARKER not in data:
            return replace(item, kind="xla", note=f"told by {graph.name} beside it")
        config = neffs.kernel_config(data)
        names = config.get("klir_binary") or config
        return replace(
            item,
            kind="nki",
            kernel=config.get("func_name"),
            inputs=tuple(map(str, names.get("input_names", ()))),
            outputs=tuple(map(str, names.get("output_names", ()))),
            note=f"told by {graph.name} beside it",
        )
    return item
