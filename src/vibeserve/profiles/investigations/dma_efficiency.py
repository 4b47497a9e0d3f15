"""Small or slow DMA transfers: the gap between the time DMA was busy and the time its bytes need at peak bandwidth."""

from __future__ import annotations

from vibeserve.profiles import window
from vibeserve.profiles.bounds import Bounds
from vibeserve.profiles.investigations import shared
from vibeserve.profiles.investigations.finding import Finding, Line, could_not
from vibeserve.profiles.profile import Profile

NAME = "dma_efficiency"
GAP = "memory_bound_ideal"
ORDER = 1
_EFFICIENT = 0.05  # a gap under 5 % of the busy time: transfers are fine
_GOOD_DESCRIPTOR_BYTES = 4096

_GROUPS = f"""
SELECT {shared.LOCATION} AS location,
  CASE WHEN d.source LIKE '%INPUT%' OR coalesce(i.hbm_read_bytes, 0) > 0 AND coalesce(i.hbm_write_bytes, 0) = 0
    THEN 'load' ELSE 'store' END AS direction,
  mode(d.variable) AS tensor, count(*) AS transfers, sum(d.transfer_bytes) AS bytes,
  CAST(median(d.transfer_bytes) AS BIGINT) AS transfer_bytes,
  CAST(median(CASE WHEN coalesce(i.hbm_write_bytes, 0) > 0 THEN d.read_num_sbuf_partitions
    ELSE d.write_num_sbuf_partitions END) AS BIGINT) AS partitions
FROM {shared.TRIGGERED}
  AND (coalesce(i.hbm_read_bytes, 0) > 0 OR coalesce(i.hbm_write_bytes, 0) > 0)
  AND d.is_transpose_mode IS DISTINCT FROM true AND {{inside}}
GROUP BY 1, 2, d.transfer_bytes // greatest(coalesce(CASE WHEN coalesce(i.hbm_write_bytes, 0) > 0
  THEN d.read_num_sbuf_partitions ELSE d.write_num_sbuf_partitions END, 1), 1)
ORDER BY bytes DESC, location
"""


def run(profile: Profile, held: Bounds) -> Finding:
    """Quantify the gap, then group the transfers by the source line that started them, with bytes a descriptor."""
    busy, ideal = held.value("memory_bound"), held.value("memory_bound_ideal")
    if busy is None or ideal is None:
        return could_not(NAME, "dma", "no DMA packets, or the DMA's peak bandwidth is unknown")
    moved = held.inputs["dma_bytes"] or 0.0
    achieved, peak = moved / busy if busy else 0.0, held.inputs["dma_ddr_bandwidth_bytes_per_s"] or 0.0
    metrics = {
        "efficiency_gap_s": busy - ideal,
        "achieved_bytes_per_s": achieved,
        "peak_bytes_per_s": peak,
        "bytes": moved,
    }
    if busy == 0 or busy - ideal < _EFFICIENT * busy:
        reason = (
            "no DMA in the window"
            if busy == 0
            else f"the gap is {(busy - ideal) / busy:.1%} of the busy time (under 5 %)"
        )
        return Finding(NAME, "dma", True, False, reason, busy - ideal, metrics)
    missing = shared.why_no_lines(profile)
    share = shared.coverage(profile, held)
    lines = () if missing else _lines(profile, held, moved, busy - ideal)
    small = [line for line in lines if line.details["small"]]
    reason = f"achieved {achieved / 1e9:.1f} of {peak / 1e9:.1f} GB/s while busy"
    if small:
        reason += f"; {len(small)} line(s) move under {_GOOD_DESCRIPTOR_BYTES} bytes a partition"
    notes = (*((f"lines unknown: {missing}",) if missing else ()), *shared.coverage_notes(share))
    return Finding(NAME, "dma", True, True, reason, busy - ideal, metrics, lines, share, notes)


def _lines(profile: Profile, held: Bounds, moved: float, gap_s: float) -> tuple[Line, ...]:
    with window.database(profile, *shared.TABLES) as db:
        rows = db.execute(_GROUPS.format(inside=held.window.starts_in("d"))).fetchall()
    out = []
    for location, direction, tensor, transfers, size, transfer_bytes, partitions in rows:
        descriptor = transfer_bytes // partitions if partitions else transfer_bytes
        details = {
            "tensor": tensor,
            "direction": direction,
            "bytes": size,
            "share_of_bytes": size / moved if moved else None,
            "partitions": partitions,
            "descriptor_bytes": descriptor,
            "small": descriptor < _GOOD_DESCRIPTOR_BYTES,
        }
        out.append(Line(location, gap_s * size / moved if moved else None, transfers, details))
    return tuple(out)
