"""Transposes on the Tensor Engine: FLOPs that only move data."""

from __future__ import annotations

from vibeserve.profiles import summary, window
from vibeserve.profiles.bounds import Bounds
from vibeserve.profiles.investigations.finding import Finding, Line, could_not
from vibeserve.profiles.profile import Profile

NAME = "redundant_te_transposes"
GAP = "compute_bound_ideal_useful_flops"
ORDER = 3


def run(profile: Profile, held: Bounds) -> Finding:
    """Quantify transpose FLOPs at the peak rate (the least that they can cost) and group them by source line."""
    total, transposed = held.inputs["hardware_flops"], held.inputs["transpose_flops"]
    if total is None or transposed is None:
        return could_not(NAME, "tensor", "no Instruction rows")
    peak = held.inputs["tensor_peak_flops_per_s"]
    if transposed == 0:
        reason = "no transpose on the Tensor Engine" if total else "no matmul in the window"
        return Finding(NAME, "tensor", True, False, reason, 0.0, {"hardware_flops": total, "transpose_flops": 0.0})
    flops = summary.ADJUSTED_FLOPS
    location = "nullif(bir_debug_info_source_location, '')"
    with window.database(profile, "Instruction") as db:
        rows = db.execute(
            f"""SELECT {location}, count(*), sum({flops}) FROM Instruction
            WHERE lower(engine) = 'tensor' AND opcode IN {summary.MATMULS} AND tensor_instruction_type = 'TRANSPOSE'
              AND {held.window.starts_in()} GROUP BY 1 ORDER BY 3 DESC, 1"""
        ).fetchall()
    lines = tuple(
        Line(where, size / peak if peak else None, count, {"flops": size, "share": size / transposed})
        for where, count, size in rows
    )
    count = sum(line.count for line in lines)
    metrics = {
        "hardware_flops": total,
        "transpose_flops": transposed,
        "transpose_share": transposed / total,
        "transposes": count,
    }
    reason = f"{count} transposes make {transposed / total:.1%} of the Tensor Engine's FLOPs"
    notes = ("priced at the peak rate: small tiles, PSUM copies and waiting come on top",)
    return Finding(NAME, "tensor", True, True, reason, transposed / peak if peak else None, metrics, lines, None, notes)
