"""Profiles at scale: 10 million instructions and 20 million DMA packets, ours beside the same done with pandas.

Each step runs in a process of its own, so that peak memory is its own. `VIBESERVE_BENCH_SCALE=0.1` makes it smaller.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rows import Row

SCALE = float(os.environ.get("VIBESERVE_BENCH_SCALE", "1"))
INSTRUCTIONS, PACKETS = int(10_000_000 * SCALE), int(20_000_000 * SCALE)


def rows() -> list[Row]:
    """Ingest rate, `bounds`, `analyze`, peak memory, and the pandas form of the bounds."""
    with tempfile.TemporaryDirectory(prefix="vibeserve-bench-") as held:
        folder = Path(held)
        _step("make", folder)
        ingest, bounds, analyze = (_step(name, folder) for name in ("ingest", "bounds", "analyze"))
        by_pandas = {name: _step(f"pandas-{name}", folder) for name in ("ingest", "bounds", "analyze")}
    total = INSTRUCTIONS + PACKETS
    peak = max(item["peak_bytes"] for item in (ingest, bounds, analyze))
    return [
        Row("ingest", 1e6, total / ingest["seconds"], "rows/s", "higher", f"{total:,} rows"),
        Row("bounds", 5.0, bounds["seconds"], "s"),
        Row("analyze", 60.0, analyze["seconds"], "s"),
        Row("peak memory", 4.0, peak / 1e9, "GB"),
        *(
            row
            for name, ours in (("ingest", ingest), ("bounds", bounds), ("analyze", analyze))
            for row in _beside(name, ours, by_pandas[name])
        ),
    ]


def _beside(name: str, ours: dict[str, float], pandas: dict[str, float]) -> list[Row]:
    note = (
        f"peak {pandas['peak_bytes'] / 1e9:.1f} GB, ours {ours['peak_bytes'] / 1e9:.1f}; same result: {pandas['same']}"
    )
    return [
        Row(f"{name} by pandas", None, pandas["seconds"], "s", note=note),
        Row(f"{name}: pandas / ours", None, pandas["seconds"] / ours["seconds"], "×", "higher"),
    ]


def _step(name: str, folder: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.profiles", name, str(folder)], stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def make(folder: Path) -> None:
    """Write the synthetic profile as the device tool would: a folder of parquet files."""
    import pyarrow.parquet as pq
    from tests.profiles import made

    from vibeserve.profiles import derive

    profile = made.synthetic(INSTRUCTIONS, PACKETS)
    out = folder / "tool"
    out.mkdir()
    for name, table in {**profile.tables, **derive.missing_tables(profile)}.items():
        pq.write_table(table, out / f"{name}.parquet", compression="zstd", compression_level=1)


def ingest(folder: Path) -> None:
    """Take it into the store."""
    from vibeserve import profiles

    profiles.ingest(folder / "tool", "big", data_path=folder)


def bounds(folder: Path) -> None:
    """All bounds."""
    from vibeserve import profiles

    (folder / "bounds.json").write_text(json.dumps(profiles.bounds(profiles.open("big", folder)).document()))


def analyze(folder: Path) -> None:
    """The whole report, its page included."""
    from vibeserve import profiles
    from vibeserve.profiles import pages

    profile = profiles.open("big", folder)
    found = profiles.analyze(profile)
    (folder / "page.html").write_text(pages.html(profile, found))
    (folder / "analysis.json").write_text(json.dumps(found.document()))


def pandas_ingest(folder: Path) -> bool:
    """Read each of the tool's files, look for the columns that the schema asks for, write it where queries find it."""
    import pandas as pd

    from vibeserve.profiles import schema

    out = folder / "by-pandas"
    out.mkdir()
    rows = 0
    for path in sorted((folder / "tool").glob("*.parquet")):
        table = pd.read_parquet(path)
        known = schema.tables().get(path.stem)
        if known is not None:
            missing = {name for name, column in known.columns.items() if column.required} - set(table.columns)
            assert not missing, (path.stem, missing)
        table.to_parquet(out / path.name, compression="zstd", index=False)
        rows += len(table)
    return rows >= INSTRUCTIONS + PACKETS


