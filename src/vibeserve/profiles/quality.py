"""Is the profile good enough for the question? Which tables are empty, how much names its source line, what to set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vibeserve.profiles import intervals, schema, summary, window
from vibeserve.profiles.profile import Profile

RECAPTURE = (
    "set XLA_IR_DEBUG=1 XLA_HLO_DEBUG=1 NEURON_FRAMEWORK_DEBUG=1 before the first neuron import, run the kernel again, then "
    "NEURON_RT_ENABLE_DGE_NOTIFICATIONS=1 neuron-explorer capture -n KERNEL.neff -s profile.ntff --profile-nth-exec=2"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know before believing the rest. `ok` None means that it could not be looked at."""

    name: str
    ok: bool | None
    detail: str
    fix: str = ""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"name": self.name, "ok": self.ok, "detail": self.detail, "fix": self.fix}


def quality(profile: Profile) -> list[Finding]:
    """Everything that is checked, in order of importance."""
    found = [_empty_tables(profile), _dma_packets(profile), _attribution(profile), _coverage(profile)]
    found += [_merge_agrees(profile), _throttling(profile)]
    found += [Finding("ingest warning", False, str(row["message"])) for row in _warnings(profile)]
    return found


def _empty_tables(profile: Profile) -> Finding:
    core = [name for name, table in schema.tables().items() if table.core and name not in ("SchemaFields", "Warning")]
    empty = [name for name in core if not profile.rows(name)]
    needed = [name for name in empty if name in ("Instruction", "ActiveTime", "DmaPacket", "Metadata", "TensorInfo")]
    detail = f"empty or missing: {', '.join(empty)}" if empty else "every core table has rows"
    return Finding("tables", not needed, detail, RECAPTURE if needed else "")


def _dma_packets(profile: Profile) -> Finding:
    count = profile.rows("DmaPacket")
    if count:
        return Finding("DMA packets", True, f"{count} rows")
    return Finding("DMA packets", False, "DmaPacket is empty: captured without DGE notifications", RECAPTURE)


def _attribution(profile: Profile) -> Finding:
    total = profile.rows("Instruction")
    if not total:
        return Finding("source lines", None, "no Instruction rows")
    with window.database(profile, "Instruction") as db:
        row = db.execute(
            "SELECT count(*) FILTER (coalesce(bir_debug_info_source_location, '') <> '') FROM Instruction"
            if "bir_debug_info_source_location" in profile.columns_of("Instruction")
            else "SELECT 0"
        ).fetchone()
    named = row[0] if row else 0
    detail = f"{named} of {total} instructions name their source line ({named / total:.0%})"
    return Finding("source lines", named > 0, detail, "" if named else RECAPTURE)


def _coverage(profile: Profile) -> Finding:
    if not profile.rows("DmaPacketAggregated"):
        return Finding(
            "DMA attribution", False, "DmaPacketAggregated is empty: no transfer can be tied to a line", RECAPTURE
        )
    if not profile.rows("DmaPacket"):
        return Finding("DMA attribution", None, "no DmaPacket rows to compare with")
    with window.database(profile, "DmaPacket", "DmaPacketAggregated") as db:
        row = db.execute(
            f"""SELECT (SELECT sum(transfer_bytes) FROM DmaPacketAggregated),
              (SELECT sum(transfer_bytes) FROM DmaPacket WHERE {window.KERNEL_PACKETS})"""
        ).fetchone()
    aggregated, packets = (row[0] or 0, row[1] or 0) if row else (0, 0)
    if not packets:
        return Finding("DMA attribution", None, "no kernel packets")
    share = aggregated / packets
    ok = 0.95 <= share <= 1.05
    return Finding("DMA attribution", ok, f"aggregated transfers carry {share:.1%} of the packets' bytes")


def _merge_agrees(profile: Profile) -> Finding:
    stated = profile.number("Summary", "dma_active_time")
    if stated is None or not profile.rows("DmaPacket"):
        return Finding("DMA time agrees with Summary", None, "no Summary.dma_active_time or no packets to compare")
    merged = intervals.union_ns(*profile.spans("DmaPacket")) / 1e9
    ok = abs(merged - stated) <= max(20e-9, stated * 1e-3)
    return Finding(
        "DMA time agrees with Summary", ok, f"packets cover {merged * 1e6:.3f} µs, Summary says {stated * 1e6:.3f} µs"
    )


def _throttling(profile: Profile) -> Finding:
    rows = [row for row in profile.table("Throttle", ["duration", "k", "n", "type"]).to_pylist() if row["k"] < row["n"]]
    limited = sum(row["duration"] or 0 for row in rows)
    if not rows:
        return Finding("throttling", True, "no throttled span")
    causes = ", ".join(sorted({str(row["type"]) for row in rows}))
    total = summary.metrics(profile).get("total_time")
    share = f" ({limited / 1e9 / total:.1%} of the run)" if total else ""
    return Finding("throttling", False, f"throttled for {limited / 1e3:.2f} µs{share} by {causes}")


def _warnings(profile: Profile) -> list[dict[str, Any]]:
    table = profile.table("Warning")
    return [row for row in table.to_pylist() if row.get("message")] if table.num_rows else []
