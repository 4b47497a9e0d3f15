"""CSV of NVIDIA Nsight Compute (`ncu --csv`): one row a kernel and metric. Not verified on hardware."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.profiles import schema
from vibeserve.profiles.ingest.chrome import active_time
from vibeserve.profiles.profile import Profile

_DURATION = ("gpu__time_duration.sum", "Duration")
_READ = ("dram__bytes_read.sum",)
_WRITE = ("dram__bytes_write.sum",)
_NS = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}
_BYTES = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def read(path: Path, name: str) -> Profile:
    """A profile from ncu's CSV: kernels one after the other (ncu runs them apart, so their starts are not real)."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [line for line in file if not line.startswith("==")]
    rows = list(csv.DictReader(lines))
    if not rows or "Kernel Name" not in rows[0] or "Metric Name" not in rows[0]:
        raise InputError(
            f"{path.name} is not ncu's CSV", hint="ncu --csv --metrics gpu__time_duration.sum,dram__bytes_read.sum …"
        )
    kernels: dict[str, dict[str, Any]] = {}
    for row in rows:
        held = kernels.setdefault(row["ID"], {"name": row["Kernel Name"], "metrics": {}})
        held["metrics"][row["Metric Name"]] = (row["Metric Value"].replace(",", ""), row.get("Metric Unit", ""))
    out, clock = [], 0
    for index, held in enumerate(kernels.values()):
        length = _number(held["metrics"], _DURATION, _NS)
        if length is None:
            raise InputError(
                f"{path.name}: kernel '{held['name']}' has no duration", hint="add --metrics gpu__time_duration.sum"
            )
        out.append(
            {
                "start_ts": clock,
                "end_ts": clock + round(length),
                "duration_ns": round(length),
                "engine": "gpu",
                "opcode": held["name"],
                "operands": "",
                "pc": 0,
                "bir_id": "",
                "id": index,
                "hbm_read_bytes": _whole(_number(held["metrics"], _READ, _BYTES)),
                "hbm_write_bytes": _whole(_number(held["metrics"], _WRITE, _BYTES)),
            }
        )
        clock += round(length)
    columns = {key: [row[key] for row in out] for key in out[0]}
    info = {
        "source": f"ncu CSV: {path.name}",
        "provenance": "measured",
        "verified": "reader not verified on hardware",
        "warning": "ncu measures kernels apart: durations are real, their order in time is not",
    }
    tables = {
        "Instruction": schema.build("Instruction", columns),
        "ActiveTime": active_time(out),
        "Summary": schema.build("Summary", {"total_time": [clock / 1e9]}),
    }
    return Profile(name, tables, info=info)


def _number(metrics: dict[str, tuple[str, str]], names: tuple[str, ...], units: dict[str, float]) -> float | None:
    for key in names:
        if key in metrics:
            text, unit = metrics[key]
            return float(text) * units.get(unit, 1)
    return None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
