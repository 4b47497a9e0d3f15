"""What simulating costs: overhead of an instruction, a large tiled matmul, memory."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.rows import Row

REPEATS = 2000


def overhead_us() -> dict[str, float]:
    """Microseconds beyond NumPy's for small operands, by instruction (median of repeats; slices of views included)."""
    import vibeserve.nki.isa as nisa
    import vibeserve.nki.language as nl
    from vibeserve.nki import simulate

    found: dict[str, float] = {}
    a = np.ones((128, 8), np.float32)

    def measure(name: str, call: Callable[[], Any], plain: Callable[[], Any]) -> None:
        found[name] = (_median_s(call) - _median_s(plain)) * 1e6

    def kernel(x: Any) -> Any:
        t, u = (nl.zeros((128, 8), dtype=nl.float32) for _ in range(2))
        p = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.psum)
        v, w = a.copy(), a.copy()
        measure("dma_copy", lambda: nisa.dma_copy(dst=t[0:128, 0:8], src=x[0:128, 0:8]), lambda: np.copyto(v, a))
        measure("tensor_copy", lambda: nisa.tensor_copy(dst=u, src=t), lambda: np.copyto(v, a))
        measure(
            "tensor_tensor",
            lambda: nisa.tensor_tensor(dst=u, data1=t[:, 0:8], data2=u, op=nl.add),
            lambda: np.copyto(v, a + w),
        )
        measure(
            "tensor_scalar",
            lambda: nisa.tensor_scalar(dst=u, data=t, op0=nl.multiply, operand0=2.0),
            lambda: np.copyto(v, a * np.float32(2)),
        )
        measure(
            "activation",
            lambda: nisa.activation(dst=u, op=nl.exp, data=t, scale=0.5),
            lambda: np.copyto(v, np.exp(a * np.float32(0.5))),
        )
        measure("nc_matmul", lambda: nisa.nc_matmul(dst=p, stationary=t, moving=u, accumulate=False), lambda: a.T @ w)
        measure(
            "tensor_reduce", lambda: nisa.tensor_reduce(dst=u[:, 0:1], op=nl.add, data=t, axis=1), lambda: a.sum(axis=1)
        )
        measure("memset", lambda: nisa.memset(dst=u, value=0.0), lambda: v.fill(0))
        return x

    simulate(kernel)(a)
    return found


def _median_s(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def matmul(lhs_t: Any, rhs: Any) -> Any:
    """lhs_t^T @ rhs in tiles of 128 x 128 x 512."""
    import vibeserve.nki.isa as nisa
    import vibeserve.nki.language as nl

    (k, m), n = lhs_t.shape, rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for i in range(m // 128):
        left = []
        for j in range(k // 128):
            left.append(nl.ndarray((128, 128), dtype=lhs_t.dtype, buffer=nl.sbuf))
            nisa.dma_copy(dst=left[j], src=lhs_t[nl.ds(j * 128, 128), nl.ds(i * 128, 128)])
        for c in range(n // 512):
            total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for j in range(k // 128):
                right = nl.ndarray((128, 512), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=right, src=rhs[nl.ds(j * 128, 128), nl.ds(c * 512, 512)])
                nisa.nc_matmul(dst=total, stationary=left[j], moving=right)
            tile = nl.ndarray((128, 512), dtype=lhs_t.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=total)
            nisa.dma_copy(dst=out[nl.ds(i * 128, 128), nl.ds(c * 512, 512)], src=tile)
    return out


def large_matmul() -> tuple[float, float]:
    """(seconds, peak bytes beyond the inputs) of a 2048 x 2048 x 2048 bf16 matmul."""
    from vibeserve.nki import simulate

    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((2048, 2048), np.float32).astype(ml_dtypes.bfloat16) for _ in range(2))
    start = time.perf_counter()
    simulate(matmul)(a, b)
    seconds = time.perf_counter() - start
    tracemalloc.start()
    simulate(matmul)(a, b)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seconds, float(peak)


def rows() -> list[Row]:
    """The rows of `make bench`."""
    overhead = overhead_us()
    seconds, peak = large_matmul()
    alive = 2048 * 2048 * 2 + 17 * 128 * 128 * 2 + 2 * 128 * 512 * 6  # the output, and the tiles of one step
    listed = ", ".join(f"{name} {value:.1f}" for name, value in overhead.items())
    middle = statistics.median(overhead.values())
    return [
        Row(
            "overhead of an instruction, median", 30.0, middle, "µs", "lower", f"beyond its NumPy arithmetic: {listed}"
        ),
        Row("tiled matmul 2048³ bf16", 15.0, seconds, "s", "lower", "1,024 products of 128 x 128 x 512"),
        Row(
            "its memory over the tensors alive",
            2.0,
            peak / alive,
            "x",
            "lower",
            f"{peak / 1e6:.1f} MB beyond the inputs",
        ),
    ]
