"""SQLite exports of NVIDIA Nsight Systems (`nsys export --type sqlite`): kernels and copies. Not verified on hardware."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.profiles import schema
from vibeserve.profiles.ingest.chrome import active_time
from vibeserve.profiles.profile import Profile

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"


def read(path: Path, name: str) -> Profile:
    """A profile from an nsys export: kernels as engine `gpu`, copies as `memcpy`, API calls as `runtime`."""
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as db:
            db.row_factory = sqlite3.Row
            tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if _KERNELS not in tables:
                raise InputError(
                    f"{path.name} has no table {_KERNELS}: no CUDA kernel was traced", hint="nsys profile -t cuda"
                )
            texts = (
                {row["id"]: row["value"] for row in db.execute("SELECT id, value FROM StringIds")}
                if "StringIds" in tables
                else {}
            )
            rows = [_kernel(row, texts) for row in db.execute(f"SELECT * FROM {_KERNELS}")]
            if _COPIES in tables:
                rows += [_copy(row) for row in db.execute(f"SELECT * FROM {_COPIES}")]
            if _RUNTIME in tables:
                rows += [_call(row, texts) for row in db.execute(f"SELECT * FROM {_RUNTIME}")]
    except sqlite3.Error as error:
        raise InputError(
            f"{path.name} is not an nsys export: {error}", hint="nsys export --type sqlite REPORT"
        ) from None
    finally:
        if "db" in locals():
            db.close()
    if not rows:
        raise InputError(f"{path.name} holds no kernel", hint="nsys profile -t cuda")
    first = min(row["start_ts"] for row in rows)
    rows.sort(key=lambda row: (row["start_ts"], row["end_ts"]))
    for index, row in enumerate(rows):
        row |= {"start_ts": row["start_ts"] - first, "end_ts": row["end_ts"] - first, "id": index}
    columns = {key: [row.get(key) for row in rows] for key in rows[0]}
    last = max(row["end_ts"] for row in rows)
    info = {
        "source": f"nsys export: {path.name}",
        "provenance": "measured",
        "verified": "reader not verified on hardware",
    }
    return Profile(
        name,
        {
            "Instruction": schema.build("Instruction", columns),
            "ActiveTime": active_time(rows),
            "Summary": schema.build("Summary", {"total_time": [last / 1e9]}),
        },
        info=info,
    )


def _base(row: sqlite3.Row, engine: str, opcode: str) -> dict[str, Any]:
    keys = row.keys()
    return {
        "start_ts": row["start"],
        "end_ts": row["end"],
        "duration_ns": row["end"] - row["start"],
        "engine": engine,
        "timeline_track": f"stream {row['streamId']}" if "streamId" in keys else "host",
        "pcore_idx": row["deviceId"] if "deviceId" in keys else 0,
        "opcode": opcode,
        "operands": "",
        "pc": 0,
        "bir_id": str(row["correlationId"]) if "correlationId" in keys else "",
        "hbm_read_bytes": None,
        "hbm_write_bytes": None,
        "id": 0,
    }


def _kernel(row: sqlite3.Row, texts: dict[int, str]) -> dict[str, Any]:
    label = row["shortName"] if "shortName" in row.keys() else row["demangledName"]  # noqa: SIM118
    out = _base(row, "gpu", texts.get(label, str(label)))
    if "gridX" in row.keys():  # noqa: SIM118
        grid = ",".join(str(row[f"grid{axis}"]) for axis in "XYZ")
        out["operands"] = f"grid=[{grid}] block=[{','.join(str(row[f'block{axis}']) for axis in 'XYZ')}]"
    return out


def _copy(row: sqlite3.Row) -> dict[str, Any]:
    kinds = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
    kind = kinds.get(row["copyKind"], f"kind {row['copyKind']}")
    out = _base(row, "memcpy", f"Memcpy {kind}")
    out["hbm_write_bytes"] = row["bytes"] if kind in ("HtoD", "DtoD", "PtoP") else None
    out["hbm_read_bytes"] = row["bytes"] if kind in ("DtoH", "DtoD", "PtoP") else None
    return out


def _call(row: sqlite3.Row, texts: dict[int, str]) -> dict[str, Any]:
    return _base(row, "runtime", texts.get(row["nameId"], str(row["nameId"])))
