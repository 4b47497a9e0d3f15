"""The physical limit: the least possible time for a workload on a machine, from bytes that must move and FLOPs that
must be done. Every term says how it is known.

What is counted, for a request of P prompt tokens (S of them in a prefix that it shares) and N output tokens, on a model
with W bytes of weights that every token meets, of which the output head is a part:

- passes: N, since each output token needs the one before it. A pass reads the weights once, for all requests in flight.
- FLOPs: 2 · (weights without head) for each of the P − S + N − 1 tokens that go through the model, 2 · head for each of
  the N that are sampled, and 4 · layers · heads · head_dim for each token and each token that it attends to.
- keys and values: each pass after the first reads those of its context, each token writes its own.

Memory and arithmetic can overlap perfectly, and so can the prefill of one request and the decoding of others: a set of
requests takes at least the longer of the two, not their sum. Alone, a request's passes follow each other: there the
longer of the two is taken pass by pass. Speculation that is accepted reads the weights less often than once a token; the
limit is that of a server which runs the model once a token, and `assumptions` says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.provenance import Provenance, Quantity
from vibeserve.base.units import duration, si
from vibeserve.hardware import Machine
from vibeserve.targets.facts import DTYPE_BYTES, ModelFacts
from vibeserve.targets.types import Metric

OUTPUT_TOKENS = Metric("output_tokens_per_s", "tokens/s", "higher")

# Which bound a metric has: by the first of these that its name contains.
KINDS = (
    ("ttft", "first token"),
    ("tpot", "each token"),
    ("itl", "each token"),
    ("latency", "whole request"),
    ("request_throughput", "requests"),
    ("goodput", "requests"),
    ("tokens_per_s", "tokens"),
    ("throughput", "tokens"),
)
ASSUMPTIONS = (
    "the weights do not fit into the caches, and are read once a pass, whatever the number of requests in flight",
    "each request goes through the model once a token; speculation that is accepted can need fewer passes",
    "memory and arithmetic overlap perfectly; nothing else takes any time",
)


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked of the server. Tokens per request; `concurrency` requests are in flight, or `rate` arrive a second.

    `prompt_tokens` are all of a prompt, the shared prefix included.
    """

    prompt_tokens: float
    output_tokens: float
    concurrency: float | None = None
    rate: float | None = None
    shared_prefix_tokens: float = 0.0

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Workload:
        """The `workload` object of a benchmark's JSON, whose `prompt_tokens` come after the shared prefix.

        Raises InputError where it does not say enough.
        """
        found = document.get("workload")
        if not isinstance(found, Mapping):
            raise InputError("the benchmark's JSON has no 'workload' object", hint="see docs/measure.md, 'The limit'")
        values: dict[str, float | None] = {}
        for name in ("prompt_tokens", "output_tokens", "concurrency", "rate", "shared_prefix_tokens"):
            value = found.get(name)
            values[name] = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        if not values["prompt_tokens"] or not values["output_tokens"]:
            raise InputError("the benchmark's workload does not say prompt_tokens and output_tokens")
        shared = values["shared_prefix_tokens"] or 0.0
        return cls(
            values["prompt_tokens"] + shared, values["output_tokens"], values["concurrency"], values["rate"], shared
        )


@dataclass(frozen=True)
class Limit:
    """The best value that a metric can have. None where there is no bound, with `argument` saying why.

    `binding` is memory, compute or arrivals; `terms` are the numbers that it is made of, each with its provenance.
    """

    value: float | None
    unit: str
    argument: str
    binding: str = ""
    terms: Mapping[str, Quantity] | None = None
    assumptions: tuple[str, ...] = ASSUMPTIONS

    def fraction(self, measured: float, metric: Metric) -> float | None:
        """How near a measured value is: 1 is at the limit, whatever the direction."""
        if self.value is None or measured <= 0:
            return None
        return measured / self.value if metric.direction == "higher" else self.value / measured


def physical_limit(
    machine: Machine, facts: ModelFacts, workload: Workload, dtype: str = "float32", metric: Metric = OUTPUT_TOKENS
) -> Limit:
    """The best value of `metric` that `machine` allows for `workload`, computing in `dtype`."""
    kind = next((kind for words, kind in KINDS if words in metric.name), None)
    if kind is None:
        return Limit(None, metric.unit, f"there is no rule for the limit of {metric.name!r}")
    if dtype not in DTYPE_BYTES:
        return Limit(None, metric.unit, f"there is no rule for weights in {dtype}")
    try:
        count = _Count(machine, facts, workload, dtype)
    except InputError as error:
        return Limit(None, metric.unit, error.message)
    if kind in ("tokens", "requests"):
        return _throughput(count, kind, metric)
    return _alone(count, kind, metric)


