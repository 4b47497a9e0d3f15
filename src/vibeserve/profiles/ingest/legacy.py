"""The device tool's older JSON: one object, a list of rows for each table, under older names.

Instruction-to-instruction edges are in each instruction's `predecessors`; DMA rows name their queue `Q<queue>-E<engine>`.
Times are ns (ps in some builds: told by comparing the last time stamp with the run time).
"""

from __future__ import annotations

from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.profiles import schema
from vibeserve.profiles.profile import Profile

_TABLES = {
    "instruction": "Instruction",
    "dma": "DmaPacket",
    "active_time": "ActiveTime",
    "semaphore_update": "SemaphoreUpdate",
    "metadata": "Metadata",
    "neff_header": "NeffHeader",
    "dma_queues_info": "DmaQueuesInfo",
    "nc_mem_usage": "HbmUsageSummaryByType",
    "warnings": "Warning",
    "neff_node": "TensorInfo",
    "pending_dma": "PendingDma",
    "summary": "Summary",
}
# What the older form leaves out and one trn2 NeuronCore has (documented): lanes and clocks of the other engines.
_CORE_CONSTANTS = {
    "vector_engine_num_channels": 128,
    "scalar_engine_num_channels": 128,
    "gpsimd_engine_num_channels": 128,
}


def recognises(document: Any) -> bool:
    """Whether this is the older one-object form."""
    return isinstance(document, dict) and isinstance(document.get("instruction"), list) and "metadata" in document


def read(document: dict[str, Any], name: str) -> Profile:
    """A profile from the older form. Raises InputError where its rows are not what they should be."""
    try:
        tables = {new: _table(new, document.get(old) or []) for old, new in _TABLES.items()}
        tables["Flow"] = _flow(document["instruction"])
        tables["Throttle"] = _throttle(document.get("ham") or [])
        tables |= _usage(document.get("instruction_usage") or [])
        tables |= _throughput(document.get("dma_throughput") or [])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"the profile's JSON is damaged: {error}", hint="export it again") from None
    info = (document.get("profile_info") or [{}])[0]
    return Profile(
        name,
        {key: table for key, table in tables.items() if table.num_rows},
        info={
            "source": "device tool JSON",
            "provenance": "measured",
            "tool_version": info.get("profiler_version", ""),
            "neff": info.get("neff_name", ""),
            "ntff": str(info.get("ntff_filename", "")).rpartition("/")[2],
        },
    )


def _table(name: str, rows: list[dict[str, Any]]) -> Any:
    """Rows under older names as a table under the present ones."""
    columns = schema.tables()[name].columns
    rename = {column.legacy: column.name for column in columns.values() if column.legacy}
    special = {"pcore_idx": _pcore, "engine_idx": _whole}
    out: dict[str, list[Any]] = {}
    for index, row in enumerate(rows):
        for key, value in row.items():
            new = key if key in columns and key not in rename else rename.get(key, key)
            if isinstance(value, list | dict) or (new not in columns and name != "Summary"):
                continue
            out.setdefault(new, [None] * len(rows))[index] = value
    made: dict[str, list[Any]] = {}
    for key, values in out.items():
        kind = columns[key].type if key in columns else None
        made[key] = (
            [special[key](value) for value in values] if key in special else [_cast(value, kind) for value in values]
        )
    if name in ("Instruction", "DmaPacket") and rows:
        made["end_ts"] = [start + length for start, length in zip(made["start_ts"], made["duration_ns"], strict=True)]
    if name == "Instruction" and rows:
        made["raw_flops"] = [
            None if macs is None else 2 * macs for macs in made.get("tensor_elements", [None] * len(rows))
        ]
        made["tensor_instruction_type"] = [
            value or None for value in made.get("tensor_instruction_type", [None] * len(rows))
        ]
    if name == "DmaPacket" and rows:
        made["queue_idx"] = [_whole(row.get("dma_queue")) for row in rows]
        made["queue_name"] = [row.get("subgroup") for row in rows]
        made["variable"] = [row.get("variable") for row in rows]
    if name == "Metadata" and rows:
        made |= {key: [value] * len(rows) for key, value in _CORE_CONSTANTS.items()}
    return schema.build(name, made, rows=len(rows))


