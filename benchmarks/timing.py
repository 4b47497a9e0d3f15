"""The timing model against what devices were measured to take: public figures, and totals of three trn2 captures.

The measured kernels are written anew in `timing_kernels` by what is said of their loops. No constant is fitted to one
kernel: `python -m benchmarks.timing` prints every case with its error, and by engine where the source says it.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import Row

KERNELS = Path(__file__).parent / "timing_kernels"

EYES = (("eye", (128, 128), "bfloat16"), ("eye_fp32", (128, 128), "float32"))


@dataclass(frozen=True)
class Case:
    """A measured kernel: `latency_s` (or the profile's `total_s`), and busy seconds of engines where they were printed."""

    name: str
    file: str
    kernel: str
    target: str
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]
    latency_s: float | None = None
    total_s: float | None = None
    engines: dict[str, float] = field(default_factory=dict)
    mode: str = "program"


CASES = (
    Case(
        "matmul fp32, loads for each product (trn2)", "matmuls.py", "load_per_product", "trn2",
        (("lhs_t", (8192, 4096), "float32"), ("rhs", (8192, 8192), "float32")),
        39.895e-3, None, {"tensor": 34.82e-3, "dma": 39.87e-3},
    ),
    Case(
        "matmul fp32, hoisted loads (trn2)", "matmuls.py", "hoisted_loads", "trn2",
        (("lhs_t", (8192, 4096), "float32"), ("rhs", (8192, 8192), "float32")),
        28.198e-3, None, {"tensor": 28.16e-3, "dma": 28.12e-3},
    ),
    Case(
        "matmul bf16 2048³, everything blocked (trn2)", "../../examples/kernels/tiled-matmul/kernel.py", "matmul_blocked_all",
        "trn2", (("lhs_t", (2048, 2048), "bfloat16"), ("rhs", (2048, 2048), "bfloat16")), 0.2442e-3,
    ),
    Case(
        "matmul fp32, transposes on the way (trn1)", "matmuls.py", "transposed_on_the_way", "trn1",
        (("lhs", (4096, 5120), "float32"), ("rhs", (5120, 12288), "float32"), ("eye", (128, 128), "float32")), 35.1997e-3,
        None, {"scalar": 0.068 * 35.1997e-3},
    ),
    Case(
        "matmul fp32, blocked (trn1)", "matmuls.py", "blocked", "trn1",
        (("lhs_t", (2048, 4096), "float32"), ("rhs", (2048, 10944), "float32")), 9.610e-3,
    ),
    Case(
        "silu fp32 (trn1)", "matmuls.py", "silu", "trn1", (("x", (4096, 7168), "float32"),), 1.333e-3, None,
        {"vector": 0.739 * 1.333e-3},
    ),
    Case(
        "attention, fused, bf16 (trn2 capture)", "attention.py", "fused", "trn2",
        (*((name, (128, 512), "bfloat16") for name in "qkv"), *EYES), None, 36.351e-6,
        {"tensor": 15.147e-6 - 4.227e-6, "vector": 11.374e-6 - 3.939e-6, "scalar": 9.432e-6 - 3.381e-6},
    ),
    Case(
        "attention, fused, fp32 (trn2 capture)", "attention.py", "fused", "trn2",
        (*((name, (128, 512), "float32") for name in "qkv"), *EYES), None, 38.091e-6,
        {"tensor": 17.369e-6 - 4.238e-6, "vector": 11.976e-6 - 4.269e-6, "scalar": 9.108e-6 - 3.373e-6},
    ),
    Case(
        "attention, by phases, bf16 (trn2 capture)", "attention.py", "baseline", "trn2",
        (*((name, (128, 512), "bfloat16") for name in "qkv"), *EYES), None, 54.276e-6,
        {"tensor": 14.188e-6 - 4.188e-6, "vector": 13.094e-6 - 4.170e-6, "scalar": 14.023e-6 - 3.615e-6},
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """A case simulated: seconds by each schedule, relative errors, engines' (simulated, measured) busy seconds."""

    case: Case
    simulated_s: float
    measured_s: float
    list_s: float
    engines: dict[str, tuple[float, float]]
    instructions: int

    @property
    def error(self) -> float:
        """(simulated - measured) / measured."""
        return self.simulated_s / self.measured_s - 1

    @property
    def list_error(self) -> float:
        """The same by the list schedule."""
        return self.list_s / self.measured_s - 1


def made_inputs(case: Case) -> tuple[Any, dict[str, Any]]:
    """(kernel, its arguments) of a case."""
    from vibeserve.nki.running import load_kernel, make_input

    kernel, _ = load_kernel(f"{(KERNELS / case.file).resolve()}:{case.kernel}")
    inputs: dict[str, Any] = {
        name: np.zeros(shape, np.float32)
        if dtype == "float32"
        else make_input(name, {"shape": list(shape), "dtype": dtype})
        for name, shape, dtype in case.inputs
    }
    return kernel, inputs


def simulate(case: Case) -> Outcome:
    """Run one case without its arithmetic, by both schedules."""
    from vibeserve.nki.timing import run

    kernel, inputs = made_inputs(case)
    _, timed = run.timed(kernel, kwargs=inputs, target=case.target, lnc=1, shape_only=True, mode=case.mode)
    found = run.document(timed)
    key = "latency_s" if case.latency_s is not None else "total_time_s"
    measured = case.latency_s if case.latency_s is not None else case.total_s
    assert measured is not None
    engines = {name: (found["engines"][name]["busy_s"], value) for name, value in case.engines.items()}
    simulated, count = found[key], len(timed.ops)
    timed.schedule = run.schedule(timed.recorder, timed.params, "list")
    return Outcome(case, simulated, measured, run.document(timed)[key], engines, count)


PLAIN = tuple(
    replace(case, name=f"{case.name}, from tile to tile", kernel=f"{case.kernel}_plain", inputs=case.inputs[:3])
    for case in CASES
    if case.file == "attention.py"
)
ONE_TILE = tuple(
    replace(case, name=f"{case.name}, one tile for exp", kernel="silu_one_tile")
    for case in CASES
    if case.kernel == "silu"
)
GATHERED = tuple(
    replace(case, name=f"{case.name}, gathered", kernel=case.kernel.replace("plain", "gathered")) for case in PLAIN
)  # with what the compiler does for several tiles at once: their maxima, or transfers of two
OTHER_FORMS = (*PLAIN, *GATHERED, *ONE_TILE)  # the same kernels in another form: shown beside, not counted in the mean


def speed() -> list[Row]:
    """Instructions a second without arithmetic, and what a full simulation of the fused MLP costs."""
    from vibeserve.nki import running
    from vibeserve.nki.timing import run

    rates = []
    for case in CASES[:5]:
        kernel, inputs = made_inputs(case)
        best = None
        for _ in range(3):
            start = time.process_time()
            _, timed = run.timed(kernel, kwargs=inputs, target=case.target, lnc=1, shape_only=True)
            took = time.process_time() - start
            best = took if best is None else min(best, took)
        rates.append((len(timed.ops), best))
    assert all(best for _, best in rates)
    rate = sum(count for count, _ in rates) / sum(best or 0.0 for _, best in rates)
    path = KERNELS.parent.parent / "examples" / "kernels" / "vjepa2-mlp" / "kernel.py"
    made, _ = running.load_kernel(f"{path}:fused_mlp")
    case_ = running.default_case(path, "fused_mlp")
    arrays = {name: running.make_input(name, value) for name, value in case_.inputs.items()}
    start = time.perf_counter()
    run.timed(made, kwargs=arrays, target=case_.target, lnc=case_.lnc)
    full = time.perf_counter() - start
    tracemalloc.start()
    run.timed(made, kwargs=arrays, target=case_.target, lnc=case_.lnc)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    plain = _numpy_mlp(arrays)
    return [
        Row(
            "instructions a second, shape-only",
            100_000,
            rate,
            "1/s",
            "higher",
            f"{sum(n for n, _ in rates):,} of five matmuls, CPU time",
        ),
        Row("fused MLP in full, both cores", 20.0, full, "s"),
        Row("its memory beyond the inputs", 2000.0, peak / 1e6, "MB"),
        Row("its time over that of the same arithmetic in NumPy", None, full / plain, "x", note=f"NumPy {plain:.2f} s"),
    ]


def _numpy_mlp(arrays: dict[str, Any]) -> float:
    """Seconds of the MLP in float32 NumPy, rounded where the kernel rounds."""
    from scipy.special import erf

    start = time.perf_counter()
    x, w1, b1, w2, b2 = (arrays[name].astype(np.float32) for name in ("x", "w1", "b1", "w2", "b2"))
    hidden = x @ w1 + b1
    hidden = (hidden * np.float32(0.5) * (1 + erf(hidden / np.float32(2**0.5)))).astype(arrays["x"].dtype)
    (hidden.astype(np.float32) @ w2 + b2).astype(arrays["x"].dtype)
    return time.perf_counter() - start


def rows() -> list[Row]:
    """Mean absolute error over the cases, the list schedule from plain program order, and speed."""
    outcomes = [simulate(case) for case in CASES]
    mean = sum(abs(outcome.error) for outcome in outcomes) / len(outcomes)
    listed = sum(abs(outcome.list_error) for outcome in outcomes) / len(outcomes)
    found = [
        Row("mean absolute error of latency, program order", 10.0, mean * 100, "%"),
        Row("mean absolute error of latency, list schedule", None, listed * 100, "%"),
    ]
    found += [
        Row(outcome.case.name, None, outcome.error * 100, "%", note=f"list {outcome.list_error:+.1%}")
        for outcome in outcomes
    ]
    for case in OTHER_FORMS:
        outcome = simulate(case)
        found.append(
            Row(
                case.name,
                None,
                outcome.list_error * 100,
                "%",
                note=f"list schedule; program order {outcome.error:+.1%}",
            )
        )
    return found + speed()


def main() -> int:
    """Print every case."""
    total = 0.0
    for case in CASES:
        outcome = simulate(case)
        total += abs(outcome.error)
        engines = ", ".join(
            f"{name} {simulated * 1e6:,.1f} / {measured * 1e6:,.1f}"
            for name, (simulated, measured) in outcome.engines.items()
        )
        print(
            f"{case.name:48} {outcome.simulated_s * 1e6:11,.2f} µs  measured {outcome.measured_s * 1e6:11,.2f}  "
            f"{outcome.error:+7.1%}  list {outcome.list_error:+7.1%}  {engines}",
            flush=True,
        )
    print(f"mean absolute error {total / len(CASES):.1%}")
    for case in OTHER_FORMS:
        outcome = simulate(case)
        print(f"{case.name:72} program {outcome.error:+7.1%}  list {outcome.list_error:+7.1%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
