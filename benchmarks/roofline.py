"""The roofline: a cold call of the command, and sweeps of 1,000 points, without any cache of ours to help."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from benchmarks.rows import Row

_REPEATS = 7
_POINTS = 1000


def rows() -> list[Row]:
    """Cold calls in wall time (a new process each, the median of seven) and sweeps of a small and a large operation."""
    calls = {
        "cold call, terminal": ["vjepa2-mlp"],
        "cold call, --json": ["vjepa2-mlp", "--json"],
        "cold call, 17 stages": ["llama-decode-layer"],
    }
    found = [Row(name, 1.0, _cold(arguments), "s") for name, arguments in calls.items()]
    found.append(Row("sweep, 3 stages", 1.0, _sweep("vjepa2-mlp", "R", 2), "s", note=f"{_POINTS} sizes × 2 variants"))
    found.append(
        Row("sweep, 17 stages", 1.0, _sweep("llama-decode-layer", "B", 1), "s", note=f"{_POINTS} sizes × 3 variants")
    )
    return found


def _cold(arguments: list[str]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "vibeserve.cli.main", "roofline", *arguments], stdout=subprocess.PIPE, check=True
        )
        times.append(time.perf_counter() - start)
    return median(times)


def _sweep(op: str, dim: str, step: int) -> float:
    from vibeserve.roofline import analyze, with_sweep

    analysis = analyze(op)
    start = time.perf_counter()
    found = with_sweep(analysis, f"{dim}={step}:{step * _POINTS}:{step * _POINTS}").sweep
    seconds = time.perf_counter() - start
    assert len(found.sizes) == _POINTS
    return seconds
