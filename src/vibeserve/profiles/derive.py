"""Tables that follow from others: ActiveTime, OpcodeSummary, Summary and SchemaFields, where a profile lacks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vibeserve.profiles import intervals, schema, summary
from vibeserve.profiles.profile import Profile

if TYPE_CHECKING:
    import pyarrow as pa


def missing_tables(profile: Profile) -> dict[str, pa.Table]:
    """What can be derived and is not there, by name."""
    added: dict[str, pa.Table] = {}
    if not profile.has("SchemaFields"):
        added["SchemaFields"] = schema.schema_fields()
    if profile.rows("Instruction"):
        if not profile.rows("ActiveTime"):
            added["ActiveTime"] = _active_time(profile)
        if not profile.rows("OpcodeSummary"):
            added["OpcodeSummary"] = _opcode_summary(profile)
    if not profile.rows("Summary") and (profile.rows("Instruction") or profile.rows("DmaPacket")):
        held = Profile(profile.name, {**profile.tables, **added}, profile.directory, profile.info)
        columns = {key: [value] for key, value in summary.compute(held).items()}
        added["Summary"] = schema.build("Summary", columns, rows=1)
    return added


def _active_time(profile: Profile) -> pa.Table:
    """Merged busy spans by engine and physical core, pure waits left out."""
    import numpy as np
    import pyarrow as pa

    with profile.connect(["Instruction"]) as db:
        groups = db.execute(
            "SELECT DISTINCT engine, coalesce(pcore_idx, 0) FROM Instruction WHERE engine IS NOT NULL ORDER BY 1, 2"
        ).fetchall()
    parts = []
    for engine, core in groups:
        busy = f"engine = {_quoted(engine)} AND coalesce(pcore_idx, 0) = {core} AND opcode <> 'EVENT_SEMAPHORE'"
        starts, ends = intervals.merge(*profile.spans("Instruction", busy))
        columns = {
            "start_ts": starts,
            "end_ts": ends,
            "engine": [engine.lower()] * len(starts),
            "pcore_idx": np.full(len(starts), core),
            "duration_ns": ends - starts,
        }
        parts.append(schema.build("ActiveTime", columns, rows=len(starts)))
    return pa.concat_tables(parts) if parts else schema.build("ActiveTime", {}, rows=0)


def _opcode_summary(profile: Profile) -> pa.Table:
    """Totals by engine and opcode: rows, plain sum of durations, merged time and its share of the run."""
    with profile.connect(["Instruction"]) as db:
        rows = db.execute(
            """SELECT engine, opcode, count(*), sum(duration_ns) FROM Instruction
            WHERE engine IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2"""
        ).fetchall()
    total_s = summary.total_time_s(profile)
    merged = [
        intervals.union_ns(*profile.spans("Instruction", f"engine = {_quoted(engine)} AND opcode = {_quoted(opcode)}"))
        for engine, opcode, _, _ in rows
    ]
    return schema.build(
        "OpcodeSummary",
        {
            "engine": [row[0] for row in rows],
            "opcode": [row[1] for row in rows],
            "instruction_count": [row[2] for row in rows],
            "instruction_time_ns": [int(row[3] or 0) for row in rows],
            "active_time_ns": merged,
            "active_time_percent": [busy / 1e9 / total_s if total_s else None for busy in merged],
        },
        rows=len(rows),
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
