"""What is known of machine, model and workload as facts: sizes and rates, the physical limit, the place on the roofline."""

from __future__ import annotations

from vibeserve.agents.agent import Fact
from vibeserve.base.provenance import Provenance
from vibeserve.hardware import Machine
from vibeserve.measure.limits import Limit, Workload, physical_limit
from vibeserve.targets import Bundle, ModelFacts
from vibeserve.targets.facts import DTYPE_BYTES

_COUNTED, _MEASURED = Provenance.COUNTED.value, Provenance.MEASURED.value


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


def limit_facts(bundle: Bundle, machine: Machine, model: ModelFacts, work: Workload) -> dict[str, Fact]:
    """`limit.value` with its argument as the source, and its terms; {} where this metric has no limit.

    Of the dtypes that the bundle allows, the one with the best limit counts.
    """
    limits = [physical_limit(machine, model, work, dtype, bundle.metric) for dtype in bundle.dtypes]
    known = [limit for limit in limits if limit.value is not None]
    if not known:
        return {}
    sign = 1.0 if bundle.metric.direction == "higher" else -1.0
    best = max(known, key=lambda limit: sign * _known(limit))
    facts = {"limit.value": Fact(_known(best), best.unit, _COUNTED, best.argument)}
    for name, term in (best.terms or {}).items():
        facts[f"limit.{name}"] = Fact(term.value, term.unit, str(term.provenance.value), term.source)
    return facts


def roofline_facts(facts: dict[str, Fact], work: Workload, tokens_per_s: float | None) -> dict[str, Fact]:
    """Intensity of one output token, and the FLOP/s that a measured rate of tokens comes to; {} where not counted."""
    try:
        flops = facts["limit.flops_per_request"].value / work.output_tokens
        weights = facts["limit.weight_bytes_per_pass"].value / (work.concurrency or 1.0)
        moved = weights + facts["limit.kv_bytes_per_request"].value / work.output_tokens
    except KeyError:
        return {}
    found = {"roofline.intensity": Fact(flops / moved, "FLOP/B", _COUNTED, "FLOPs / bytes of one output token")}
    if tokens_per_s is not None:
        source = "counted FLOPs of one output token × measured tokens/s"
        found["roofline.flops_per_s"] = Fact(flops * tokens_per_s, "FLOP/s", _COUNTED, source)
    return found


def _known(limit: Limit) -> float:
    assert limit.value is not None
    return limit.value
