"""How fast the kernel could have been: three families of lower bounds, the gaps between neighbours, the bottleneck.

A bound is the time that would be left if one kind of overhead were gone and nothing else mattered. Formulas:

    memory_bound                      = time with a DMA packet in flight
    memory_bound_ideal                = kernel DMA bytes / dma_ddr_bandwidth
    memory_bound_ideal_no_reloads     = bytes of inputs and outputs / dma_ddr_bandwidth
    compute_bound                     = busy time of the Tensor Engine
    compute_bound_ideal_flops         = matmul FLOPs (bf16-adjusted) / Tensor Engine peak
    compute_bound_ideal_useful_flops  = the same without transposes
    perfect_pipeline                  = the busiest of the engines and the DMA
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from vibeserve.profiles import intervals, summary, window
from vibeserve.profiles.profile import Profile
from vibeserve.profiles.window import Window

_NEAR = 0.10  # engines within 10 % of the busiest count as bottlenecks too
_PAIRS = {
    "memory": ("total_time", "memory_bound", "memory_bound_ideal", "memory_bound_ideal_no_reloads"),
    "compute": ("total_time", "compute_bound", "compute_bound_ideal_flops", "compute_bound_ideal_useful_flops"),
    "pipeline": ("total_time", "perfect_pipeline"),
}
GAP_MEANING = {
    ("memory", "memory_bound"): "DMA idle",
    ("memory", "memory_bound_ideal"): "DMA inefficiency",
    ("memory", "memory_bound_ideal_no_reloads"): "excess traffic (reloads and spills)",
    ("compute", "compute_bound"): "Tensor Engine idle",
    ("compute", "compute_bound_ideal_flops"): "Tensor Engine underutilization",
    ("compute", "compute_bound_ideal_useful_flops"): "transposes",
    ("pipeline", "perfect_pipeline"): "serialization: engines wait for each other",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """One lower bound on the time. `value_s` is None where it cannot be had; `reason` says why."""

    family: str
    name: str
    value_s: float | None
    formula: str
    inputs: dict[str, float | None]
    speedup_if_reached: float | None = None
    reason: str = ""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        out: dict[str, Any] = {
            "family": self.family,
            "name": self.name,
            "value_s": self.value_s,
            "formula": self.formula,
            "inputs": self.inputs,
            "speedup_if_reached": self.speedup_if_reached,
        }
        return out | ({"value_s_reason": self.reason} if self.value_s is None else {})


@dataclass(frozen=True, slots=True)
class Gap:
    """The time between two neighbours of a family; `share` is of the total time."""

    family: str
    upper: str
    lower: str
    gap_s: float | None
    share: float | None
    meaning: str

    def document(self) -> dict[str, Any]:
        """As JSON."""
        out: dict[str, Any] = {
            "family": self.family,
            "from": self.upper,
            "to": self.lower,
            "gap_s": self.gap_s,
            "share": self.share,
            "meaning": self.meaning,
        }
        return out | ({"gap_s_reason": "one of its bounds cannot be had"} if self.gap_s is None else {})


@dataclass(frozen=True, slots=True)
class Bounds:
    """All bounds, gaps and engine times of one window of a profile."""

    profile: str
    window: Window
    bounds: tuple[Bound, ...]
    gaps: tuple[Gap, ...]
    engines: dict[str, float]
    bottleneck: tuple[str, ...]
    inputs: dict[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def total_time_s(self) -> float:
        """The length of the window in seconds."""
        return self.window.total_ns / 1e9

    def value(self, name: str) -> float | None:
        """A bound by name, in seconds."""
        return next((bound.value_s for bound in self.bounds if bound.name == name), None)

    def gap(self, lower: str) -> Gap:
        """The gap that ends at bound `lower`."""
        return next(gap for gap in self.gaps if gap.lower == lower)

    def reading(self) -> tuple[str, ...]:
        """In words: the total, the busiest engine, and whether its work or its waiting is the larger part."""
        total = self.total_time_s
        if not self.bottleneck or not total:
            return (f"{self.profile}: {total * 1e6:.2f} µs ({self.window.source}); no engine has a busy span",)
        shown = ", ".join(f"{name} (busy for {self.engines[name] / total:.0%})" for name in self.bottleneck)
        first = f"{self.profile}: {total * 1e6:.2f} µs ({self.window.source}); bottleneck: {shown}"
        idle = self.gap("perfect_pipeline").share
        if idle is None:
            return (first,)
        name = self.bottleneck[0]
        if idle > 0.5:
            return first, (
                f"{name} idles for {idle:.0%} of the time: serialization is the larger part. Let independent work overlap "
                f"before making {name} itself quicker."
            )
        return first, f"{name} idles for {idle:.0%} of the time: its own work is the larger part."

    def document(self) -> dict[str, Any]:
        """The JSON of `profile bounds`."""
        return {
            "profile": self.profile,
            "total_time_s": self.total_time_s,
            "window": {
                "start_ns": self.window.start_ns,
                "end_ns": self.window.end_ns,
                "pcore": self.window.pcore,
                "source": self.window.source,
            },
            "bounds": [bound.document() for bound in self.bounds],
            "gaps": [gap.document() for gap in self.gaps],
            "engines": [{"name": name, "active_s": active} for name, active in self.engines.items()],
            "bottleneck": list(self.bottleneck),
            "reading": list(self.reading()),
            "inputs": self.inputs,
            "notes": list(self.notes),
        }


def bounds(profile: Profile, span: tuple[int, int] | None = None, pcore: int | None = None) -> Bounds:
    """All bounds of a profile (or of the window `span`, ns) on one physical core; see the module for the formulas."""
    held = window.choose(profile, span, pcore)
    inputs, notes = _inputs(profile, held)
    values = _values(inputs)
    total_s = held.total_ns / 1e9
    made = tuple(_with_speedup(bound, total_s, inputs) for bound in values)
    engines = {
        key.removesuffix("_active_s"): value or 0.0 for key, value in inputs.items() if key.endswith("_active_s")
    }
    gaps = _gaps(made, total_s)
    notes += [
        f"the gap from {gap.upper} to {gap.lower} is negative: a table is partial, cores share tensors, or the kernel "
        "reads part of its inputs"
        for gap in gaps
        if gap.gap_s is not None and gap.gap_s < 0
    ]
    return Bounds(
        profile=profile.name,
        window=held,
        bounds=made,
        gaps=gaps,
        engines=engines,
        bottleneck=_bottleneck(engines),
        inputs=inputs,
        notes=tuple(notes),
    )


def _inputs(profile: Profile, held: Window) -> tuple[dict[str, float | None], list[str]]:
    """What the formulas need, and what is doubtful about it."""
    notes: list[str] = []
    metadata = profile.first("Metadata")
    out: dict[str, float | None] = {
        "dma_ddr_bandwidth_bytes_per_s": metadata.get("dma_ddr_bandwidth"),
        "tensor_peak_flops_per_s": summary.tensor_peak_flops_per_s(metadata),
    }
    if not metadata:
        notes.append("no Metadata: peaks are unknown, so the ideal bounds are too")
    if metadata.get("is_simulation") and held.whole and profile.rows("DmaPacket"):
        notes.append(
            "the total counts from the first DMA packet to the last, as on a profile of the device; the latency of `nki simulate` "
            "counts from the first instruction to the last wait, and is longer"
        )
    if out["dma_ddr_bandwidth_bytes_per_s"]:
        notes.append(
            f"the ideal memory bounds take {out['dma_ddr_bandwidth_bytes_per_s'] / 1e9:.0f} GB/s, what the DMA engines of a core can "
            "move; `vibeserve roofline` counts with a core's share of HBM, which is less where all cores are at work"
        )
    for engine, active in window.engine_active_ns(profile, held).items():
        out[f"{engine}_active_s"] = active / 1e9
    if profile.rows("DmaPacket"):
        with window.database(profile, "DmaPacket") as db:
            row = db.execute(
                f"SELECT sum(transfer_bytes) FROM DmaPacket WHERE {window.KERNEL_PACKETS} AND {held.starts_in()}"
            ).fetchone()
        out["dma_bytes"] = float(row[0] or 0) if row else 0.0
        out["dma_active_s"] = intervals.union_ns(*window.dma_spans(profile, held), held.pair) / 1e9
    else:
        out["dma_bytes"] = out["dma_active_s"] = None
        notes.append("no DmaPacket rows: captured without DGE notifications (NEURON_RT_ENABLE_DGE_NOTIFICATIONS=1)")
    out["necessary_bytes"] = _necessary_bytes(profile) if held.whole else None
    out["hardware_flops"], out["transpose_flops"] = _flops(profile, held)
    if held.pcore is not None:
        notes.append(
            f"several physical cores: core {held.pcore} alone is looked at; tensors may be shared between cores"
        )
    return out, notes


def _necessary_bytes(profile: Profile) -> float | None:
    rows = profile.table("TensorInfo", ["type", "size"]).to_pylist()
    sizes = [row["size"] or 0 for row in rows if row["type"] in ("IN", "OUT")]
    return float(sum(sizes)) if sizes else None


def _flops(profile: Profile, held: Window) -> tuple[float | None, float | None]:
    if not profile.rows("Instruction"):
        return None, None
    flops = summary.ADJUSTED_FLOPS
    with window.database(profile, "Instruction") as db:
        row = db.execute(
            f"""SELECT sum({flops}), sum({flops}) FILTER (tensor_instruction_type = 'TRANSPOSE') FROM Instruction
            WHERE lower(engine) = 'tensor' AND opcode IN {summary.MATMULS} AND {held.starts_in()}"""
        ).fetchone()
    return (float(row[0] or 0), float(row[1] or 0)) if row else (None, None)


def _values(inputs: dict[str, float | None]) -> list[Bound]:
    bandwidth, peak = inputs["dma_ddr_bandwidth_bytes_per_s"], inputs["tensor_peak_flops_per_s"]
    flops, transposes = inputs["hardware_flops"], inputs["transpose_flops"]
    useful = None if flops is None or transposes is None else flops - transposes
    pipeline = _considered(inputs)
    known = [value for value in pipeline.values() if value is not None]

    def plain(family: str, name: str, key: str, formula: str) -> Bound:
        value = inputs[key]
        return Bound(family, name, value, formula, {key: value}, reason="" if value is not None else "no DMA packets")

    def ratio(
        family: str, name: str, formula: str, over: dict[str, float | None], under: dict[str, float | None]
    ) -> Bound:
        (top_name, top), (low_name, low) = next(iter(over.items())), next(iter(under.items()))
        value = top / low if top is not None and low else None
        reason = "" if value is not None else f"{top_name if top is None else low_name} is unknown"
        return Bound(family, name, value, formula, {**over, **under}, reason=reason)

    dma = {"dma_ddr_bandwidth_bytes_per_s": bandwidth}
    tensor = {"tensor_peak_flops_per_s": peak}
    return [
        plain("memory", "memory_bound", "dma_active_s", "union of all DMA packets"),
        ratio("memory", "memory_bound_ideal", "dma_bytes / dma_bandwidth", {"dma_bytes": inputs["dma_bytes"]}, dma),
        ratio(
            "memory",
            "memory_bound_ideal_no_reloads",
            "necessary_bytes / dma_bandwidth",
            {"necessary_bytes": inputs["necessary_bytes"]},
            dma,
        ),
        plain("compute", "compute_bound", "tensor_active_s", "union of the Tensor Engine's busy spans"),
        ratio("compute", "compute_bound_ideal_flops", "flops / tensor_peak", {"hardware_flops": flops}, tensor),
        ratio(
            "compute",
            "compute_bound_ideal_useful_flops",
            "(flops - transpose_flops) / tensor_peak",
            {"useful_flops": useful},
            tensor,
        ),
        Bound(
            "pipeline",
            "perfect_pipeline",
            max(known) if known else None,
            f"max of the busy times of {', '.join(pipeline)}",
            {f"{name}_active_s": value for name, value in pipeline.items()},
            reason="" if known else "no engine has a busy span",
        ),
    ]


def _considered(inputs: dict[str, float | None]) -> dict[str, float | None]:
    """Busy time of every engine that can be the bottleneck: all but Sync."""
    held = {key.removesuffix("_active_s"): value for key, value in inputs.items() if key.endswith("_active_s")}
    return {name: value for name, value in held.items() if name != "sync"}


def _with_speedup(bound: Bound, total_s: float, inputs: dict[str, float | None]) -> Bound:
    """The speed-up if only this bound's engine were improved, the others as they are: total / max(bound, others)."""
    if bound.value_s is None:
        return bound
    improved = {"memory": {"dma"}, "compute": {"tensor"}, "pipeline": set()}[bound.family]
    others = [value or 0.0 for name, value in _considered(inputs).items() if name not in improved]
    floor = max([bound.value_s, *others])
    speedup = total_s / floor if floor else None
    return Bound(bound.family, bound.name, bound.value_s, bound.formula, bound.inputs, speedup, bound.reason)


def _gaps(made: tuple[Bound, ...], total_s: float) -> tuple[Gap, ...]:
    values: dict[str, float | None] = {bound.name: bound.value_s for bound in made}
    values["total_time"] = total_s
    out = []
    for family, chain in _PAIRS.items():
        for upper, lower in pairwise(chain):
            above, below = values[upper], values[lower]
            gap = above - below if above is not None and below is not None else None
            share = gap / total_s if gap is not None and total_s else None
            out.append(Gap(family, upper, lower, gap, share, GAP_MEANING[family, lower]))
    return tuple(out)


def _bottleneck(engines: dict[str, float]) -> tuple[str, ...]:
    """The busiest engine, and those within 10 % of it; Sync is not considered."""
    considered = {name: active for name, active in engines.items() if name != "sync"}
    most = max(considered.values())
    if most <= 0:
        return ()
    near = [name for name, active in considered.items() if active >= most * (1 - _NEAR)]
    return tuple(sorted(near, key=lambda name: -considered[name]))
