"""The roofline's own arithmetic: from work, bytes, peak and bandwidth to intensity, ridge and time bounds.

Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009. With perfect overlap of compute and data movement the
time is the larger of the two, with none it is their sum, so that max(W/P, Q/BW) <= T <= W/P + Q/BW.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from vibeserve.base.errors import InputError
from vibeserve.hardware import Machine, Share
from vibeserve.roofline.counting import Numbers
from vibeserve.roofline.poly import Number


@dataclass(frozen=True, slots=True)
class Roof:
    """The part of a machine that a kernel runs on: peaks by data type and bandwidth, exact, of all its cores.

    `peak_given` and `bandwidth_given` say that the user's figure stands in for the machine's.
    """

    machine: Machine
    share: Share
    peaks: Mapping[str, Fraction]
    bandwidth: Fraction
    peak_given: bool = False
    bandwidth_given: bool = False

    @property
    def cores(self) -> int:
        """Cores that share the work."""
        return self.share.cores

    def peak(self, dtype: str, kind: str) -> Fraction:
        """Peak FLOP/s for matmuls ('flops') or outside the matmul units ('vector'). Raises InputError without one."""
        if dtype in self.peaks and (kind == "flops" or self.peak_given):
            return self.peaks[dtype]
        if kind == "vector":
            table = self.share.vector_peaks
            if found := table.get(dtype) or table.get("float32"):
                return Fraction(found)
            # A machine whose vector units nobody documents: its float32 matmul peak is a roof above them.
            for word in ("float32", dtype):
                if word in self.peaks:
                    return self.peaks[word]
        self.machine.peak_flops_per_s(dtype)
        raise InputError(f"{self.machine.name} has no peak for {dtype}", hint="give one: --peak 100e12")


def roof(
    machine: Machine,
    lnc: int | None = None,
    *,
    peak: float | str | None = None,
    bandwidth: float | str | None = None,
    dtype: str = "bfloat16",
) -> Roof:
    """The roof over a kernel on `machine`.

    `peak` (FLOP/s) and `bandwidth` (bytes/s) are of the cores that the kernel runs on, or the name of one of the
    machine's other sources. Raises InputError for an unknown LNC or source name.
    """
    if isinstance(bandwidth, str):
        machine = machine.using("bandwidth_bytes_per_s", bandwidth)
    if isinstance(peak, str):
        machine = machine.using(f"peaks.{dtype}", peak)
    share = machine.share(lnc)
    peaks = {name: Fraction(value) for name, value in share.peaks.items()}
    width = Fraction(machine.bandwidth_bytes_per_s) * share.cores / (1 if share.whole else machine.cores)
    number = not isinstance(peak, str) and peak is not None
    if number:
        assert peak is not None
        peaks[dtype] = Fraction(peak)
    wide = not isinstance(bandwidth, str) and bandwidth is not None
    if wide:
        assert bandwidth is not None
        width = Fraction(bandwidth)
    return Roof(machine, share, peaks, width, number, wide)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the roof says of a count, exact. Times in seconds, intensity and ridge in FLOPs a byte."""

    work: Number
    bytes: Number
    peak: Fraction
    bandwidth: Fraction
    kind: Literal["flops", "vector"]

    @property
    def intensity(self) -> Fraction:
        """W / Q."""
        return Fraction(self.work) / Fraction(self.bytes)

    @property
    def ridge(self) -> Fraction:
        """P / BW: the intensity at which both limits meet."""
        return self.peak / self.bandwidth

    @property
    def t_compute(self) -> Fraction:
        """W / P."""
        return Fraction(self.work) / self.peak

    @property
    def t_memory(self) -> Fraction:
        """Q / BW."""
        return Fraction(self.bytes) / self.bandwidth

    @property
    def t_lower(self) -> Fraction:
        """Both at once."""
        return max(self.t_compute, self.t_memory)

    @property
    def t_upper(self) -> Fraction:
        """One after the other."""
        return self.t_compute + self.t_memory

    @property
    def bound(self) -> Literal["compute", "memory"]:
        """Which limit is the nearer one: compute from the ridge on."""
        return "compute" if self.intensity >= self.ridge else "memory"


def bounds(numbers: Numbers, over: Roof) -> Bounds:
    """The bounds of a count under a roof. Raises InputError where nothing is computed or nothing moves."""
    work, moved = numbers.work_flops * numbers.cores, numbers.bytes * numbers.cores
    if not work or not moved:
        what = "computes nothing" if not work else "moves no bytes"
        raise InputError(f"this variant {what}: it has no intensity", hint="check its stages and its memory table")
    kind: Literal["flops", "vector"] = "flops" if numbers.kind == "flops" else "vector"
    times = [Fraction(flops) * numbers.cores / over.peak(dtype, kind) for dtype, flops in numbers.work.items() if flops]
    return Bounds(work, moved, Fraction(work) / sum(times), over.bandwidth, kind)
