"""The page of the V-JEPA 2 MLP, number by number: what a hand count got, exactly."""

import json
from fractions import Fraction

import pytest

from vibeserve.base.paths import packaged
from vibeserve.roofline import analyze, with_measured
from vibeserve.roofline.crossings import crossings


@pytest.fixture(scope="module")
def page():
    return analyze("vjepa2-mlp", target="trn2", lnc=2)


@pytest.fixture
def document(cli):
    def run(*args):
        code, out, _ = cli("roofline", "vjepa2-mlp", "--target", "trn2", "--lnc", 2, "--json", *args)
        assert code == 0
        return json.loads(out)

    return run


def named(document, name):
    return next(variant for variant in document["variants"] if variant["name"] == name)


def step(variant, title):
    return next(step for step in variant["steps"] if step["title"] == title)


def test_fused(document):
    fused = named(document(), "fused")
    assert fused["flops"] == 34359738368
    assert fused["bytes"] == 41943040
    assert fused["intensity"] == 819.2
    assert fused["per_core"]["intensity"] == 819.2
    assert fused["per_core"]["flops"] * 2 == fused["flops"]
    assert fused["peak_flops_per_s"] == 157.2864e12
    assert fused["per_core"]["peak_flops_per_s"] == 78.6432e12
    assert fused["bandwidth_bytes_per_s"] == 0.75e12
    assert f"{fused['t_compute_s'] * 1e6:.1f}" == "218.5"
    assert f"{fused['t_memory_s'] * 1e6:.1f}" == "55.9"
    assert f"{fused['t_lower_s'] * 1e6:.1f}" == "218.5"
    assert f"{fused['t_upper_s'] * 1e6:.1f}" == "274.4"
    assert fused["attainable_from_memory_flops_per_s"] == 614.4e12
    assert fused["bound"] == "compute"
    assert f"{fused['ridge']:.1f}" == "209.7"
    assert fused["transpose_flops"] == 0


def test_unfused(document):
    unfused = named(document(), "unfused")
    assert unfused["flops"] == 34359738368
    assert unfused["bytes"] == 109051904
    assert f"{unfused['intensity']:.2f}" == "315.08"
    assert f"{unfused['attainable_from_memory_flops_per_s'] / 1e12:.0f}" == "236"
    assert unfused["bound"] == "compute"


def test_contract_keys(document):
    found = document()
    assert {"op", "dims", "target", "lnc", "dtype", "variants", "measured"} <= set(found)
    assert (found["op"], found["target"], found["lnc"], found["dtype"]) == ("vjepa2-mlp", "trn2", 2, "bfloat16")
    assert found["dims"] == {"R": 2048, "D": 1024, "F": 4096}
    for variant in found["variants"]:
        for line in variant["steps"]:
            assert {"title", "formula", "value", "unit"} <= set(line)
        for crossing in variant["crossings"]:
            assert {"dim", "value", "per_core_rows"} <= set(crossing)
            assert crossing["per_core_rows"] is not None or crossing["per_core_rows_reason"]


def test_the_token_count_is_a_step(document):
    tokens = step(named(document(), "fused"), "Size R")
    assert tokens["formula"] == "R = (image ÷ patch)² × (frames ÷ tubelet)"
    assert tokens["numbers"].endswith("256 × 8")
    assert tokens["value"] == 2048


def test_steps_stand_in_the_order_of_the_page(document):
    titles = [line["title"] for line in named(document(), "fused")["steps"]]
    order = [
        "Size R",
        "Work",
        "Peak",
        "Compute time",
        "Time bounds",
        "Intensity",
        "Attainable from memory",
        "Ridge",
        "Work in all",
        "Split of R",
        "Intensity of one core",
        "Weights alone",
        "At R = 256",
        "Crossing in R",
        "Peak of one core",
        "Peak of LNC=2",
        "Bandwidth of a core pair",
    ]
    places = [titles.index(title) for title in order]
    assert places == sorted(places)


def test_symbols_as_one_writes_them(document):
    fused = named(document(), "fused")
    core = step(fused, "Intensity of one core")
    assert core["formula"].endswith("= r·F/(F + r)")
    assert core["numbers"] == "1024 × 4096 ÷ (4096 + 1024)"
    assert fused["per_core"]["intensity_formula"] == "r·F/(F + r)"
    assert step(fused, "Work in all")["formula"] == "W = 2·R·D·F + 2·R·D·F = 4·R·D·F"
    weights = step(fused, "Weights alone")
    assert (weights["formula"], weights["value"]) == ("I = r", 1024)


