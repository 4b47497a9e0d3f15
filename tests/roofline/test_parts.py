"""The parts by themselves: polynomials, expressions, subscripts, roots, explanations, sweeps, pages."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.base.errors import InputError
from vibeserve.base.paths import packaged
from vibeserve.hardware import get
from vibeserve.roofline import analyze, html, markdown, svg_file, tool, with_measured, with_sweep
from vibeserve.roofline.crossings import positive_roots
from vibeserve.roofline.explain import Term, describe, in_powers, search
from vibeserve.roofline.expr import Expr, NotPolynomialError
from vibeserve.roofline.numbers import number, short
from vibeserve.roofline.poly import Poly, Writer, common_factor
from vibeserve.roofline.subscripts import parse

X, Y = Poly.symbol("x"), Poly.symbol("y")
POLYS = st.recursive(
    st.sampled_from([X, Y, Poly.of(2), Poly.of(Fraction(1, 3)), Poly.of(0)]),
    lambda inner: st.builds(lambda a, b, op: a + b if op else a * b, inner, inner, st.booleans()),
    max_leaves=8,
)


@given(a=POLYS, b=POLYS, c=POLYS, x=st.integers(1, 9), y=st.integers(1, 9))
def test_polynomials_are_a_ring(a, b, c, x, y):
    assert a * (b + c) == a * b + a * c
    assert a - a == Poly.of(0)
    at = {"x": x, "y": y}
    assert (a * b).evaluate(at) == a.evaluate(at) * b.evaluate(at)
    assert a.substitute({"x": Y + 1}).evaluate({"y": y}) == a.evaluate({"x": y + 1, "y": y})
    if a:
        assert common_factor(a) * (a / common_factor(a)) == a


def test_polynomials_as_written():
    write = Writer(["x", "y"])
    assert write.poly(4 * X * Y + 2 * X) == "2·x·(1 + 2·y)"
    assert write.ratio(X * Y, X + Y) == "x·y/(x + y)"
    assert write.ratio(X + Y, Poly.of(2)) == "(x + y)/2"
    assert write.ratio(X * X, Y) == "x²/y"
    assert write.sum(X - Y) == "x − y"
    assert write.poly(Poly.of(0)) == "0"
    assert write.poly(X / Y) == "x/y"
    assert Writer(["x", "y"], sizes={"x": 20000, "y": 3}).ratio(X * Y, X + Y) == "20,000 × 3 ÷ (20,000 + 3)"
    with pytest.raises(ArithmeticError):
        X / (X + Y)


def test_expressions():
    tokens = Expr.parse("(image / patch)**2 * (frames / tubelet)", "here")
    names = {"image": 256, "patch": 16, "frames": 16, "tubelet": 2}
    assert tokens.value(names) == 2048
    assert tokens.factors(names) == [256, 8]
    assert tokens.show() == "(image ÷ patch)² × (frames ÷ tubelet)"
    assert set(tokens.names) == set(names)
    assert Expr.parse("ceil(R * K / 4)", "").value({"R": 3, "K": 3}) == 3
    assert Expr.parse("0.1", "").value({}) == Fraction(1, 10)
    assert Expr.parse("a - -b", "").value({"a": 1, "b": 2}) == 3
    assert Expr.parse("(T + 1) / (2 * T)", "").poly({"T": X}) == Fraction(1, 2) + Poly.of(1) / (2 * X)
    with pytest.raises(NotPolynomialError):
        Expr.parse("ceil(T / 2)", "").poly({"T": X})
    with pytest.raises(NotPolynomialError):
        Expr.parse("1 / (T + 1)", "").poly({"T": X})
    for bad in ("a +", "a.b", "f(a)", "a ** b", "'x'", "[1]", ""):
        with pytest.raises(InputError, match="here"):
            Expr.parse(bad, "here")


def test_subscripts():
    found = parse("x[N C 2*P+I, Q + J], w[K, C I J] -> y[N K P Q]", "stage")
    assert found.dims == ("N", "C", "P", "I", "Q", "J", "K")
    assert found.summed == ("C", "I", "J")
    assert found.inputs[0].indices[2].stride == 2
    for bad in ("x[A] -> ", "x -> y[A]", "x[2*A] -> y[A]", "x[A+B+C] -> y[A]", "x[A]; w[A] -> y[A]"):
        with pytest.raises(InputError, match="stage"):
            parse(bad, "stage")


def test_roots():
    assert positive_roots({1: Fraction(2), 0: Fraction(-3)}) == [Fraction(3, 2)]
    assert positive_roots({2: Fraction(1), 1: Fraction(-5), 0: Fraction(6)}) == [2, 3]
    assert positive_roots({-1: Fraction(-4), 1: Fraction(1)}) == [2]
    (root,) = positive_roots({2: Fraction(1), 0: Fraction(-2)})
    assert float(root) == pytest.approx(2**0.5, rel=1e-15)
    cubic = positive_roots({3: Fraction(1), 2: Fraction(-6), 1: Fraction(11), 0: Fraction(-6)})
    assert [float(root) for root in cubic] == pytest.approx([1, 2, 3], rel=1e-15)
    assert positive_roots({2: Fraction(1), 0: Fraction(1)}) == []
    assert positive_roots({0: Fraction(1)}) == []


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.data())
def test_whatever_is_added_is_found(sizes, data):
    terms = [Term(f"t{place}", f"T{place}", size * 1000 + place) for place, size in enumerate(sizes)]
    chosen = data.draw(st.sets(st.sampled_from(terms), min_size=1))
    total = sum(term.size for term in chosen)
    found = search(terms, Fraction(total) - Fraction(1, 2), Fraction(total) + Fraction(1, 2)).fits
    assert total in {fit.value for fit in found}
    for fit in found:
        assert sum(term.size * n for term, n in fit.counts) == fit.value == total
    assert [fit.cost for fit in found] == sorted(fit.cost for fit in found)


def test_explanations_read_well():
    terms = [Term("x", "R·D", 4), Term("y", "R·D", 4), Term("h", "R·F", 9)]
    fits = search(terms, Fraction(17), Fraction(17)).fits
    assert describe(fits[0], {}) == ("h, x and y", "R·F + R·D + R·D")
    fits = search(terms[2:], Fraction(144), Fraction(144), {16: "row tiles"}).fits
    assert describe(fits[0], {16: "row tiles"}) == ("16 × h (16 = row tiles)", "16·R·F")
    assert search(terms, Fraction(-5), Fraction(-1)).fits == ()


def test_a_search_that_stops_early_says_so():
    many = [Term(f"t{place}", f"T{place}", 1000 + place) for place in range(40)]
    found = search(many, Fraction(5000), Fraction(9000))
    assert found.fits
    assert not found.complete
    assert in_powers(20 * 2**20) == "20·2²⁰"
    assert in_powers(4097) == "4,097"


def test_numbers_as_written():
    assert [short(value) for value in (157.2864e12, 0.75e12, 2.4e9, 716e9, 5e6)] == [
        "157.2864e12",
        "0.75e12",
        "2.4e9",
        "0.716e12",
        "5e6",
    ]
    assert [number(value) for value in (2048, 34359738368, 209.7152, 0.3125, 4096.0)] == [
        "2048",
        "34,359,738,368",
        "209.72",
        "0.3125",
        "4,096",
    ]


def test_sweep():
    found = with_sweep(analyze("vjepa2-mlp"), "R=128:4096").sweep
    assert found.sizes == (128, 256, 512, 1024, 2048, 4096)
    fused = found.points["fused"]
    assert [point.bound for point in fused] == ["memory"] * 2 + ["compute"] * 4
    assert fused[4].intensity == 819.2
    many = with_sweep(analyze("vjepa2-mlp"), "R=1:2000:1000").sweep
    assert all(size % 2 == 0 for size in many.sizes)
    assert list(many.sizes) == sorted(set(many.sizes))
    every = with_sweep(analyze("vjepa2-mlp"), "R=2:64:100").sweep
    assert every.sizes == tuple(range(2, 65, 2))
    images = with_sweep(analyze("vjepa2-mlp"), "image=64:512").sweep
    assert images.sizes == (64, 128, 256, 512)


def test_what_would_have_to_change():
    found = analyze("vjepa2-mlp", sizes={"R": 256}).variant("unfused")
    texts = [change.text for change in found.changes]
    assert texts[0] == "R of at least 778 (389 a core) instead of 256"
    assert analyze("vjepa2-mlp", sizes={"R": 778}).variant("unfused").bounds.bound == "compute"
    assert analyze("vjepa2-mlp", sizes={"R": 776}).variant("unfused").bounds.bound == "memory"
    assert any(text.startswith("h kept on chip saves") for text in texts)
    width = next(change for change in found.changes if change.what == "bandwidth")
    there = analyze("vjepa2-mlp", sizes={"R": 256}, bandwidth=width.needed).variant("unfused")
    assert float(there.bounds.intensity) == pytest.approx(float(there.bounds.ridge))


def test_measured_of_one_core_of_two(tmp_path):
    path = tmp_path / "m.json"
    path.write_text('{"hardware_flops": 17179869184, "transpose_flops": null, "total_time": 300e-6, "other": 3}')
    found = with_measured(analyze("vjepa2-mlp"), str(path), variant="fused").measured
    by_metric = {item.metric: item for item in found}
    assert by_metric["hardware_flops"].explanations[0].what == "the figure is of one core of 2"
    assert by_metric["total_time"].agrees
    assert "times the lower bound" in by_metric["total_time"].note
    assert set(by_metric) == {"hardware_flops", "total_time"}


def test_measured_below_the_bound(tmp_path):
    path = tmp_path / "m.json"
    path.write_text('{"n_0123": {"total_time": 100e-6, "hbm_read_bytes": 20971520, "hbm_write_bytes": 4194304}}')
    analysis = with_measured(analyze("vjepa2-mlp", variants=["fused"]), str(path))
    by_metric = {item.metric: item for item in analysis.measured}
    assert not by_metric["total_time"].agrees
    assert "below the lower bound" in by_metric["total_time"].note
    assert by_metric["hbm_write_bytes"].agrees
    less = by_metric["hbm_read_bytes"]
    assert less.measured < less.counted
    assert less.explanations[0].what.startswith("not traffic")
    assert less.explanations[0].value == -(2**24)


def test_a_kernel_that_also_transposed_its_values(tmp_path):
    """Flash attention of one head of 512 tokens, as a device would report it: v transposed too, an identity loaded."""
    work, turned = 4 * 512 * 512 * 128, (512 * 512 + 512 * 128) * 256
    summary = {
        "hardware_flops": work + turned,
        "transpose_flops": turned,
        "hbm_read_bytes": 3 * 131072 + 32768,
        "mm_arithmetic_intensity": work / (4 * 131072 + 32768),
    }
    path = tmp_path / "m.json"
    path.write_text(json.dumps(summary))
    analysis = analyze("flash-attention", sizes={"N": 1, "S": 512, "L": 512}, variants=["flash"])
    found = {item.metric: item for item in with_measured(analysis, str(path)).measured}
    turned_once_more = found["transpose_flops"].explanations[0]
    assert turned_once_more.what.endswith("elements transposed: q")
    assert turned_once_more.also[0] == "q could be k or v or out"
    assert found["hbm_read_bytes"].explanations[0].what == "extra traffic: the identity"
    assert found["mm_arithmetic_intensity"].explanations[0].what == "extra traffic: the identity"


def test_a_profile_of_the_store(monkeypatch):
    from vibeserve import profiles

    names = []
    monkeypatch.setattr(profiles, "open", lambda name, data_path=None: names.append((name, data_path)))
    monkeypatch.setattr(profiles, "metrics", lambda profile: {"hardware_flops": 34359738368, "total_time": 3e-4})
    found = with_measured(analyze("vjepa2-mlp"), "sim:mlp", variant="fused").measured
    assert names == [("mlp", None)]
    assert found[0].agrees


def test_page_has_every_variant_core_count_and_measurement():
    analysis = with_sweep(analyze("vjepa2-mlp"), "R=128:4096:20")
    analysis = with_measured(analysis, str(packaged("examples") / "roofline" / "vjepa2-mlp.measured.json"))
    text = html(analysis)
    for words in ("fused, LNC=2", "unfused, LNC=1", "fused, measured", "r·F/(F + r)", "Weights alone", "ridge 210"):
        assert words in text
    assert "http://www.w3.org" in text
    assert "<script src" not in text
    drawn = svg_file(analysis)
    assert drawn.startswith("<svg")
    assert "unfused, measured" in drawn
    plain = markdown(analysis)
    assert "34,359,738,368" in plain
    assert "| 442.06 |" in plain.replace("  ", " ")


def test_command_line_forms(cli, tmp_path):
    page, plot = tmp_path / "p.html", tmp_path / "p.svg"
    code, out, err = cli("roofline", "vjepa2-mlp", "--html", page, "--plot", plot, "--symbols", "--sweep", "R=128:512")
    assert code == 0
    assert page.read_text().lower().startswith("<!doctype html>")
    assert plot.read_text().startswith("<svg")
    assert "wrote" in err
    assert "F*r/(F + r)" in out
    assert "F*I/(F - I)" in out
    code, out, _ = cli("roofline", "vjepa2-mlp", "--symbols", "--json")
    assert json.loads(out)["symbols"][0]["forms"]
    code, out, _ = cli("roofline", "vjepa2-mlp", "--markdown")
    assert code == 0
    assert out.startswith("# Roofline of V-JEPA 2")


def test_tool_is_the_same_json(cli):
    _, out, _ = cli("roofline", "vjepa2-mlp", "--set", "R=256", "--target", "trn2", "--lnc", 1, "--json")
    for size in (256, 256.0, "256"):
        assert tool("vjepa2-mlp", {"R": size}, "trn2", 1) == json.loads(out)
    with pytest.raises(InputError, match="R = 'many' is not a number"):
        tool("vjepa2-mlp", {"R": "many"})


def test_the_command_needs_neither_torch_nor_numpy_nor_sympy():
    import subprocess
    import sys

    code = "import sys, vibeserve.cli.main as m; m.run(['roofline', 'vjepa2-mlp', '--json']); print('LOADED', sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split("LOADED", 1)[1]
    for heavy in ("torch", "numpy", "sympy", "duckdb", "pyarrow", "scipy", "jinja2"):
        assert f"'{heavy}'" not in loaded


def test_a_simulator_s_result(tmp_path):
    """The document of `nki simulate --timing --json`: its `flops` are those without transposes."""
    result = {
        "kernel": "fused_mlp",
        "target": "trn2",
        "lnc": 2,
        "outputs": [{"shape": [2048, 1024], "dtype": "bfloat16"}],
        "latency_s": 260e-6,
        "flops": 34359738368,
        "transpose_flops": 2048 * 1024 * 256,
        "hbm_read_bytes": 37748736 + 2 * 10240,
        "hbm_write_bytes": 4194304,
        "intensity": 34359738368 / (41943040 + 2 * 10240),
        "engines": {"tensor": {"busy_s": 230e-6, "utilization": 0.88}},
        "mfu": 0.84,
        "profile": None,
    }
    path = tmp_path / "sim.json"
    path.write_text(json.dumps(result))
    found = {item.metric: item for item in with_measured(analyze("vjepa2-mlp"), str(path), variant="fused").measured}
    assert found["flops"].agrees
    assert found["latency_s"].agrees
    assert "1.19 times the lower bound" in found["latency_s"].note
    assert found["transpose_flops"].explanations[0].what == "2·2²⁰ elements transposed: x"
    assert found["hbm_write_bytes"].agrees
    assert found["hbm_read_bytes"].explanations[0].what == "extra traffic: 2 × (b1 and b2)"
    assert found["intensity"].explanations[0].what == "extra traffic: 2 × (b1 and b2)"


def test_elementwise_work_without_a_vector_peak_says_what_stands_in():
    def note(target, dtype=""):
        steps = analyze("rmsnorm", target=target, lnc=None, dtype=dtype).variant("fused").steps
        return next(step.note for step in steps if step.title == "Peak" and step.part == "machine")

    assert note("l4").startswith("the float32 peak, as none is known for bfloat16")
    assert note("h100").startswith("documented: NVIDIA H100")
    bare = replace(
        get("h100"), figures={k: v for k, v in get("h100").figures.items() if "vector" not in k}, vector_peaks={}
    )
    assert note(bare).startswith("no peak of elementwise work is known: the float32 matmul peak lies above it")
    assert analyze("rmsnorm", target=bare).variant("fused").bounds.peak == 66.9e12
