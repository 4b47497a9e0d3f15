"""What measures this machine, run in a process of its own: `python -m vibeserve.hardware.probes`.

Prints one JSON document: the samples of each probe, so that the caller can say median and spread. Nothing here is
imported by the rest of the package, since it loads NumPy and, where installed, torch.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

REPEATS = 9
ROUNDS = 4
CALM = 0.2
_READ_FLOOR_BYTES = 256 << 20
_SIZES = {"float32": 1024, "bfloat16": 1024, "int8": 768, "float16": 192, "float64": 1024}


def usable_cpus() -> int:
    """CPUs that this process may use: the affinity mask, within the control group's quota."""
    mask = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return mask if quota == "max" else max(1, min(mask, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return mask


def last_level_cache_bytes() -> int:
    """The largest cache that the kernel lists, or 32 MiB where it lists none."""
    found = [32 << 20]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        found.append(int(text.rstrip("KMG")) * scale)
    return max(found)


def _seconds(work: Callable[[], Any], repeats: int = REPEATS, settle_s: float = 0.2) -> list[float]:
    """Times of `repeats` runs, after running it for `settle_s` so that pages, caches and clocks have settled.

    Other work on the machine shows as a wide spread: then it is done again, up to `ROUNDS` times, and the quickest
    round counts, since a peak is what the machine can do.
    """
    rounds = []
    for _ in range(ROUNDS):
        until = time.perf_counter() + settle_s
        while True:
            work()
            if time.perf_counter() >= until:
                break
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        rounds.append(times)
        if max(times) - min(times) < CALM * median(times):
            break
    return min(rounds, key=median)


def memory_bandwidth(threads: int) -> dict[str, Any]:
    """Bytes read per second by all threads together, from a buffer at least eight times the last cache."""
    import numpy as np

    size = max(_READ_FLOOR_BYTES, 8 * last_level_cache_bytes())
    words = np.ones(size // 8, dtype=np.uint64)
    parts = np.array_split(words, threads)

    def read() -> None:
        workers = [threading.Thread(target=np.max, args=(part,)) for part in parts]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    samples = [words.nbytes / seconds for seconds in _seconds(read)]
    return {"samples": samples, "with": f"NumPy maximum over {size >> 20} MiB, {threads} threads"}


def torch_peaks(threads: int) -> dict[str, Any]:
    """FLOP/s of square matrix products with torch, by data type; a type that it cannot do has a `reason`."""
    import torch

    torch.set_num_threads(threads)
    found: dict[str, Any] = {}
    for name, size in _SIZES.items():
        try:
            found[name] = _torch_peak(torch, name, size, threads)
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            found[name] = {"reason": str(error).splitlines()[0]}
    return found


def _torch_peak(torch: Any, name: str, size: int, threads: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    if name == "int8":
        a, b = (torch.randint(-8, 8, (size, size), dtype=torch.int8, generator=generator) for _ in "ab")
        seconds = _seconds(lambda: torch._int_mm(a, b))
    else:
        dtype = getattr(torch, name)
        a, b = (torch.randn(size, size, generator=generator).to(dtype) for _ in "ab")
        seconds = _seconds(lambda: torch.mm(a, b))
    how = f"torch {torch.__version__} product of {size} x {size}, {threads} threads"
    return {"samples": [2 * size**3 / second for second in seconds], "with": how}


def numpy_peaks(threads: int) -> dict[str, Any]:
    """FLOP/s of square matrix products with NumPy: float32 and float64 only."""
    import numpy as np

    found = {}
    for name in ("float32", "float64"):
        size = _SIZES[name]
        a = np.random.default_rng(0).standard_normal((size, size)).astype(name)
        seconds = _seconds(partial(np.matmul, a, a))
        how = f"NumPy {np.__version__} product of {size} x {size}, {threads} threads"
        found[name] = {"samples": [2 * size**3 / second for second in seconds], "with": how}
    return found


def compiled_peaks(threads: int) -> dict[str, Any]:
    """FLOP/s of fused multiply-adds on registers, compiled for this machine; nothing where there is no compiler.

    A library's product may stay far below what the vector units can do, and a limit must not.
    """
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "fma.so"
        source = Path(__file__).parent / "data" / "fma.c"
        argv = [
            compiler,
            "-O3",
            "-march=native",
            "-ffp-contract=fast",
            "-fPIC",
            "-shared",
            "-o",
            str(target),
            str(source),
        ]
        if subprocess.run(argv, capture_output=True, check=False, timeout=60).returncode:
            return {}
        library = ctypes.CDLL(str(target))
        return {
            name: _compiled_peak(library, name, kind, threads)
            for name, kind in (("float32", ctypes.c_float), ("float64", ctypes.c_double))
        }


def _compiled_peak(library: ctypes.CDLL, name: str, kind: Any, threads: int, steps: int = 400_000) -> dict[str, Any]:
    run, flops = getattr(library, f"{name}_run"), getattr(library, f"{name}_flops")
    run.argtypes, run.restype = [ctypes.c_long, kind, kind], ctypes.c_double
    flops.argtypes, flops.restype = [ctypes.c_long], ctypes.c_double

    def work() -> None:
        workers = [threading.Thread(target=run, args=(steps, kind(0.5), kind(1.0))) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    samples = [threads * flops(steps) / second for second in _seconds(work)]
    return {"samples": samples, "with": f"compiled fused multiply-adds on registers, {threads} threads"}


def highest(*tables: dict[str, Any]) -> dict[str, Any]:
    """Of each data type the probe with the highest median; a reason only where no probe could."""
    found: dict[str, Any] = {}
    for table in tables:
        for name, row in table.items():
            held = found.get(name)
            if (
                held is None
                or "samples" not in held
                or ("samples" in row and median(row["samples"]) > median(held["samples"]))
            ):
                found[name] = row
    return found


def main() -> int:
    """Measure, and print the samples."""
    from importlib.util import find_spec

    threads = usable_cpus()
    document: dict[str, Any] = {"threads": threads, "bandwidth": memory_bandwidth(threads)}
    libraries = torch_peaks(threads) if find_spec("torch") else numpy_peaks(threads)
    document["peaks"] = highest(libraries, compiled_peaks(threads))
    json.dump(document, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
