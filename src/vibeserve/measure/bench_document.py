"""What `bench` says: the benchmark's own figures under fixed names, and the improvement where two servers are compared."""

from __future__ import annotations

import statistics
from typing import Any

from vibeserve.measure.compare import Comparison
from vibeserve.measure.gates import BenchResult
from vibeserve.targets.types import Bundle

# Always there: taken from the benchmark's JSON by name; null with a reason where it does not say.
FIGURES = [
    "requests",
    "failed",
    "duration_s",
    "ttft_s",
    "tpot_s",
    "itl_s",
    "latency_s",
    "request_throughput",
    "output_tokens_per_s",
    "goodput",
    "client_overhead_s",
]


def bench_document(bundle: Bundle, result: BenchResult, comparison: Comparison | None = None) -> dict[str, Any]:
    """The JSON of `bench`: all that the benchmark wrote, the contract's keys first.

    With a comparison `value` is the median over its windows of the server that was asked about (b), and `improvement`
    says how many times better it is than the other.
    """
    value = result.value if comparison is None else statistics.median(comparison.values_b)
    document: dict[str, Any] = {"metric": bundle.metric.name, "value": value, "unit": bundle.metric.unit}
    if value is None:
        document["value_reason"] = result.detail
    for name in FIGURES:
        document[name] = result.document.get(name)
        if document[name] is None:
            said = result.document.get(f"{name}_reason")
            document[f"{name}_reason"] = said or f"{bundle.benchmark_script.name} does not say"
    document["improvement"] = None if comparison is None else improvement(comparison)
    if comparison is None:
        document["improvement_reason"] = "one server alone; --against URL2 compares"
    else:
        document |= {"noisy": comparison.noisy, "notes": list(comparison.notes)}
        document["values"] = {"url": list(comparison.values_b), "against": list(comparison.values_a)}
    return document | {name: item for name, item in result.document.items() if name not in document}


def improvement(comparison: Comparison) -> dict[str, Any]:
    """`{"ratio", "ci95", "pairs"}`: above 1 is better."""
    ci95 = None if comparison.ci95 is None else list(comparison.ci95)
    return {"ratio": comparison.ratio, "ci95": ci95, "pairs": comparison.pairs}
