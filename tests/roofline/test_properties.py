"""What holds for every operation, size and core count."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vibeserve.base.errors import InputError
from vibeserve.base.paths import packaged
from vibeserve.hardware import get
from vibeserve.roofline import analyze, count, load, operation, roof
from vibeserve.roofline.bounds import bounds
from vibeserve.roofline.symbols import count_expressions, value

LIBRARY = [load(path) for path in sorted((packaged("examples") / "roofline").glob("*.toml"))]
SIZES = st.integers(1, 64)


def sizes_of(data, op, multiple=1):
    """Random sizes for an operation's own dimensions, those of splits a multiple of the cores."""
    split = {dim for variant in op.variants.values() for dim in variant.split}
    free = [name for name, dim in op.dims.items() if not dim.derived]
    changes = {name: data.draw(SIZES, label=name) * (multiple if name in split else 1) for name in free}
    try:
        return op.sizes(changes), changes
    except InputError:
        assume(False)
        raise


@given(data=st.data(), op=st.sampled_from(LIBRARY), cores=st.sampled_from([1, 2, 4, 8]))
def test_cores_add_up_to_the_totals(data, op, cores):
    sizes, _ = sizes_of(data, op, cores)
    for variant in op.variants.values():
        counted = count(op, variant, cores, 128)
        try:
            numbers = counted.numbers(sizes)
        except InputError:
            continue  # a derived size that does not divide
        names = counted.environment(sizes)
        one = sum(stage.flops.evaluate(names) for stage in counted.stages if stage.kind == "flops")
        moved = sum(item.bytes.evaluate(names) for item in counted.counted)
        assert one == sum(numbers.flops.values())
        assert moved == numbers.bytes
        split = [stage for stage in counted.stages if stage.kind == "flops" and not stage.repeated]
        alone = {stage.stage.name: stage.flops for stage in count(op, variant, 1, 128).stages}
        for stage in split:
            whole = alone[stage.stage.name].evaluate(count(op, variant, 1, 128).environment(sizes))
            assert stage.flops.evaluate(names) * cores == whole


@given(rows=st.integers(1, 200), d=SIZES, f=SIZES, cores=st.sampled_from([1, 2, 4, 8]))
def test_doubling_the_rows_doubles_work_and_less_than_doubles_bytes(rows, d, f, cores):
    op = load("vjepa2-mlp")
    for variant in op.variants.values():
        counted = count(op, variant, cores)
        once = counted.numbers(op.sizes({"R": rows * cores, "D": d, "F": f}))
        twice = counted.numbers(op.sizes({"R": 2 * rows * cores, "D": d, "F": f}))
        assert twice.work_flops == 2 * once.work_flops
        assert once.bytes < twice.bytes < 2 * once.bytes


@given(data=st.data(), op=st.sampled_from(LIBRARY))
def test_fusing_never_moves_more(data, op):
    sizes, _ = sizes_of(data, op)
    by_name = {variant.name: variant for variant in op.variants.values()}
    for less, more in (("fused", "unfused"), ("fused", "separate"), ("ideal", "eager"), ("grouped", "per-head")):
        if {less, more} <= set(by_name):
            small = count(op, by_name[less]).numbers(sizes)
            large = count(op, by_name[more]).numbers(sizes)
            assert small.work_flops == large.work_flops
            assert small.bytes <= large.bytes


@given(data=st.data(), op=st.sampled_from(LIBRARY), cores=st.sampled_from([1, 2]))
def test_computer_algebra_agrees(data, op, cores):
    sizes, _ = sizes_of(data, op, cores)
    variant = data.draw(st.sampled_from(list(op.variants.values())))
    counted = count(op, variant, cores, 128)
    try:
        numbers = counted.numbers(sizes)
    except InputError:
        return
    expressions = count_expressions(counted)
    names = {name: int(size) for name, size in counted.environment(sizes).items() if isinstance(size, int)}
    assert value(expressions["work"], names) == numbers.work_flops
    assert value(expressions["bytes"], names) == numbers.bytes
    assert value(expressions["intensity"], names) == Fraction(numbers.work_flops) / Fraction(numbers.bytes)


@given(
    r=st.integers(1, 4000),
    d=st.integers(8, 2048),
    f=st.integers(8, 8192),
    target=st.sampled_from(["trn2", "h100", "t4"]),
)
def test_a_crossing_is_on_the_ridge(r, d, f, target):
    found = analyze("vjepa2-mlp", sizes={"R": 2 * r, "D": d, "F": f}, target=target, dtype="float16")
    for variant in found.variants:
        for crossing in variant.crossings:
            assert crossing.exact
            if crossing.dim == "R":
                n = crossing.value / found.variants[0].numbers.cores
                moved = 4 * d * f + 4 * n * d + (8 * n * f if variant.name == "unfused" else 0)
                assert 4 * n * d * f / moved == pytest.approx(float(variant.bounds.ridge), rel=1e-9)
        side = [c for c in variant.crossings if c.dim == "R"]
        if side:
            above = found.sizes["R"] > side[0].value
            assert (variant.bounds.bound == "compute") == (above if side[0].above == "compute" else not above)


@given(flops=st.integers(1, 10**15), moved=st.integers(1, 10**12))
def test_time_bounds_bracket(flops, moved):
    from vibeserve.roofline import Numbers

    found = bounds(Numbers(1, {"bfloat16": flops}, {}, 0, moved, 0), roof(get("trn2"), 2))
    assert max(found.t_compute, found.t_memory) == found.t_lower <= found.t_upper <= 2 * found.t_lower
    assert (found.bound == "compute") == (found.t_compute >= found.t_memory)


@given(m=SIZES, k=SIZES, n=SIZES)
def test_python_and_toml_are_the_same_operation(m, k, n):
    ours = operation(
        name="mm",
        dims={"M": m, "K": k, "N": n},
        tensors={"a": "M K", "b": "K N", "c": "M N"},
        stages=[{"contract": "a[M K], b[K N] -> c[M N]"}],
    )
    one = analyze(ours, target="h100").variants[0]
    two = analyze("matmul", sizes={"M": m, "K": k, "N": n, "T": 1}, target="h100").variant("ideal")
    assert (one.bounds.work, one.bounds.bytes) == (two.bounds.work, two.bounds.bytes)
