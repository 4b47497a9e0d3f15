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

from benchmarks.rows import Row

SCALE = float(os.environ.get("VIBESERVE_BENCH_SCALE", "1"))
INSTRUCTIONS, PACKETS = int(10_000_000 * SCALE), int(20_000_000 * SCALE)


def rows() -> list[Row]:
    """Ingest rate, `bounds`, `analyze`, peak memory, and the pandas form of the bounds."""
    with tempfile.TemporaryDirectory(prefix="vibeserve-bench-") as held:
        folder = Path(held)
        _step("make", folder)
        ingest, bounds, analyze = (_step(name, folder) for name in ("ingest", "bounds", "analyze"))
        pandas = _step("pandas", folder)
    total = INSTRUCTIONS + PACKETS
    peak = max(item["peak_bytes"] for item in (ingest, bounds, analyze))
    return [
        Row("ingest", 1e6, total / ingest["seconds"], "rows/s", "higher", f"{total:,} rows"),
        Row("bounds", 5.0, bounds["seconds"], "s"),
        Row("analyze", 60.0, analyze["seconds"], "s"),
        Row("peak memory", 4.0, peak / 1e9, "GB"),
        Row(
            "bounds by pandas",
            None,
            pandas["seconds"],
            "s",
            note=f"peak {pandas['peak_bytes'] / 1e9:.1f} GB, the same totals: {pandas['same']}",
        ),
        Row("pandas / ours", 1.0, pandas["seconds"] / bounds["seconds"], "×", "higher"),
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
    (folder / "page.html").write_text(pages.html(profile, profiles.analyze(profile)))


def pandas(folder: Path) -> bool:
    """The bounds as a user would write them with pandas on the parquet files; True where the totals agree with ours."""
    import pandas as pd

    home = folder / "profiles" / "global" / "big@latest"
    instructions = pd.read_parquet(home / "Instruction.parquet")
    packets = pd.read_parquet(home / "DmaPacket.parquet")
    kernel = packets[(packets.queue_type != "instruction") & (packets.transfer_bytes > 4)]
    start, end = kernel.start_ts.min(), kernel.end_ts.max()

    def union(table: pd.DataFrame) -> int:
        total, reach = 0, -1
        for s, e in sorted(zip(table.start_ts.clip(start, end), table.end_ts.clip(start, end), strict=True)):
            if s >= reach:
                total, reach = total + e - s, e
            elif e > reach:
                total, reach = total + e - reach, e
        return total

    dma = union(packets)
    tensor = instructions[instructions.engine == "Tensor"]
    compute = union(tensor)
    inside = tensor[(tensor.opcode == "MATMUL") & (tensor.start_ts >= start) & (tensor.start_ts < end)]
    flops = int(inside.adjusted_flops.sum())
    ours = json.loads((folder / "bounds.json").read_text())
    value = {item["name"]: item["value_s"] for item in ours["bounds"]}
    return (
        abs(value["memory_bound"] - dma / 1e9) < 1e-9
        and abs(value["compute_bound"] - compute / 1e9) < 1e-9
        and ours["inputs"]["hardware_flops"] == flops
    )


if __name__ == "__main__":
    step = {"make": make, "ingest": ingest, "bounds": bounds, "analyze": analyze, "pandas": pandas}[sys.argv[1]]
    begun = time.perf_counter()
    same = step(Path(sys.argv[2]))
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "same": same}))
