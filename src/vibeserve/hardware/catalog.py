"""The machines that are data files: read, checked, found by name or alias."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.provenance import Provenance
from vibeserve.hardware.dtypes import BYTES
from vibeserve.hardware.machine import Array, Figure, Machine

DATA = Path(__file__).parent / "data"

# What a machine's entry may hold; an unknown key is an error that names it.
_REQUIRED = {"name", "title", "generation", "memory_bytes", "bandwidth_bytes_per_s"}
_OPTIONAL = {"aliases", "kind", "cores", "lnc", "array", "rates", "peaks", "vector_peaks", "on_chip", "dma", "links"}
_FIGURE_KEYS = {"value", "source", "provenance", "name", "note"}
_UNITS = {
    "memory_bytes": "bytes",
    "bandwidth_bytes_per_s": "bytes/s",
    "peaks": "FLOP/s",
    "vector_peaks": "FLOP/s",
    "dma": "bytes/s",
    "links": "bytes/s",
    "on_chip": "bytes",
}


class CatalogError(ValueError):
    """A machine file does not follow the schema (a fault of this package, not of its user)."""


def read_file(path: Path) -> list[Machine]:
    """The machines of one data file. Raises CatalogError, naming file and key, where it does not follow the schema."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = set(document) - {"vendor", "kind", "sources", "machine"}
    if unknown:
        raise CatalogError(f"{path.name}: unknown keys {sorted(unknown)}")
    try:
        return [_machine(entry, document) for entry in document["machine"]]
    except CatalogError as error:
        raise CatalogError(f"{path.name}: {error}") from error


@cache
def machines() -> dict[str, Machine]:
    """Every documented machine by name, in the order of the files."""
    found = [machine for path in sorted(DATA.glob("*.toml")) for machine in read_file(path)]
    return {machine.name: machine for machine in found}


def find(name: str) -> Machine:
    """The documented machine of this name or alias (case and spaces do not matter). Raises InputError if unknown."""
    word = _plain(name)
    for machine in machines().values():
        if word in {_plain(machine.name), *(_plain(alias) for alias in machine.aliases)}:
            return machine
    from difflib import get_close_matches

    close = get_close_matches(name.lower(), list(machines()), n=3)
    hint = f"did you mean {', '.join(close)}? " if close else ""
    raise InputError(f"unknown machine {name!r}", hint=hint + "'vibeserve hardware' lists them")


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "").replace("_", "")


def _machine(entry: Mapping[str, Any], document: Mapping[str, Any]) -> Machine:
    name = entry.get("name", "?")
    keys = set(entry)
    if missing := _REQUIRED - keys:
        raise CatalogError(f"{name}: missing {sorted(missing)}")
    if unknown := keys - _REQUIRED - _OPTIONAL:
        raise CatalogError(f"{name}: unknown keys {sorted(unknown)}")
    figures: dict[str, tuple[Figure, ...]] = {}
    sources = document.get("sources", {})
    for quantity in ("memory_bytes", "bandwidth_bytes_per_s"):
        figures[quantity] = _figures(entry[quantity], quantity, name, sources)
    for group in ("peaks", "vector_peaks", "on_chip", "dma", "links"):
        for key, value in entry.get(group, {}).items():
            if group.endswith("peaks") and key not in BYTES:
                raise CatalogError(f"{name}: unknown data type {key!r} in {group}")
            figures[f"{group}.{key}"] = _figures(value, group, name, sources)
    cores = entry.get("cores", 1)
    array = _array(entry, cores, figures, sources)
    return Machine(
        name=name,
        title=entry["title"],
        vendor=document["vendor"],
        kind=entry.get("kind", document.get("kind", "")),
        generation=entry["generation"],
        peaks=_used(figures, "peaks."),
        vector_peaks=_used(figures, "vector_peaks."),
        bandwidth_bytes_per_s=figures["bandwidth_bytes_per_s"][0].value,
        memory_bytes=figures["memory_bytes"][0].value,
        figures=figures,
        aliases=tuple(entry.get("aliases", ())),
        cores=cores,
        lnc=tuple(entry.get("lnc", ())),
        array=array,
    )


def _used(figures: Mapping[str, tuple[Figure, ...]], prefix: str) -> dict[str, float]:
    return {key.removeprefix(prefix): found[0].value for key, found in figures.items() if key.startswith(prefix)}


def _figures(value: Any, quantity: str, name: str, sources: Mapping[str, str]) -> tuple[Figure, ...]:
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise CatalogError(f"{name}: {quantity} has no figure")
    return tuple(_figure(entry, quantity, name, sources) for entry in entries)


def _figure(entry: Any, quantity: str, name: str, sources: Mapping[str, str]) -> Figure:
    if not isinstance(entry, dict) or not {"value", "source"} <= set(entry) or set(entry) - _FIGURE_KEYS:
        raise CatalogError(f"{name}: {quantity}: a figure has value, source and may have {sorted(_FIGURE_KEYS)}")
    if entry["source"] not in sources:
        raise CatalogError(f"{name}: {quantity}: unknown source {entry['source']!r}")
    if not entry["value"] > 0:
        raise CatalogError(f"{name}: {quantity}: not positive: {entry['value']!r}")
    return Figure(
        value=entry["value"],
        unit=_UNITS[quantity],
        provenance=Provenance(entry.get("provenance", "documented")),
        source=sources[entry["source"]],
        name=entry.get("name", ""),
        note=entry.get("note", ""),
    )


def _array(
    entry: Mapping[str, Any], cores: int, figures: dict[str, tuple[Figure, ...]], sources: Mapping[str, str]
) -> Array | None:
    """The matmul array, and the peaks that follow from it put first among the figures of each data type."""
    if "array" not in entry:
        return None
    given, rates = entry["array"], entry.get("rates", {})
    array = Array(given["rows"], given["columns"], given["clock_hz"], {dtype: rates[dtype]["value"] for dtype in rates})
    for dtype, rate in rates.items():
        if dtype not in BYTES:
            raise CatalogError(f"{entry['name']}: unknown data type {dtype!r} in rates")
        derived = Figure(
            value=array.peak_flops_per_s(dtype) * cores,
            unit="FLOP/s",
            provenance=Provenance(rate.get("provenance", "documented")),
            source=sources[rate["source"]],
            name="array",
            note=f"{cores} cores x {array.rows} x {array.columns} x 2 x {array.clock_hz:.4g} Hz x {rate['value']:g}"
            + (f"; {rate['note']}" if "note" in rate else ""),
        )
        key = f"peaks.{dtype}"
        figures[key] = (derived, *figures.get(key, ()))
    return array