class _Count:
    """The terms, counted once."""

    def __init__(self, machine: Machine, facts: ModelFacts, workload: Workload, dtype: str):
        self.workload, self.facts = workload, facts
        self.peak = machine.peak_flops_per_s(dtype)
        self.bandwidth = machine.bandwidth_bytes_per_s
        self.head = facts.hidden * facts.vocab
        self.body = facts.matmul_parameters - self.head
        self.weight_bytes = facts.matmul_parameters * DTYPE_BYTES[dtype]
        self.kv_bytes = facts.kv_bytes_per_token(dtype)
        self.new_prompt = max(1.0, workload.prompt_tokens - workload.shared_prefix_tokens)
        self.shared = workload.prompt_tokens - self.new_prompt
        self.machine = machine
        self.dtype = dtype

    def prefill_flops(self) -> float:
        """FLOPs up to the first output token."""
        tokens = self.new_prompt
        attended = tokens * self.shared + tokens * (tokens + 1) / 2
        return 2 * self.body * tokens + 2 * self.head + self.facts.attention_flops_per_token(1) * attended

    def decode_flops(self) -> float:
        """FLOPs of the output tokens after the first."""
        steps = self.workload.output_tokens - 1
        return steps * (2 * (self.body + self.head) + self.facts.attention_flops_per_token(self._context()))

    def _context(self) -> float:
        """Tokens that a decoding step attends to, itself included, on average over the steps."""
        return self.workload.prompt_tokens + self.workload.output_tokens / 2

    def kv_read_bytes(self) -> float:
        """Keys and values that the decoding steps of one request read."""
        return (self.workload.output_tokens - 1) * (self._context() - 1) * self.kv_bytes

    def kv_written_bytes(self) -> float:
        """Keys and values that one request writes."""
        return (self.new_prompt + self.workload.output_tokens - 1) * self.kv_bytes

    def terms(self) -> dict[str, Quantity]:
        """Everything that the limit is made of."""
        counted = Provenance.COUNTED
        return {
            "weight_bytes_per_pass": Quantity(
                self.weight_bytes, "bytes", counted, f"{self.facts.matmul_parameters} parameters in {self.dtype}"
            ),
            "kv_bytes_per_request": Quantity(
                self.kv_read_bytes() + self.kv_written_bytes(), "bytes", counted, "read and written"
            ),
            "flops_per_request": Quantity(
                self.prefill_flops() + self.decode_flops(), "FLOP", counted, "products with weights, and attention"
            ),
            "bandwidth_bytes_per_s": _machines(self.machine, "bandwidth_bytes_per_s", self.bandwidth, "bytes/s"),
            "peak_flops_per_s": _machines(self.machine, f"peaks.{self.dtype}", self.peak, "FLOP/s"),
        }


def _machines(machine: Machine, quantity: str, value: float, unit: str) -> Quantity:
    """A figure of the machine, with its own provenance."""
    if quantity in machine.figures:
        figure = machine.used(quantity)
        return Quantity(value, unit, figure.provenance, f"{machine.name}: {figure.source}")
    return Quantity(value, unit, Provenance.ASSUMED, f"{machine.name}: no source given")


def _throughput(count: _Count, kind: str, metric: Metric) -> Limit:
    """The most tokens (or requests) per second: `concurrency` requests share the reading of the weights."""
    workload = count.workload
    together = workload.concurrency or math.inf
    passes = workload.output_tokens
    moved = passes * count.weight_bytes / together + count.kv_read_bytes() + count.kv_written_bytes()
    flops = count.prefill_flops() + count.decode_flops()
    memory_s, compute_s = moved / count.bandwidth, flops / count.peak
    per_request_s, binding = max((memory_s, "memory"), (compute_s, "compute"))
    words = (
        f"a request moves {si(moved, 'B')} ({_share(workload)}of {si(count.weight_bytes, 'B')} of weights a pass, keys and "
        f"values) and takes {si(flops, 'FLOP')}: at least {duration(memory_s)} of memory and {duration(compute_s)} of arithmetic"
    )
    if workload.rate is not None and 1 / workload.rate > per_request_s:
        per_request_s, binding = 1 / workload.rate, "arrivals"
        words += f"; but only {workload.rate:g} requests arrive a second"
    each = workload.output_tokens if kind == "tokens" else 1.0
    return Limit(each / per_request_s, metric.unit, f"{words}; {binding} binds", binding, count.terms())


def _share(workload: Workload) -> str:
    return f"1/{workload.concurrency:g} " if workload.concurrency else "no share "


def _alone(count: _Count, kind: str, metric: Metric) -> Limit:
    """The least time of one request that has the machine to itself: its passes follow each other."""
    workload, bandwidth = count.workload, count.bandwidth
    first_bytes = count.weight_bytes + count.shared * count.kv_bytes + count.new_prompt * count.kv_bytes
    first_s, first = max((first_bytes / bandwidth, "memory"), (count.prefill_flops() / count.peak, "compute"))
    steps = workload.output_tokens - 1
    step_s, step = 0.0, first
    if steps > 0:
        step_bytes = count.weight_bytes + count.kv_read_bytes() / steps + count.kv_bytes
        step_s, step = max((step_bytes / bandwidth, "memory"), (count.decode_flops() / steps / count.peak, "compute"))
    words = f"alone: the first token takes at least {duration(first_s)} ({first}), each further one {duration(step_s)} ({step})"
    value, binding = {
        "first token": (first_s, first),
        "each token": (step_s, step),
        "whole request": (first_s + steps * step_s, step if steps * step_s > first_s else first),
    }[kind]
    if kind == "each token" and steps < 1:
        return Limit(None, metric.unit, "with one output token there is no time between tokens")
    return Limit(value, metric.unit, f"{words}; {binding} binds", binding, count.terms())
