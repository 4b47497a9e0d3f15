"""The least possible time of a workload on a machine: FLOPs over the peak, bytes over the bandwidth, whichever is more.

Everything is counted for one output token of a text workload: P prompt and N output tokens a request, C requests at once.

    FLOPs  = (body · (P - S + N - 1) + head · N) / N + attention over the context          (S: shared prefix, computed once)
    bytes  = weights / C + KV of the context                                              (a step reads every weight once)
    limit  = 1 / max(FLOPs / peak, bytes / bandwidth)                                     tokens/s

It leaves out everything that a server could do in no time at all (sampling, scheduling, the network), so it is never
reached; it says how much is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vibeserve.agents.agent import Fact
from vibeserve.base.provenance import Provenance
from vibeserve.hardware import Machine
from vibeserve.targets import ModelFacts
from vibeserve.targets.facts import DTYPE_BYTES

_COUNTED, _MEASURED = Provenance.COUNTED.value, Provenance.MEASURED.value


@dataclass(frozen=True)
class Workload:
    """Tokens of a request and requests at once; `rate` in requests/s for an open loop (`concurrency` is then None)."""

    prompt_tokens: float
    output_tokens: float
    concurrency: float | None
    rate: float | None = None
    shared_prefix_tokens: float = 0.0


@dataclass(frozen=True)
class Cost:
    """What one output token costs, counted: FLOPs and bytes."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.bytes


def cost_of(model: ModelFacts, work: Workload, dtype: str) -> Cost:
    """FLOPs and bytes of one output token, by the module's formulas."""
    prompt, output, shared = work.prompt_tokens, work.output_tokens, work.shared_prefix_tokens
    head = 2 * model.vocab * model.hidden
    body = max(0, model.flops_per_token - head)
    computed = max(0.0, prompt - shared) + output - 1
    context = prompt + output / 2
    attention = model.attention_flops_per_token(context) * computed / output
    weights = model.matmul_parameters * DTYPE_BYTES[dtype]
    rows = work.concurrency or 1.0
    return Cost(
        flops=(body * computed + head * output) / output + attention,
        bytes=weights / rows + model.kv_bytes_per_token(dtype) * context,
    )


def peak_of(machine: Machine, dtypes: tuple[str, ...]) -> tuple[str, float] | None:
    """The allowed dtype with the highest peak on this machine, and that peak; None where no peak is known."""
    known = [(machine.peaks[dtype], dtype) for dtype in dtypes if dtype in machine.peaks]
    return (max(known)[1], max(known)[0]) if known else None


def limit_facts(
    metric: str, machine: Machine, model: ModelFacts, work: Workload, dtypes: tuple[str, ...]
) -> dict[str, Fact]:
    """`limit.value` for the metric with its argument as the source, and the times that it is made of; {} where unknown."""
    best = peak_of(machine, dtypes)
    if best is None or work.output_tokens < 1:
        return {}
    dtype, peak = best
    cost = cost_of(model, work, dtype)
    compute_s, memory_s = cost.flops / peak, cost.bytes / machine.bandwidth_bytes_per_s
    argument = (
        f"one output token needs {cost.flops:.4g} FLOPs (at {peak:.4g} FLOP/s in {dtype}: {compute_s * 1e3:.3g} ms) and "
        f"{cost.bytes:.4g} bytes (at {machine.bandwidth_bytes_per_s:.4g} B/s: {memory_s * 1e3:.3g} ms); "
        f"the larger is the least time"
    )
    tokens_per_s = 1 / max(compute_s, memory_s)
    if work.rate:
        tokens_per_s = min(tokens_per_s, work.rate * work.output_tokens)
        argument += f"; and no more arrives than {work.rate:g} requests/s of {work.output_tokens:g} tokens"
    value, argument = _for_metric(metric, tokens_per_s, work, argument)
    if value is None:
        return {}
    return {
        "limit.value": Fact(value, "", _COUNTED, argument),
        "limit.compute_s": Fact(compute_s, "s", _COUNTED, "FLOPs of one output token / measured peak"),
        "limit.memory_s": Fact(memory_s, "s", _COUNTED, "bytes of one output token / measured bandwidth"),
    }


def _for_metric(metric: str, tokens_per_s: float, work: Workload, argument: str) -> tuple[float | None, str]:
    if metric == "output_tokens_per_s":
        return tokens_per_s, argument
    if metric == "request_throughput":
        return tokens_per_s / work.output_tokens, f"{argument}; {work.output_tokens:g} tokens a request"
    if metric.endswith("latency_s") and work.concurrency:
        least = work.concurrency * work.output_tokens / tokens_per_s
        law = f"Little's law: {work.concurrency:g} requests of {work.output_tokens:g} tokens at that rate, on average"
        return least, f"{argument}; {law}"
    return None, ""


def fixed_facts(machine: Machine, model: ModelFacts, dtypes: tuple[str, ...], cores: int) -> dict[str, Fact]:
    """What is known of machine and model before anything runs."""
    first = dtypes[0]
    source = f"measured on this machine ({machine.title})" if machine.name == "cpu" else machine.title
    facts = {
        "machine.cores": Fact(cores, "cores", _MEASURED, "cores that this process may run on"),
        "machine.bandwidth_bytes_per_s": Fact(machine.bandwidth_bytes_per_s, "B/s", _MEASURED, source),
        "machine.memory_bytes": Fact(machine.memory_bytes, "B", _MEASURED, source),
        "model.parameters": Fact(model.parameters, "", _COUNTED, "config.json and safetensors headers"),
        "model.flops_per_token": Fact(model.flops_per_token, "FLOP", _COUNTED, "2 · matmul parameters"),
        "model.weight_bytes": Fact(
            model.matmul_parameters * DTYPE_BYTES[first], "B", _COUNTED, f"matmul parameters in {first}"
        ),
        "model.kv_bytes_per_token": Fact(
            model.kv_bytes_per_token(first), "B", _COUNTED, f"2 · layers · kv_heads · head_dim in {first}"
        ),
    }
    for dtype, peak in machine.peaks.items():
        facts[f"machine.peak.{dtype}"] = Fact(peak, "FLOP/s", _MEASURED, source)
    if first in machine.peaks:
        facts["machine.flops_per_s"] = Fact(machine.peaks[first], "FLOP/s", _MEASURED, f"{source}, {first}")
    return facts


def workload_of(document: Mapping[str, object]) -> Workload | None:
    """The workload as the benchmark's JSON describes it; None where it does not."""
    table = document.get("workload")
    if not isinstance(table, dict):
        return None
    prompt, output = table.get("prompt_tokens"), table.get("output_tokens")
    if not isinstance(prompt, int | float) or not isinstance(output, int | float) or output < 1:
        return None
    shared = table.get("shared_prefix_tokens") or 0
    return Workload(prompt + shared, output, table.get("concurrency"), table.get("rate"), shared)
