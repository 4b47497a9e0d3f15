"""The physical limit against numbers worked out by hand."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.base.errors import InputError
from vibeserve.base.jsonio import dumps
from vibeserve.base.provenance import Provenance
from vibeserve.hardware import Machine
from vibeserve.hardware.machine import Figure
from vibeserve.measure.limits import OUTPUT_TOKENS, Workload, physical_limit
from vibeserve.targets.facts import ModelFacts
from vibeserve.targets.types import Metric

# Round numbers: body 800 and head 10 · 20 = 200 parameters, 4 bytes each; a token's keys and values 2·2·1·5·4 = 80 bytes.
FACTS = ModelFacts(
    architecture="Tiny",
    parameters=1200,
    matmul_parameters=1000,
    stored_dtypes={"float32": 1200},
    weight_bytes={"float32": 4800},
    layers=2,
    hidden=10,
    intermediate=20,
    heads=2,
    kv_heads=1,
    head_dim=5,
    vocab=20,
    max_positions=100,
    tied_embeddings=True,
)
BANDWIDTH = Figure(1e6, "bytes/s", Provenance.MEASURED, "a copy of 1 GiB")
MACHINE = Machine(
    name="toy",
    title="Toy",
    vendor="",
    kind="cpu",
    generation="",
    peaks={"float32": 1e7},
    bandwidth_bytes_per_s=1e6,
    memory_bytes=1e9,
    figures={"bandwidth_bytes_per_s": (BANDWIDTH,)},
)
WORK = Workload(prompt_tokens=3, output_tokens=4, concurrency=2)
# By hand, for WORK:
#   prefill FLOPs  2·800·3 + 2·200 + 4·2·2·5 · (1+2+3)       = 4800 + 400 + 80·6         = 5680
#   decode FLOPs   3 steps · (2·1000 + 80 · (4+5+6)/3)        = 3 · (2000 + 400)          = 7200
#   KV read        steps attend to 4, 5, 6 tokens, 3+4+5 read = 12 · 80                   = 960
#   KV written     (3 + 3) · 80                                                           = 480
#   weights        4 passes · 4000 / 2                                                    = 8000
#   bytes 9440 -> 9.44 ms at 1 MB/s;  FLOPs 12880 -> 1.288 ms at 10 MFLOP/s
PER_REQUEST_S = 9440 / 1e6


def metric(name: str, direction="lower") -> Metric:
    return Metric(name, "s", direction)


def test_tokens_and_requests_per_second():
    limit = physical_limit(MACHINE, FACTS, WORK)
    assert limit.value == pytest.approx(4 / PER_REQUEST_S)
    assert limit.binding == "memory"
    assert limit.terms is not None
    assert limit.terms["flops_per_request"].value == 12880
    assert limit.terms["kv_bytes_per_request"].value == 1440
    assert limit.terms["weight_bytes_per_pass"].value == 4000
    requests = physical_limit(MACHINE, FACTS, WORK, metric=metric("request_throughput", "higher"))
    assert requests.value == pytest.approx(1 / PER_REQUEST_S)


def test_arithmetic_binds_where_the_peak_is_low():
    slow = replace(MACHINE, peaks={"float32": 1e6})
    limit = physical_limit(slow, FACTS, WORK)
    assert limit.value == pytest.approx(4 / (12880 / 1e6))
    assert limit.binding == "compute"


def test_arrivals_bind_where_few_come():
    limit = physical_limit(MACHINE, FACTS, replace(WORK, concurrency=None, rate=2.0))
    assert limit.value == 8.0
    assert limit.binding == "arrivals"
    assert "only 2 requests arrive a second" in limit.argument


def test_one_request_alone():
    # first pass: weights 4000 + KV written 240 = 4240 B; a step: 4000 + 960/3 + 80 = 4400 B
    assert physical_limit(MACHINE, FACTS, WORK, metric=metric("p50_ttft_s")).value == pytest.approx(4240 / 1e6)
    assert physical_limit(MACHINE, FACTS, WORK, metric=metric("tpot_s")).value == pytest.approx(4400 / 1e6)
    whole = physical_limit(MACHINE, FACTS, WORK, metric=metric("p95_latency_s"))
    assert whole.value == pytest.approx((4240 + 3 * 4400) / 1e6)
    assert whole.fraction(2 * whole.value, metric("p95_latency_s")) == pytest.approx(0.5)


def test_a_shared_prefix_is_computed_once_and_read_by_all():
    shared = replace(WORK, prompt_tokens=10, shared_prefix_tokens=7)
    limit = physical_limit(MACHINE, FACTS, shared, metric=metric("ttft_s"))
    assert limit.value == pytest.approx((4000 + 7 * 80 + 3 * 80) / 1e6)
    assert limit.terms is not None
    # prefill: 2·800·3 + 400 + 80·(8+9+10); decode: 3 steps over 11, 12, 13 tokens
    assert limit.terms["flops_per_request"].value == 4800 + 400 + 80 * 27 + 3 * 2000 + 80 * 36


def test_every_term_says_how_it_is_known():
    limit = physical_limit(MACHINE, FACTS, WORK)
    assert limit.terms is not None
    assert limit.terms["bandwidth_bytes_per_s"].provenance is Provenance.MEASURED
    assert limit.terms["bandwidth_bytes_per_s"].source == "toy: a copy of 1 GiB"
    assert limit.terms["peak_flops_per_s"].provenance is Provenance.ASSUMED
    assert limit.terms["flops_per_request"].provenance is Provenance.COUNTED
    assert json.loads(dumps(limit))["terms"]["weight_bytes_per_pass"]["unit"] == "bytes"


def test_where_there_is_no_limit_the_reason_is_given():
    for limit, said in [
        (physical_limit(MACHINE, FACTS, WORK, metric=metric("beauty")), "no rule for the limit of 'beauty'"),
        (physical_limit(MACHINE, FACTS, WORK, "bfloat16"), "toy has no peak for bfloat16"),
        (physical_limit(MACHINE, FACTS, WORK, "float3"), "no rule for weights in float3"),
        (physical_limit(MACHINE, FACTS, replace(WORK, output_tokens=1), metric=metric("tpot_s")), "no time between"),
    ]:
        assert limit.value is None
        assert said in limit.argument
        assert limit.fraction(1.0, OUTPUT_TOKENS) is None


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 64))
def test_more_requests_in_flight_never_lower_the_limit_and_one_alone_keeps_it(prompt, output, together):
    one = physical_limit(MACHINE, FACTS, Workload(prompt, output, 1)).value
    many = physical_limit(MACHINE, FACTS, Workload(prompt, output, together)).value
    alone = physical_limit(MACHINE, FACTS, Workload(prompt, output, 1), metric=metric("latency")).value
    assert one is not None
    assert many is not None
    assert alone is not None
    assert many >= one * (1 - 1e-9)
    assert alone >= output / one * (1 - 1e-9)  # passes in turn are never faster than all at once


def test_workload_of_a_benchmark():
    found = {"prompt_tokens": 64, "output_tokens": 64, "concurrency": 16, "rate": None, "features": ["chat"]}
    assert Workload.from_document({"workload": found}) == Workload(64, 64, 16, None, 0)
    assert Workload.from_document({"workload": found | {"shared_prefix_tokens": 100}}) == Workload(
        164, 64, 16, None, 100
    )
    for bad in ({}, {"workload": []}, {"workload": {"prompt_tokens": 3}}):
        with pytest.raises(InputError, match="workload"):
            Workload.from_document(bad)