def test_peak_and_bandwidth_are_derived_from_the_machine(document):
    fused = named(document(), "fused")
    core = step(fused, "Peak of one core")
    assert core["numbers"] == "128 × 128 × 2 × 2.4e9"
    assert core["value"] == 78.6432e12
    assert "documented: 79 TFLOPS" in core["note"]
    pair = step(fused, "Bandwidth of a core pair")
    assert (pair["numbers"], pair["value"]) == ("2 × 3e12 ÷ 8", 0.75e12)
    assert "not used: profiles 2.864e12" in pair["note"]


def test_at_256_tokens(document):
    fused = named(document("--set", "R=256"), "fused")
    assert fused["per_core"]["sizes"]["r"] == 128
    assert f"{fused['intensity']:.1f}" == "124.1"
    assert fused["bound"] == "memory"
    there = step(named(document(), "fused"), "At R = 256")
    assert f"{there['value']:.1f}" == "124.1"
    assert "r = 128" in there["note"]
    assert "memory-bound" in there["note"]


def test_crossing(document, page):
    crossing = named(document(), "fused")["crossings"][0]
    assert crossing["dim"] == "R"
    assert f"{crossing['per_core_rows']:.2f}" == "221.03"
    assert f"{crossing['value']:.2f}" == "442.06"
    note = step(named(document(), "fused"), "Crossing in R")["note"]
    assert "ridge rounded to 210" in note
    assert "r ≈ 221, so 2 × 221 = 442" in note
    fused = page.variant("fused")
    exact = crossings(fused.count, fused.over, page.sizes, {}, ridge=Fraction(210))[0]
    assert round(exact.per_core) == 221


def test_other_bandwidth_sources(document):
    fused = named(document("--bandwidth", "profiles"), "fused")
    assert fused["bandwidth_bytes_per_s"] == 716e9
    fused = named(document("--bandwidth", "0.725e12", "--peak", "100e12"), "fused")
    assert (fused["bandwidth_bytes_per_s"], fused["peak_flops_per_s"]) == (0.725e12, 100e12)


def test_measured_column(page):
    found = with_measured(page, str(packaged("examples") / "roofline" / "vjepa2-mlp.measured.json")).measured
    by_name = {(item.variant, item.metric): item for item in found}
    assert by_name["fused", "hardware_flops"].agrees

    flops = by_name["unfused", "hardware_flops"]
    first = flops.explanations[0]
    assert first.value == 20 * 2**20 * 2 * 128 == 5368709120
    assert "20·2²⁰ elements transposed" in first.what
    assert flops.fits > 1
    assert "cannot tell them apart" in flops.note

    moved = by_name["unfused", "mm_arithmetic_intensity"]
    assert moved.excess is not None
    assert 78e3 <= moved.excess[0] < moved.excess[1] <= 114e3
    assert moved.explanations
    unit = (34359738368 / 314.9 - 109051904, 34359738368 / 314.7 - 109051904)
    assert all(unit[0] <= one.value <= unit[1] for one in moved.explanations)

    fused = by_name["fused", "mm_arithmetic_intensity"]
    assert fused.excess is not None
    assert [f"{end / 1e6:.2f}" for end in fused.excess] == ["1.58", "1.63"]
    assert fused.fits == len(fused.explanations) == 0
    assert "no small combination" in fused.note


def test_the_page_itself_if_the_specification_is_here(spec_dir, page):
    text = next(spec_dir.glob("000_*.txt")).read_text(encoding="utf-8")
    fused, unfused = page.variant("fused"), page.variant("unfused")
    assert f"W = {fused.bounds.work:,} FLOPs" in text
    assert f"Q = {fused.bounds.bytes:,} bytes" in text
    assert f"T_compute = W ÷ P = {float(fused.bounds.t_compute) * 1e6:.1f} µs" in text
    assert f"T_memory = Q ÷ BW = {float(fused.bounds.t_memory) * 1e6:.1f} µs" in text
    low, high = (f"{float(end) * 1e6:.1f} µs" for end in (fused.bounds.t_lower, fused.bounds.t_upper))
    assert f"{low} ≤ T ≤ {high}" in text
    assert f"I = W ÷ Q = {float(fused.bounds.intensity)} FLOPs/byte" in text
    assert f"I = {float(unfused.bounds.intensity):.1f}" in text
    assert f"ridge is P ÷ BW ≈ {round(fused.bounds.ridge)}" in text
