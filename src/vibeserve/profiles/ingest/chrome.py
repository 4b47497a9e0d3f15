"""Chrome traces, PyTorch's among them: kernels, copies and CPU operators as rows of the same tables.

A kernel is an Instruction of engine `gpu` (its stream in `timeline_track`), a memory copy of engine `dma`-like `memcpy`, a
CPU operator of engine `cpu`. Counts of FLOPs and bytes are taken where the trace has them.
"""

from __future__ import annotations

from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.profiles import intervals, schema
from vibeserve.profiles.profile import Profile

_ENGINE = {
    "kernel": "gpu",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memcpy",
    "cpu_op": "cpu",
    "user_annotation": None,
    "python_function": None,
    "ac2g": None,
}
_RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime")


def recognises(document: Any) -> bool:
    """Whether this is a Chrome trace: an object with `traceEvents`, or a bare list of events."""
    events = document.get("traceEvents") if isinstance(document, dict) else document
    return isinstance(events, list) and (not events or (isinstance(events[0], dict) and "ph" in events[0]))


def read(document: Any, name: str) -> Profile:
    """A profile from a trace. Complete events ('X') and begin/end pairs ('B'/'E') are read; times are µs in the file."""
    events = document["traceEvents"] if isinstance(document, dict) else document
    rows = [row for row in (_row(event) for event in _complete(events)) if row is not None]
    if not rows:
        raise InputError("the trace holds no kernel, copy or CPU operator", hint="record with activities CPU and CUDA")
    first = min(row["start_ts"] for row in rows)
    rows.sort(key=lambda row: (row["start_ts"], row["end_ts"], row["opcode"]))
    for index, row in enumerate(rows):
        row["start_ts"] -= first
        row["end_ts"] -= first
        row["id"] = index
    columns = {key: [row.get(key) for row in rows] for key in rows[0]}
    last = max(row["end_ts"] for row in rows)
    tables = {
        "Instruction": schema.build("Instruction", columns),
        "ActiveTime": active_time(rows),
        "Summary": schema.build("Summary", {"total_time": [last / 1e9]}),
        "Flow": _flow(rows),
    }
    device = (document.get("deviceProperties") or [{}])[0] if isinstance(document, dict) else {}
    info = {"source": "Chrome trace", "provenance": "measured", "device": device.get("name", "")}
    return Profile(name, tables, info=info)


def _complete(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Complete events; begin/end pairs on one track are joined (an unmatched begin is dropped)."""
    out, open_events = [], dict[tuple[Any, Any], list[dict[str, Any]]]()
    for event in events:
        phase = event.get("ph")
        if phase == "X" and "ts" in event:
            out.append(event)
        elif phase == "B":
            open_events.setdefault((event.get("pid"), event.get("tid")), []).append(event)
        elif phase == "E":
            begun = open_events.get((event.get("pid"), event.get("tid")), [])
            if begun:
                start = begun.pop()
                out.append({**start, "ph": "X", "dur": event["ts"] - start["ts"]})
    return out


def _row(event: dict[str, Any]) -> dict[str, Any] | None:
    category = str(event.get("cat", "")).lower()
    engine = "runtime" if category in _RUNTIME else _ENGINE.get(category, "cpu" if not category else None)
    if engine is None:
        return None
    arguments = event.get("args") or {}
    start, length = round(float(event["ts"]) * 1000), round(float(event.get("dur") or 0) * 1000)
    moved = arguments.get("bytes")
    return {
        "start_ts": start,
        "end_ts": start + length,
        "duration_ns": length,
        "engine": engine,
        "timeline_track": f"stream {arguments['stream']}" if "stream" in arguments else f"thread {event.get('tid')}",
        "opcode": str(event.get("name", "?")),
        "operands": str(arguments.get("Input Dims", "")),
        "pc": 0,
        "bir_id": str(arguments.get("External id", "")),
        "pcore_idx": arguments.get("device")
        if engine in ("gpu", "memcpy") and isinstance(arguments.get("device"), int)
        else 0,
        "hbm_read_bytes": int(moved)
        if isinstance(moved, int | float) and "dtoh" in str(event.get("name", "")).lower()
        else None,
        "hbm_write_bytes": int(moved)
        if isinstance(moved, int | float) and "htod" in str(event.get("name", "")).lower()
        else None,
        "bir_debug_info_source_location": None,
        "correlation": arguments.get("correlation"),
        "id": 0,
    }


def _flow(rows: list[dict[str, Any]]) -> Any:
    """A launch leads to the kernel of the same correlation id."""
    launches = {
        row["correlation"]: row for row in rows if row["engine"] == "runtime" and row["correlation"] is not None
    }
    edges = [
        (launches[row["correlation"]], row)
        for row in rows
        if row["engine"] in ("gpu", "memcpy") and row["correlation"] in launches
    ]
    return schema.build(
        "Flow",
        {
            "in_id": [before["id"] for before, _ in edges],
            "out_id": [after["id"] for _, after in edges],
            "in_table": ["Instruction"] * len(edges),
            "out_table": ["Instruction"] * len(edges),
            "dependency_type": ["LAUNCH"] * len(edges),
            "gap_time": [max(0, after["start_ts"] - before["end_ts"]) for before, after in edges],
        },
        rows=len(edges),
    )


def active_time(rows: list[dict[str, Any]]) -> Any:
    """Merged busy spans of each engine, from rows with engine, start_ts, end_ts."""
    import numpy as np

    spans: list[tuple[str, int, int]] = []
    for engine in sorted({row["engine"] for row in rows}):
        chosen = [row for row in rows if row["engine"] == engine]
        starts, ends = intervals.merge(
            np.array([row["start_ts"] for row in chosen], np.int64),
            np.array([row["end_ts"] for row in chosen], np.int64),
        )
        spans += [(engine, int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
    return schema.build(
        "ActiveTime",
        {
            "start_ts": [start for _, start, _ in spans],
            "end_ts": [end for _, _, end in spans],
            "engine": [engine for engine, _, _ in spans],
            "pcore_idx": [0] * len(spans),
            "duration_ns": [end - start for _, start, end in spans],
        },
        rows=len(spans),
    )