def _frames(folder: Path) -> tuple[Any, Any]:
    import pandas as pd

    home = folder / "profiles" / "global" / "big@latest"
    return pd.read_parquet(home / "Instruction.parquet"), pd.read_parquet(home / "DmaPacket.parquet")


def _union(table: Any, start: int, end: int) -> int:
    """Time in which at least one row was going on, ns: intervals merged in a loop."""
    total, reach = 0, -1
    for s, e in sorted(zip(table.start_ts.clip(start, end), table.end_ts.clip(start, end), strict=True)):
        if s >= reach:
            total, reach = total + e - s, e
        elif e > reach:
            total, reach = total + e - reach, e
    return total


def _window(packets: Any) -> tuple[int, int]:
    kernel = packets[(packets.queue_type != "instruction") & (packets.transfer_bytes > 4)]
    return kernel.start_ts.min(), kernel.end_ts.max()


def pandas_bounds(folder: Path) -> bool:
    """The bounds as a user would write them with pandas; True where the totals agree with ours."""
    instructions, packets = _frames(folder)
    start, end = _window(packets)
    dma = _union(packets, start, end)
    tensor = instructions[instructions.engine == "Tensor"]
    compute = _union(tensor, start, end)
    inside = tensor[(tensor.opcode == "MATMUL") & (tensor.start_ts >= start) & (tensor.start_ts < end)]
    flops = int(inside.adjusted_flops.sum())
    ours = json.loads((folder / "bounds.json").read_text())
    value = {item["name"]: item["value_s"] for item in ours["bounds"]}
    return (
        abs(value["memory_bound"] - dma / 1e9) < 1e-9
        and abs(value["compute_bound"] - compute / 1e9) < 1e-9
        and ours["inputs"]["hardware_flops"] == flops
    )


def pandas_analyze(folder: Path) -> bool:
    """The same questions: bounds, each engine's busy time, cost by source line, matmuls by line and tile."""
    instructions, packets = _frames(folder)
    start, end = _window(packets)
    ours = json.loads((folder / "analysis.json").read_text())
    inside = instructions[(instructions.start_ts >= start) & (instructions.start_ts < end)]
    _union(packets, start, end)
    busy = {str(name).lower(): _union(rows, start, end) for name, rows in instructions.groupby("engine", observed=True)}
    cost = (
        instructions.groupby(["bir_debug_info_source_location", "engine"], observed=True)
        .agg(
            rows=("duration_ns", "size"),
            duration=("duration_ns", "sum"),
            wait=("evt_wait_time_ns", "sum"),
            read=("hbm_read_bytes", "sum"),
            written=("hbm_write_bytes", "sum"),
        )
        .sort_values("duration", ascending=False)
    )
    matmuls = inside[(inside.engine == "Tensor") & (inside.opcode == "MATMUL")]
    tile = matmuls.operands.str.extract(r"([0-9]+\*[0-9]+)\s*$")[0]
    matmuls.groupby(["bir_debug_info_source_location", tile], observed=True).adjusted_flops.sum()
    engines = {item["name"]: item["active_s"] for item in ours["bounds"]["engines"]}
    return int(cost.rows.sum()) == sum(item["instructions"] for item in ours["sources"]) and all(
        abs(engines[name] - spent / 1e9) < 1e-9 for name, spent in busy.items() if name in engines
    )


if __name__ == "__main__":
    step = {
        "make": make,
        "ingest": ingest,
        "bounds": bounds,
        "analyze": analyze,
        "pandas-ingest": pandas_ingest,
        "pandas-bounds": pandas_bounds,
        "pandas-analyze": pandas_analyze,
    }[sys.argv[1]]
    begun = time.perf_counter()
    same = step(Path(sys.argv[2]))
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "same": same}))
