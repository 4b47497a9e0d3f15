"""A Tensor Engine that is busy below its peak: small tiles, by source line and tile size K × M × N."""

from __future__ import annotations

import re
from collections import defaultdict

from vibeserve.profiles import summary, window
from vibeserve.profiles.bounds import Bounds
from vibeserve.profiles.investigations.finding import Finding, Line, could_not
from vibeserve.profiles.profile import Profile

NAME = "te_inefficiency"
GAP = "compute_bound_ideal_flops"
ORDER = 4
FULL_TILE = (128, 128, 512)
_KM = re.compile(r"([0-9]+)\*([0-9]+)\s*\Z")
_COUNTS = re.compile(r"\bsrc=[^\[\s]+\[[^\]]*\]\[([0-9,]+)\]")


def decode_tile(operands: str) -> tuple[int, int, int] | None:
    """(K, M, N) of a MATMUL from its printed operands, or None where the text is not of the known form."""
    km, counts = _KM.search(operands), _COUNTS.search(operands)
    if km is None or counts is None:
        return None
    moving = 1
    for count in counts.group(1).split(","):
        moving *= int(count) if count else 1
    return int(km.group(1)), int(km.group(2)), moving


def run(profile: Profile, held: Bounds) -> Finding:
    """Quantify achieved against peak FLOP/s while busy, and group matmuls by line and tile size."""
    busy, ideal = held.value("compute_bound"), held.value("compute_bound_ideal_flops")
    flops, peak = held.inputs["hardware_flops"], held.inputs["tensor_peak_flops_per_s"]
    if busy is None or ideal is None or flops is None or peak is None:
        return could_not(NAME, "tensor", "no Instruction rows, or the Tensor Engine's peak is unknown")
    if busy == 0:
        return Finding(NAME, "tensor", True, False, "the Tensor Engine did nothing", 0.0)
    lines, unknown = _lines(profile, held, flops)
    small = [line for line in lines if line.details["undersized"]]
    metrics = {
        "achieved_flops_per_s": flops / busy,
        "peak_flops_per_s": peak,
        "utilization": flops / busy / peak,
        "undersized_flops_share": sum(line.details["flops"] for line in small) / flops if flops else 0.0,
        "undecoded": unknown,
    }
    found = busy - ideal > 0.05 * busy
    reason = f"{flops / busy / 1e12:.2f} of {peak / 1e12:.2f} TFLOP/s while busy ({flops / busy / peak:.1%})"
    if found and not small and lines:
        reason += "; every tile is full, so what is left is pipelining, weight loads, late data or throttling"
    notes = (f"{unknown} matmuls have operands that could not be decoded",) if unknown else ()
    return Finding(NAME, "tensor", True, found, reason, busy - ideal, metrics, lines, None, notes)


def _lines(profile: Profile, held: Bounds, total: float) -> tuple[tuple[Line, ...], int]:
    flops = summary.ADJUSTED_FLOPS
    location = "nullif(bir_debug_info_source_location, '')"
    # The tile is in the part of the text after the addresses' prefix; distinct texts are few once addresses are cut off.
    shape = r"regexp_extract(operands, 'src=[^\[\s]+(\[[^\]]*\]\[[0-9,]+\])', 1)"
    size = r"regexp_extract(operands, '([0-9]+\*[0-9]+)\s*$', 1)"
    with window.database(profile, "Instruction") as db:
        rows = db.execute(
            f"""SELECT {location}, {shape}, {size}, count(*), sum({flops}) FROM Instruction
            WHERE lower(engine) = 'tensor' AND opcode IN {summary.MATMULS} AND {held.window.starts_in()}
            GROUP BY 1, 2, 3"""
        ).fetchall()
    groups: dict[tuple[str | None, tuple[int, int, int]], list[float]] = defaultdict(lambda: [0, 0.0])
    unknown = 0
    for where, counts, km, count, done in rows:
        tile = decode_tile(f"src=x{counts} {km}") if counts and km else None
        if tile is None:
            unknown += count
            continue
        groups[where, tile][0] += count
        groups[where, tile][1] += done or 0.0
    peak = held.inputs["tensor_peak_flops_per_s"] or 1.0
    lines = [
        Line(
            where,
            done / peak * (1 / _fill(tile) - 1),
            int(count),
            {
                "k": tile[0],
                "m": tile[1],
                "n": tile[2],
                "flops": done,
                "share": done / total if total else 0.0,
                "undersized": any(have < full for have, full in zip(tile, FULL_TILE, strict=True)),
            },
        )
        for (where, tile), (count, done) in groups.items()
    ]
    return tuple(sorted(lines, key=lambda line: (-line.details["flops"], line.location or ""))), unknown


def _fill(tile: tuple[int, int, int]) -> float:
    """Which share of the array's rows and columns a tile uses (K/128 · M/128, each at most 1)."""
    return min(1.0, tile[0] / 128) * min(1.0, tile[1] / 128)
