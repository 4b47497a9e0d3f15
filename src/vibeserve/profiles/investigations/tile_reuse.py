"""Experimental: instructions that had their data and their engine, and waited only until their destination was free.

One buffer used by every iteration of a loop puts the iterations in a row: the next load may not begin before the last reader
of the buffer has ended. Edges of kind ANTI (it writes what that read) and OUTPUT (both write) in Flow say so. A wait goes
from the moment when everything else was there (what is read, what was ordered, the engine's instruction before) to the end of
the last reader or writer of the destination. Waits of several engines overlap: the cost is their union, not their sum.
"""

from __future__ import annotations

from collections import defaultdict

from vibeserve.profiles import intervals, window
from vibeserve.profiles.bounds import Bounds
from vibeserve.profiles.investigations.finding import Finding, Line, could_not
from vibeserve.profiles.profile import Profile

NAME = "tile_reuse"
GAP = "perfect_pipeline"
ORDER = 6
SHARE = 0.05  # of the window, from which on the waits count as found

_WAITS = """
WITH step AS (
  SELECT id, start_ts, lower(engine) AS engine, nullif(bir_debug_info_source_location, '') AS place,
    max(end_ts) OVER (PARTITION BY engine, pcore_idx ORDER BY start_ts, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM Instruction WHERE {core}
), row_ AS (
  SELECT id, end_ts, 'Instruction' AS source, nullif(bir_debug_info_source_location, '') AS place FROM Instruction
  UNION ALL SELECT id, end_ts, 'DmaPacketAggregated', NULL FROM DmaPacketAggregated
), edge AS (
  SELECT f.out_id AS id, r.end_ts, coalesce(r.place, trigger.place) AS place,
    regexp_matches(upper(coalesce(f.dependency_type, '')), '^(ANTI|OUTPUT)') AS reuse
  FROM Flow f JOIN row_ r ON f.in_id = r.id AND f.in_table = r.source
  LEFT JOIN (SELECT t.out_id, i.place FROM Flow t JOIN row_ i ON i.id = t.in_id AND i.source = 'Instruction'
    WHERE t.in_table = 'Instruction' AND t.out_table = 'DmaPacketAggregated') trigger
    ON f.in_table = 'DmaPacketAggregated' AND trigger.out_id = f.in_id
  WHERE f.out_table = 'Instruction'
), ready AS (
  SELECT id, max(end_ts) FILTER (NOT reuse) AS data, max(end_ts) FILTER (reuse) AS free,
    arg_max(place, end_ts) FILTER (reuse) AS user_
  FROM edge GROUP BY id
)
SELECT s.engine, s.place, r.user_, greatest(coalesce(r.data, {start}), coalesce(s.before, {start}), {start}) AS since,
  least(s.start_ts, r.free) AS until
FROM step s JOIN ready r USING (id)
WHERE s.start_ts < {end} AND until > since
"""


def run(profile: Profile, held: Bounds) -> Finding:
    """Find the waits, their union, and the lines that waited with the lines that they waited for."""
    if not profile.rows("Instruction"):
        return could_not(NAME, "dma", "no Instruction rows")
    if not profile.rows("Flow"):
        return could_not(NAME, "dma", "no Flow rows: what an instruction waited for is unknown")
    with window.database(profile, "Instruction", "Flow", "DmaPacketAggregated") as db:
        kinds = db.execute(
            "SELECT count(*) FROM Flow WHERE regexp_matches(upper(coalesce(dependency_type, '')), '^(ANTI|OUTPUT|FLOW)')"
        ).fetchone()
        if not kinds or not kinds[0]:
            return could_not(NAME, "dma", "the Flow rows do not say which kind of dependency they are")
        query = _WAITS.format(core=held.window.on_core(), start=held.window.start_ns, end=held.window.end_ns)
        rows = db.execute(query).fetchall()
        triggers = {
            name
            for (name,) in db.execute(
                "SELECT DISTINCT lower(i.engine) FROM Flow f JOIN Instruction i ON f.in_id = i.id "
                "WHERE f.in_table = 'Instruction' AND f.out_table = 'DmaPacketAggregated'"
            ).fetchall()
        }
    spans: dict[tuple[str | None, str | None], list[tuple[int, int]]] = defaultdict(list)
    by_engine: dict[str, int] = defaultdict(int)
    for engine, place, user, since, until in rows:
        spans[place, user].append((since, until))
        by_engine["dma" if engine in triggers else engine] += until - since
    cost = _union([span for group in spans.values() for span in group])
    lines = [
        Line(place, _union(group) / 1e9, len(group), {"waited_for": user})
        for (place, user), group in spans.items()
    ]  # fmt: skip
    lines.sort(key=lambda line: -(line.cost_s or 0.0))
    found = cost > SHARE * held.window.total_ns
    share = cost / max(1, held.window.total_ns)
    reason = f"for {cost / 1e3:.1f} µs ({share:.0%}) an instruction waited for nothing but a destination still in use"
    return Finding(
        NAME,
        max(by_engine, key=lambda name: by_engine[name], default="dma"),
        True,
        found,
        reason,
        cost / 1e9,
        {"waits": len(rows), **{f"{name}_wait_s": value / 1e9 for name, value in sorted(by_engine.items())}},
        tuple(lines),
        notes=(
            "allocate the tile inside the loop, or use two in turn: then the next iteration's load runs beside this one's work",
            "what it saves is at most the gap of perfect_pipeline, and less where another engine is the limit",
        )
        if found
        else (),
        experimental=True,
    )


def _union(spans: list[tuple[int, int]]) -> int:
    import numpy as np

    return intervals.union_ns(np.array([span[0] for span in spans]), np.array([span[1] for span in spans]))
