"""Bounds and gaps: one profile worked out on paper, odd profiles, and properties."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.profiles import made

from vibeserve.base.errors import InputError
from vibeserve.profiles import bounds, schema
from vibeserve.profiles.profile import Profile


def test_the_worked_example():
    held = bounds(made.worked_example())
    assert held.window.pair == (1000, 13000)
    assert held.total_time_s == 12e-6
    assert held.inputs["dma_bytes"] == 2_228_224
    assert held.inputs["necessary_bytes"] == 1_572_864
    assert held.inputs["hardware_flops"] == 234_881_024
    assert held.inputs["transpose_flops"] == 33_554_432
    expected_ns = {
        "memory_bound": 8710,
        "memory_bound_ideal": 5122.354,
        "memory_bound_ideal_no_reloads": 3615.779,
        "compute_bound": 6500,
        "compute_bound_ideal_flops": 2986.667,
        "compute_bound_ideal_useful_flops": 2560.0,
        "perfect_pipeline": 8710,
    }
    assert {b.name: b.value_s * 1e9 for b in held.bounds} == pytest.approx(expected_ns, abs=1e-3)
    speedups = {b.name: b.speedup_if_reached for b in held.bounds}
    assert speedups["memory_bound"] == pytest.approx(12000 / 8710)
    assert speedups["memory_bound_ideal"] == pytest.approx(12000 / 6500)
    assert speedups["memory_bound_ideal_no_reloads"] == pytest.approx(12000 / 6500)
    assert speedups["compute_bound_ideal_flops"] == pytest.approx(12000 / 8710)
    gaps_ns = {gap.lower: gap.gap_s * 1e9 for gap in held.gaps}
    assert gaps_ns == pytest.approx(
        {
            "memory_bound": 3290,
            "memory_bound_ideal": 3587.646,
            "memory_bound_ideal_no_reloads": 1506.575,
            "compute_bound": 5500,
            "compute_bound_ideal_flops": 3513.333,
            "compute_bound_ideal_useful_flops": 426.667,
            "perfect_pipeline": 3290,
        },
        abs=1e-3,
    )
    assert held.gap("memory_bound").share == pytest.approx(0.2742, abs=1e-4)
    assert held.engines == pytest.approx(
        {"tensor": 6.5e-6, "vector": 2.5e-6, "scalar": 2.5e-6, "gpsimd": 0.0, "sync": 0.0, "dma": 8.71e-6}
    )
    assert held.bottleneck == ("dma",)


def test_a_window_clips_time_and_counts_rows_by_their_start():
    held = bounds(made.worked_example(), (3000, 9000))
    assert held.value("memory_bound") == pytest.approx((3010 + 1000) / 1e9)  # [3000,6010) and [8000,9000)
    assert held.inputs["dma_bytes"] == 524_288 + 262_144
    assert held.value("compute_bound") == pytest.approx((3000 + 1500) / 1e9)
    assert held.inputs["hardware_flops"] == 12 * 16_777_216 + 8 * 4_194_304
    assert held.value("memory_bound_ideal_no_reloads") is None  # bytes needed have no meaning within a window
    document = held.document()
    missing = next(b for b in document["bounds"] if b["name"] == "memory_bound_ideal_no_reloads")
    assert missing["value_s"] is None
    assert missing["value_s_reason"] == "necessary_bytes is unknown"


def test_json_has_the_agreed_keys():
    document = bounds(made.worked_example()).document()
    assert {"profile", "total_time_s", "bounds", "gaps", "engines", "bottleneck"} <= set(document)
    assert set(document["bounds"][0]) >= {"family", "name", "value_s", "formula"}
    assert set(document["gaps"][0]) >= {"family", "from", "to", "gap_s", "share"}
    assert set(document["engines"][0]) == {"name", "active_s"}
    assert [bound["name"] for bound in document["bounds"]] == [
        "memory_bound",
        "memory_bound_ideal",
        "memory_bound_ideal_no_reloads",
        "compute_bound",
        "compute_bound_ideal_flops",
        "compute_bound_ideal_useful_flops",
        "perfect_pipeline",
    ]


def test_without_dma_packets_memory_bounds_are_null_with_a_reason():
    profile = made.worked_example()
    tables = {key: value for key, value in profile.tables.items() if key != "DmaPacket"}
    held = bounds(Profile("p", tables))
    assert held.value("memory_bound") is None
    assert held.value("compute_bound") == pytest.approx(3.964e-6)  # the instructions span 4000 to 8464: 3000 + 964
    assert held.bottleneck == ("tensor",)
    assert any("DGE" in note for note in held.notes)


def test_one_engine_only():
    held = bounds(
        Profile(
            "p",
            {
                "ActiveTime": made.active(("vector", 0, 70), ("vector", 50, 90)),
                "DmaPacket": made.packets((0, 100, 64, "data")),
            },
        )
    )
    assert held.engines["vector"] == 90e-9
    assert held.bottleneck == ("dma", "vector")  # 100 and 90 ns: within 10 %
    assert held.value("compute_bound_ideal_flops") is None


def test_active_time_is_taken_from_instructions_where_there_is_none_without_pure_waits():
    rows = [
        made.instruction(start_ts=0, end_ts=50),
        made.instruction(start_ts=50, end_ts=400, opcode="EVENT_SEMAPHORE", id=1),
    ]
    held = bounds(Profile("p", {"Instruction": made.instructions(rows)}))
    assert held.engines["tensor"] == 50e-9


def test_fp8_counts_at_its_bf16_price():
    rows = [made.matmul(0, 128, 128, 512) | {"adjusted_flops": 128 * 128 * 512}]
    held = bounds(
        Profile("p", {"Instruction": made.instructions(rows), "Metadata": schema.build("Metadata", made.METADATA)})
    )
    assert held.inputs["hardware_flops"] == 128 * 128 * 512


def test_two_cores_the_busiest_is_looked_at_and_the_other_on_request():
    rows = [made.matmul(0, 128, 128, 512, id=i, pcore_idx=i % 3 > 0) for i in range(9)]
    for row in rows:
        row["pcore_idx"] = int(row["pcore_idx"])
    profile = Profile("p", {"Instruction": made.instructions(rows)})
    assert bounds(profile).window.pcore == 1
    assert bounds(profile, pcore=0).inputs["hardware_flops"] == 3 * 2 * 128 * 128 * 512
    with pytest.raises(InputError, match="no physical core 7"):
        bounds(profile, pcore=7)


def test_a_negative_gap_is_printed_as_it_is_and_flagged():
    profile = made.worked_example()
    larger = made.tensors(("x", "IN", 2_228_224), ("y", "OUT", 435_000))
    held = bounds(Profile("p", {**profile.tables, "TensorInfo": larger}))
    assert held.gap("memory_bound_ideal_no_reloads").gap_s == pytest.approx(-1e-6)  # 435,000 B more at 435 GB/s
    (flag,) = [note for note in held.notes if "negative" in note]
    assert "memory_bound_ideal to memory_bound_ideal_no_reloads" in flag
    assert not [note for note in bounds(profile).notes if "negative" in note]


def test_nothing_to_measure_is_said():
    with pytest.raises(InputError, match="nothing to measure"):
        bounds(Profile("empty", {"Metadata": schema.build("Metadata", made.METADATA)}))


@pytest.mark.parametrize("window", [(5, 5), (9, 3)])
def test_an_empty_window_is_refused(window):
    with pytest.raises(InputError, match="empty window"):
        bounds(made.worked_example(), window)


span = st.tuples(st.integers(0, 5000), st.integers(1, 2000)).map(lambda p: (p[0], p[0] + p[1]))


@settings(max_examples=20)
@given(
    st.lists(span, min_size=1, max_size=12),
    st.lists(st.tuples(st.sampled_from(["tensor", "vector", "scalar", "gpsimd", "sync"]), span), max_size=12),
)
def test_a_bound_on_busy_time_never_exceeds_the_total(transfers, busy):
    profile = Profile(
        "p",
        {
            "DmaPacket": made.packets(*((start, end, 4096, "hardware_dynamic") for start, end in transfers)),
            "ActiveTime": made.active(*((engine, *pair) for engine, pair in busy)),
        },
    )
    held = bounds(profile)
    for name in ("memory_bound", "compute_bound", "perfect_pipeline"):
        assert 0 <= held.value(name) <= held.total_time_s + 1e-15
    assert held.value("perfect_pipeline") >= max(held.value("memory_bound"), held.value("compute_bound"))
    assert held.gap("perfect_pipeline").gap_s >= -1e-15
