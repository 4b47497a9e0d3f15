"""Bytes that moved more often than they had to: tensors loaded again, and spills from SBUF to HBM and back."""

from __future__ import annotations

from typing import Any

from vibeserve.profiles import window
from vibeserve.profiles.bounds import Bounds
from vibeserve.profiles.investigations import shared
from vibeserve.profiles.investigations.finding import Finding, Line, could_not
from vibeserve.profiles.profile import Profile

NAME = "redundant_dma_transfers"
GAP = "memory_bound_ideal_no_reloads"
ORDER = 2
_REPEATED = 1.5


def run(profile: Profile, held: Bounds) -> Finding:
    """Compare bytes moved with bytes needed, split the excess into reloads and spills, name the lines of each."""
    moved, needed = held.inputs["dma_bytes"], held.inputs["necessary_bytes"]
    if moved is None:
        return could_not(NAME, "dma", "no DMA packets")
    if needed is None:
        why = "no TensorInfo sizes" if held.window.whole else "within a window the bytes needed are not defined"
        return could_not(NAME, "dma", why)
    bandwidth = held.inputs["dma_ddr_bandwidth_bytes_per_s"]
    excess = moved - needed
    metrics: dict[str, Any] = {
        "dma_bytes": moved,
        "necessary_bytes": needed,
        "excess_bytes": excess,
        "excess_ratio": moved / needed if needed else None,
    }
    cost = excess / bandwidth if bandwidth else None
    missing = shared.why_no_lines(profile)
    share = shared.coverage(profile, held)
    notes = list(shared.coverage_notes(share))
    if excess <= 0:
        if excess < 0:
            notes.append(
                "fewer bytes moved than the tensors hold: the kernel reads part of its inputs, or rows are missing"
            )
        reason = f"{moved:.0f} bytes moved, {needed:.0f} needed: no excess"
        return Finding(NAME, "dma", True, False, reason, cost, metrics, (), share, tuple(notes))
    lines: tuple[Line, ...] = ()
    if profile.rows("DmaPacketAggregated"):
        tensors = _tensors(profile, held)
        metrics |= _split(profile, held, tensors, excess)
        metrics["tensors"] = tensors
    if missing:
        notes.append(f"lines unknown: {missing}")
    else:
        repeats = {row["tensor"]: row["repeat"] for row in metrics.get("tensors", [])}
        lines = (*_reload_lines(profile, held, bandwidth, repeats), *_spill_lines(profile, held, bandwidth))
    reason = f"{moved / 1e6:.2f} MB moved where {needed / 1e6:.2f} MB are needed ({moved / needed:.2f} times)"
    return Finding(NAME, "dma", True, True, reason, cost, metrics, lines, share, tuple(notes))


def _tensors(profile: Profile, held: Bounds) -> list[dict[str, Any]]:
    with window.database(profile, *shared.TABLES) as db:
        rows = db.execute(
            f"""SELECT t.variable_name, t.type, t.size, sum(d.transfer_bytes) FROM DmaPacketAggregated d
            JOIN TensorInfo t ON d.variable = t.variable_name
            WHERE t.size > 0 AND coalesce(t.variable_name, '') <> '' AND {held.window.starts_in("d")}
            GROUP BY 1, 2, 3 ORDER BY 4 DESC"""
        ).fetchall()
    return [
        {
            "tensor": name,
            "type": kind,
            "size_bytes": size,
            "transferred_bytes": total,
            "repeat": total / size,
            "flag": total / size > _REPEATED,
        }
        for name, kind, size, total in rows
    ]


def _split(profile: Profile, held: Bounds, tensors: list[dict[str, Any]], excess: float) -> dict[str, Any]:
    with window.database(profile, "DmaPacketAggregated") as db:
        row = db.execute(
            f"""SELECT sum(transfer_bytes) FILTER (dest LIKE '%VIRTUAL%'), sum(transfer_bytes) FILTER (source LIKE '%VIRTUAL%')
            FROM DmaPacketAggregated WHERE {held.window.starts_in()}"""
        ).fetchone()
    saved, reloaded = (row[0] or 0, row[1] or 0) if row else (0, 0)
    reload_excess = sum(
        item["transferred_bytes"] - item["size_bytes"]
        for item in tensors
        if item["type"] == "IN" and item["repeat"] > 1
    )
    return {
        "reload_excess_bytes": reload_excess,
        "spill_bytes": saved + reloaded,
        "spill_save_bytes": saved,
        "spill_reload_bytes": reloaded,
        "reload_share": reload_excess / excess,
        "spill_share": (saved + reloaded) / excess,
    }


def _reload_lines(
    profile: Profile, held: Bounds, bandwidth: float | None, repeats: dict[str, float]
) -> tuple[Line, ...]:
    with window.database(profile, *shared.TABLES) as db:
        rows = db.execute(
            f"""SELECT {shared.LOCATION}, d.variable, count(*), sum(d.transfer_bytes) FROM {shared.TRIGGERED}
            AND coalesce(i.hbm_read_bytes, 0) > 0 AND d.source = '[[INPUT]]' AND {held.window.starts_in("d")}
            GROUP BY 1, 2 ORDER BY 4 DESC, 1"""
        ).fetchall()
    out = []
    for location, tensor, count, size in rows:
        repeat = repeats.get(tensor, 1.0)
        extra = size * (1 - 1 / repeat) if repeat > 1 else 0.0
        if extra <= 0:
            continue
        details = {"kind": "reload", "tensor": tensor, "bytes": size, "repeat": repeat, "excess_bytes": extra}
        out.append(Line(location, extra / bandwidth if bandwidth else None, count, details))
    return tuple(out)


def _spill_lines(profile: Profile, held: Bounds, bandwidth: float | None) -> tuple[Line, ...]:
    """The line whose result was evicted; a reload is counted twice (save and reload of the same bytes)."""
    with window.database(profile, *shared.TABLES) as db:
        rows = db.execute(
            f"""SELECT {shared.LOCATION}, count(*), sum(d.transfer_bytes) FROM {shared.TRIGGERED}
            AND d.source LIKE '%VIRTUAL%' AND {held.window.starts_in("d")} GROUP BY 1 ORDER BY 3 DESC, 1"""
        ).fetchall()
    return tuple(
        Line(location, 2 * size / bandwidth if bandwidth else None, count, {"kind": "spill", "bytes": 2 * size})
        for location, count, size in rows
    )
