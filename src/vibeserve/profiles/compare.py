"""Two profiles side by side, and several in the order of an optimisation: what changed, as far as the data says."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vibeserve.profiles import summary
from vibeserve.profiles.analysis import Analysis, SourceCost, analyze
from vibeserve.profiles.profile import Profile

TRACKED = (
    "latency",
    "tensor_engine_active_time_percent",
    "vector_engine_active_time_percent",
    "scalar_engine_active_time_percent",
    "dma_active_time_percent",
    "hbm_read_bytes",
    "hbm_write_bytes",
    "mm_arithmetic_intensity",
    "mfu_estimated_percent",
)


def compare(a: Profile, b: Profile) -> dict[str, Any]:
    """The JSON of `profile compare`: a, b, bounds, engines, investigations, lines. A ratio is b / a; a delta b - a.

    `lines_matched` is "by source" where both kept the text of their files: then a line that moved is the same line.
    """
    left, right = analyze(a), analyze(b)
    return {
        "a": a.name,
        "b": b.name,
        "total_time_s": _pair(left.bounds.total_time_s, right.bounds.total_time_s),
        "bounds": [
            {"family": bound.family, "name": bound.name, **_pair(bound.value_s, right.bounds.value(bound.name))}
            for bound in left.bounds.bounds
        ],
        "gaps": [
            {
                "family": gap.family,
                "from": gap.upper,
                "to": gap.lower,
                **_pair(gap.gap_s, right.bounds.gap(gap.lower).gap_s),
            }
            for gap in left.bounds.gaps
        ],
        "engines": [
            {"name": name, **_pair(left.bounds.engines.get(name), right.bounds.engines.get(name))}
            for name in dict.fromkeys([*left.bounds.engines, *right.bounds.engines])
        ],
        "bottleneck": {"a": list(left.bounds.bottleneck), "b": list(right.bounds.bottleneck)},
        "investigations": _investigations(left, right),
        "lines_matched": "by source" if left.texts and right.texts else "by number",
        "lines": _lines(left, right),
        "summary": {key: _pair(left.metrics.get(key), right.metrics.get(key)) for key in TRACKED},
    }


def tracking_table(profiles: Sequence[Profile]) -> list[dict[str, Any]]:
    """One row a profile, oldest first as given: note, the tracked metrics, and the latency's ratio to the first's."""
    rows: list[dict[str, Any]] = []
    for profile in profiles:
        found = summary.metrics(profile)
        row = {"name": profile.name, "note": profile.info.get("note", ""), **{key: found.get(key) for key in TRACKED}}
        first = rows[0]["latency"] if rows else found.get("latency")
        row["speedup"] = first / found["latency"] if first and found.get("latency") else None
        rows.append(row)
    return rows


def _pair(a: float | None, b: float | None) -> dict[str, float | None]:
    known = a is not None and b is not None
    return {
        "a": a,
        "b": b,
        "delta": b - a if known else None,  # type: ignore[operator]
        "ratio": b / a if known and a else None,  # type: ignore[operator]
    }


def _investigations(left: Analysis, right: Analysis) -> list[dict[str, Any]]:
    after = {item.name: item for item in right.findings}
    out = []
    for before in left.findings:
        now = after[before.name]
        if before.found == now.found:
            change = "in both" if before.found else "in neither"
        else:
            change = "appeared" if now.found else "vanished"
        out.append(
            {
                "name": before.name,
                "change": change,
                "a": {"ran": before.ran, "found": before.found, "reason": before.reason, "cost_s": before.cost_s},
                "b": {"ran": now.ran, "found": now.found, "reason": now.reason, "cost_s": now.cost_s},
            }
        )
    return out


def _lines(left: Analysis, right: Analysis) -> list[dict[str, Any]]:
    """Cost by line and engine, lines matched across an edited file where both sources can be read."""
    moved = _line_map(left, right)
    before = {(_key(item, moved), item.engine): item for item in left.sources}
    after = {((_file(item.location), _number(item.location)), item.engine): item for item in right.sources}
    rows = []
    for key in dict.fromkeys([*before, *after]):
        a, b = before.get(key), after.get(key)
        state = "in both" if a and b else "appeared" if b else "vanished"
        rows.append(
            {
                "file": key[0][0],
                "line_a": _number(a.location) if a else None,
                "line_b": _number(b.location) if b else None,
                "engine": key[1],
                "state": state,
                "duration_s": _pair(a.duration_s if a else None, b.duration_s if b else None),
                "instructions": _pair(a.instructions if a else None, b.instructions if b else None),
                "hbm_bytes": _pair(a.hbm_bytes if a else None, b.hbm_bytes if b else None),
            }
        )

    def size(row: dict[str, Any]) -> float:
        held = row["duration_s"]
        return -abs((held["b"] or 0.0) - (held["a"] or 0.0))

    return sorted(rows, key=size)


def _key(item: SourceCost, moved: dict[tuple[str, int], int]) -> tuple[str, int | None]:
    file, number = _file(item.location), _number(item.location)
    return file, moved.get((file, number), number) if number is not None else None


def _line_map(left: Analysis, right: Analysis) -> dict[tuple[str, int], int]:
    """(file, line in a) -> line in b, from the sources kept with the profiles; empty where they are not."""
    old, new = left.texts, right.texts
    out: dict[tuple[str, int], int] = {}
    by_name = {_file(path): text for path, text in new.items()}
    for path, text in old.items():
        later = by_name.get(_file(path))
        if later is None:
            continue
        matcher = difflib.SequenceMatcher(a=text.splitlines(), b=later.splitlines(), autojunk=False)
        for block in matcher.get_matching_blocks():
            for offset in range(block.size):
                out[_file(path), block.a + offset + 1] = block.b + offset + 1
    return out


def _file(location: str) -> str:
    return Path(re.sub(r":\d+$", "", location)).name


def _number(location: str) -> int | None:
    found = re.search(r":(\d+)$", location)
    return int(found.group(1)) if found else None