def _cast(value: Any, kind: str | None) -> Any:
    """A value as its column's type; text that holds a number is read as one, empty text as null."""
    if value is None or kind is None:
        return value
    if kind in ("int64", "int32"):
        return None if value == "" else int(value)
    if kind == "double":
        return None if value == "" else float(value)
    if kind == "bool":
        return value if isinstance(value, bool) else str(value).lower() in ("true", "yes", "1")
    return str(value)


def _pcore(value: Any) -> int | None:
    """0 from 'sg00', 1 from 'sg01'; a number as it is."""
    text = str(value if value is not None else "").removeprefix("sg")
    return int(text) if text.isdecimal() else None


def _whole(value: Any) -> int | None:
    text = str(value if value is not None else "")
    return int(text) if text.lstrip("-").isdecimal() else None


def _flow(instructions: list[dict[str, Any]]) -> Any:
    edges = [
        (before["id"], row["id"], before.get("type"))
        for row in instructions
        for before in row.get("predecessors") or []
    ]
    return schema.build(
        "Flow",
        {
            "in_id": [edge[0] for edge in edges],
            "out_id": [edge[1] for edge in edges],
            "in_table": ["Instruction"] * len(edges),
            "out_table": ["Instruction"] * len(edges),
            "dependency_type": [edge[2] for edge in edges],
        },
        rows=len(edges),
    )


def _throttle(rows: list[dict[str, Any]]) -> Any:
    return schema.build(
        "Throttle",
        {
            "duration": [row["duration"] for row in rows],
            "k": [row["k"] for row in rows],
            "n": [row["n"] for row in rows],
            "timestamp": [row["timestamp"] for row in rows],
            "type": [f"activity_{row['type']}" if isinstance(row["type"], int) else str(row["type"]) for row in rows],
            "pcore_idx": [_pcore(row.get("subgraph")) for row in rows],
        },
        rows=len(rows),
    )


def _usage(rows: list[dict[str, Any]]) -> dict[str, Any]:
    out = {}
    for kind, name, average, parts in (
        (
            "sb",
            "SbufUsage",
            "avg_util_percent",
            {f"partition_{n}_usage": f"partition_{n}_util_percent" for n in (0, 32, 64, 96)},
        ),
        ("psum", "PsumUsage", "avg_util_percent", {f"bank_{n}_usage": f"bank_{n}_util_percent" for n in range(8)}),
    ):
        chosen = [row for row in rows if str(row.get("type", "")).startswith(kind)]
        columns = {new: [row.get(old) for row in chosen] for old, new in parts.items()}
        columns |= {
            "timestamp": [row["timestamp"] for row in chosen],
            average: [row.get("usage_avg") for row in chosen],
            "pcore_idx": [_pcore(row.get("subgraph")) for row in chosen],
        }
        out[name] = schema.build(name, columns, rows=len(chosen))
    return out


def _throughput(rows: list[dict[str, Any]]) -> dict[str, Any]:
    out = {}
    for name, prefix in (("DmaUsage", ""), ("HbmUsage", "hbm_")):
        chosen = [row for row in rows if not prefix or row.get("uses_hbm") == "true"]
        out[name] = schema.build(
            name,
            {
                "timestamp": [row["timestamp"] for row in chosen],
                "current_throughput": [float(row[f"{prefix}transfer_rate"]) for row in chosen],
                "total_transfer_bytes": [int(row[f"{prefix}total_transfer_bytes"]) for row in chosen],
                "pcore_idx": [_pcore(row.get("subgraph")) for row in chosen],
            },
            rows=len(chosen),
        )
    return out
