"""Experimental: how much of the matmuls' late starts follows a DMA that ended last before them.

The excess of a matmul is its start-to-start interval beyond the N / clock cycles that streaming N columns takes. It is
booked to the row (by Flow) that ended last before the matmul began. No cause of idle time is claimed: an order in time is
reported, nothing more.
"""

from __future__ import annotations

from itertools import pairwise

from vibeserve.profiles import window
from vibeserve.profiles.bounds import Bounds
from vibeserve.profiles.investigations.finding import Finding, Line, could_not
from vibeserve.profiles.investigations.te_inefficiency import decode_tile
from vibeserve.profiles.profile import Profile

NAME = "te_dma_pipelining"
GAP = "compute_bound"
ORDER = 5

_PREDECESSOR = """
SELECT m.id, arg_max(p.kind, p.end_ts) FROM matmul m JOIN Flow f ON f.out_id = m.id AND f.out_table = 'Instruction'
JOIN (
  SELECT id, end_ts, 'Instruction' AS source, lower(engine) AS kind FROM Instruction
  UNION ALL SELECT id, end_ts, 'DmaPacketAggregated', 'dma' FROM DmaPacketAggregated
) p ON f.in_id = p.id AND f.in_table = p.source AND p.end_ts <= m.start_ts
GROUP BY 1
"""


def run(profile: Profile, held: Bounds) -> Finding:
    """Sum the excess intervals of regular matmuls, and the part whose last-finishing predecessor is a DMA."""
    clock_ghz = profile.number("Metadata", "tensor_engine_clock_freq")
    if not profile.rows("Instruction") or not clock_ghz:
        return could_not(NAME, "tensor", "no Instruction rows, or the Tensor Engine's clock is unknown")
    if not profile.rows("Flow"):
        return could_not(NAME, "tensor", "no Flow rows: what a matmul waited for is unknown")
    where = (
        "lower(engine) = 'tensor' AND opcode = 'MATMUL' AND coalesce(tensor_instruction_type, 'REGULAR') <> 'TRANSPOSE' "
        f"AND {held.window.starts_in()}"
    )
    with window.database(profile, "Instruction", "Flow", "DmaPacketAggregated") as db:
        rows = db.execute(
            f"SELECT id, start_ts, operands, nullif(bir_debug_info_source_location, '') FROM Instruction WHERE {where} ORDER BY 2"
        ).fetchall()
        db.execute(f"CREATE TEMP TABLE matmul AS SELECT id, start_ts FROM Instruction WHERE {where}")
        last = dict(db.execute(_PREDECESSOR).fetchall())
    if len(rows) < 2:
        return Finding(NAME, "tensor", True, False, "fewer than two regular matmuls", 0.0, experimental=True)
    excess, by_dma = 0.0, 0.0
    per_line: dict[str | None, list[float]] = {}
    for before, row in pairwise(rows):
        tile = decode_tile(row[2] or "")
        late = max(0.0, row[1] - before[1] - (tile[2] if tile else 512) / clock_ghz)
        excess += late
        if last.get(row[0]) == "dma":
            by_dma += late
            held_line = per_line.setdefault(row[3], [0, 0.0])
            held_line[0] += 1
            held_line[1] += late
    lines = tuple(
        Line(where_, cost / 1e9, int(count))
        for where_, (count, cost) in sorted(per_line.items(), key=lambda item: -item[1][1])
    )
    metrics = {"matmuls": len(rows), "excess_s": excess / 1e9, "after_dma_s": by_dma / 1e9}
    reason = f"{by_dma / 1e3:.1f} of {excess / 1e3:.1f} µs of late starts follow a DMA that ended last"
    return Finding(
        NAME,
        "tensor",
        True,
        by_dma > 0.05 * held.window.total_ns,
        reason,
        by_dma / 1e9,
        metrics,
        lines,
        experimental=True,
    )
