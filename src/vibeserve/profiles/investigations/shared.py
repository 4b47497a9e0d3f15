"""What the DMA investigations share: instructions joined to the transfers that they triggered."""

from __future__ import annotations

from vibeserve.profiles import window
from vibeserve.profiles.bounds import Bounds
from vibeserve.profiles.profile import Profile

# Instruction rows with the aggregated transfers that they triggered.
TRIGGERED = """Flow f
  JOIN Instruction i ON f.in_id = i.id
  JOIN DmaPacketAggregated d ON f.out_id = d.id
  WHERE f.in_table = 'Instruction' AND f.out_table = 'DmaPacketAggregated'"""
LOCATION = "nullif(i.bir_debug_info_source_location, '')"
TABLES = ("Instruction", "DmaPacketAggregated", "DmaPacket", "Flow", "TensorInfo")


def coverage(profile: Profile, held: Bounds) -> float | None:
    """Which share of the kernel packets' bytes the aggregated transfers carry; None where it cannot be said."""
    if not profile.rows("DmaPacketAggregated") or not held.inputs.get("dma_bytes"):
        return None
    with window.database(profile, "DmaPacketAggregated") as db:
        row = db.execute(
            f"SELECT sum(transfer_bytes) FROM DmaPacketAggregated WHERE {held.window.starts_in()}"
        ).fetchone()
    return float(row[0] or 0) / float(held.inputs["dma_bytes"] or 1) if row else None


def coverage_notes(share: float | None) -> tuple[str, ...]:
    """What to say of incomplete attribution."""
    if share is None:
        return ()
    if share < 0.95:
        return (f"aggregated transfers carry {share:.1%} of the bytes: the lines below leave {1 - share:.1%} out",)
    if share > 1.0001:
        return (f"aggregated transfers carry {share:.1%} of the packets' bytes: the packet table is the partial one",)
    return ()


def why_no_lines(profile: Profile) -> str:
    """Why no source line can be named, or ''."""
    if not profile.rows("DmaPacketAggregated"):
        return "no DmaPacketAggregated rows (capture with NEURON_RT_ENABLE_DGE_NOTIFICATIONS=1)"
    if not profile.rows("Flow"):
        return "no Flow rows tie transfers to instructions"
    return ""
