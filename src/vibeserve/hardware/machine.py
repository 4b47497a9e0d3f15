"""What a machine is: peaks by data type, memory bandwidth, memory; each figure with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.provenance import Provenance
from vibeserve.hardware.dtypes import canonical


@dataclass(frozen=True, slots=True)
class Figure:
    """One number from one source. `name` is what an option calls it by (`--bandwidth profiles`)."""

    value: float
    unit: str
    provenance: Provenance
    source: str
    name: str = ""
    note: str = ""
    noise: Noise | None = None


@dataclass(frozen=True, slots=True)
class Noise:
    """The spread of a measured figure: the median is the figure, `spread` is (highest - lowest) / median."""

    median: float
    lowest: float
    highest: float
    spread: float
    n: int


@dataclass(frozen=True, slots=True)
class Array:
    """A systolic matmul array: a core does rows x columns multiply-adds a cycle at rate 1 (2 FLOPs each)."""

    rows: int
    columns: int
    clock_hz: float
    rates: Mapping[str, float]

    def peak_flops_per_s(self, dtype: str) -> float:
        """Peak of one core: rows x columns x 2 x clock x rate."""
        return self.rows * self.columns * 2 * self.clock_hz * self.rates[dtype]


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine. Peaks and bandwidth are those of the whole device, dense; `figures` has every source of each.

    `peaks` are matmul peaks and `vector_peaks` those outside the matmul units, in FLOP/s by dtype. Where the device
    has `cores` that a kernel runs on one or two of, `lnc` lists how many physical cores one logical core may have.
    `figures` maps a quantity (`bandwidth_bytes_per_s`, `peaks.bfloat16`, `on_chip.sbuf_bytes`, …) to its figures: the
    first is the one that is used, the others are what further sources say.
    """

    name: str
    title: str
    vendor: str
    kind: str
    generation: str
    peaks: Mapping[str, float]
    bandwidth_bytes_per_s: float
    memory_bytes: float
    vector_peaks: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, tuple[Figure, ...]] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    cores: int = 1
    lnc: tuple[int, ...] = ()
    array: Array | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sources(self) -> dict[str, list[Figure]]:
        """Every figure of every quantity, the used one first."""
        return {quantity: list(figures) for quantity, figures in self.figures.items()}

    def used(self, quantity: str) -> Figure:
        """The figure that is used for a quantity."""
        return self.figures[quantity][0]

    def peak_flops_per_s(self, dtype: str) -> float:
        """Matmul peak of the whole device. Raises InputError, naming what there is, where it has none for `dtype`."""
        word = canonical(dtype)
        if word not in self.peaks:
            raise InputError(
                f"{self.name} has no peak for {word}: it has {', '.join(self.peaks)}",
                hint="choose one of those, or give the figure yourself: --peak 100e12",
            )
        return self.peaks[word]

    def share(self, lnc: int | None = None) -> Share:
        """What one kernel gets: `lnc` physical cores of the device where it has such, else all of it.

        A core's part of the memory bandwidth is the device's divided by its cores. Raises InputError for an `lnc` that
        the device does not know.
        """
        if not self.lnc:
            if lnc not in (None, 1):
                raise InputError(
                    f"{self.name} has no logical cores: --lnc {lnc} means nothing there",
                    hint="leave --lnc out; a kernel gets the whole device",
                )
            return Share(1, dict(self.peaks), dict(self.vector_peaks), self.bandwidth_bytes_per_s, whole=True)
        used = 1 if lnc is None else lnc
        if used not in self.lnc:
            known = " or ".join(str(count) for count in self.lnc)
            raise InputError(f"{self.name} has no LNC {used}: it knows {known}", hint=f"use --lnc {self.lnc[-1]}")
        part = used / self.cores
        return Share(
            used,
            {dtype: peak * part for dtype, peak in self.peaks.items()},
            {dtype: peak * part for dtype, peak in self.vector_peaks.items()},
            self.bandwidth_bytes_per_s * used / self.cores,
        )

    def using(self, quantity: str, name: str) -> Machine:
        """The same machine with the figure called `name` used for `quantity`. Raises InputError for an unknown name."""
        figures = self.figures.get(quantity, ())
        chosen = next((figure for figure in figures if figure.name == name), None)
        if chosen is None:
            known = ", ".join(figure.name for figure in figures if figure.name) or "none by name"
            raise InputError(f"{self.name} has no {quantity} figure called {name!r}", hint=f"it has: {known}")
        order = (chosen, *(figure for figure in figures if figure is not chosen))
        changed = replace(self, figures={**self.figures, quantity: order})
        if quantity == "bandwidth_bytes_per_s":
            return replace(changed, bandwidth_bytes_per_s=chosen.value)
        return replace(changed, peaks={**self.peaks, quantity.removeprefix("peaks."): chosen.value})


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a machine that one kernel runs on: `cores` cores, their peaks (FLOP/s) and bandwidth (bytes/s)."""

    cores: int
    peaks: Mapping[str, float]
    vector_peaks: Mapping[str, float]
    bandwidth_bytes_per_s: float
    whole: bool = False
