"""How counts follow from stages, kernels, splits and the memory table, one rule at a time."""

import pytest

from vibeserve.base.errors import InputError
from vibeserve.roofline import analyze, count, operation

M, K, N = 64, 32, 16


def matmul(stages=(), tensors=None, **variant):
    return operation(
        name="mm",
        dims={"M": M, "K": K, "N": N},
        tensors={"a": "M K", "b": "K N", "c": "M N", **(tensors or {})},
        stages=[{"name": "product", "contract": "a[M K], b[K N] -> c[M N]"}, *stages],
        variants={"v": variant},
    )


def counted(op, cores=1, rows=128):
    found = count(op, op.variants["v"], cores, rows)
    return found, found.numbers(op.sizes())


def bytes_of(found, op, tensor):
    names = found.environment(op.sizes())
    return {item.tensor.name: item.bytes.evaluate(names) for item in found.tensors}[tensor]


def test_a_tensor_without_the_split_dimension_is_loaded_whole_by_every_core():
    op = matmul(split="M")
    one, alone = counted(op)
    four, numbers = counted(op, 4)
    assert bytes_of(four, op, "a") * 4 == bytes_of(one, op, "a")
    assert bytes_of(four, op, "b") == bytes_of(one, op, "b")
    assert numbers.bytes * 4 == alone.bytes + 3 * 2 * K * N
    assert [item.each_core for item in four.tensors] == ["part", "whole", "part"]


@pytest.mark.parametrize(
    ("each_core", "share"), [("shared", 2 * K * N // 4), ("part", 2 * K * N // 4), ("whole", 2 * K * N)]
)
def test_what_each_core_loads_can_be_said(each_core, share):
    op = matmul(split="M", memory={"b": {"each_core": each_core}})
    found, _ = counted(op, 4)
    assert bytes_of(found, op, "b") == share


def test_a_split_tensor_that_every_core_loads_whole():
    op = matmul(split="M", memory={"a": {"each_core": "whole"}})
    found, _ = counted(op, 4)
    assert bytes_of(found, op, "a") == 2 * M * K


def test_two_dimensions_split_in_parts():
    op = matmul(split={"M": 2, "N": 4})
    found, numbers = counted(op, 8)
    assert numbers.flops["bfloat16"] * 8 == 2 * M * K * N
    assert bytes_of(found, op, "a") == 2 * M * K // 2
    assert bytes_of(found, op, "b") == 2 * K * N // 4
    assert found.local == {"M": "m", "K": "K", "N": "n"}


def test_two_dimensions_over_the_same_cores():
    op = operation(
        name="heads",
        dims={"R": 4, "N": 8, "F": 16},
        tensors={"q": "R N", "q2": "R N", "f": "R F", "f2": "R F"},
        stages=[
            {"name": "heads", "elementwise": "q[R N] -> q2[R N]"},
            {"name": "columns", "elementwise": "f[R F] -> f2[R F]"},
        ],
        variants={"v": {"split": ["N", "F"]}},
    )
    found, numbers = counted(op, 4)
    assert numbers.vector_flops["bfloat16"] == 4 * 2 + 4 * 4
    assert not any(stage.repeated for stage in found.stages)
    with pytest.raises(InputError, match="splits stage product of mm over 4 cores, and the kernel runs on 2"):
        counted(matmul(split=["M", "N"]), 2)


def test_a_stage_without_the_split_dimension_is_done_by_every_core():
    op = operation(
        name="routed",
        dims={"R": 4, "D": 8, "E": 2},
        tensors={"x": "R D", "w": "D E", "y": "R E", "z": "R D"},
        stages=[
            {"name": "all", "contract": "x[R D], w[D E] -> y[R E]"},
            {"name": "none", "elementwise": "x[R D] -> z[R D]"},
        ],
        variants={"v": {"split": "E"}},
    )
    found, numbers = counted(op, 2)
    assert [stage.repeated for stage in found.stages] == [False, True]
    assert numbers.vector_flops["bfloat16"] * 2 == 2 * 4 * 8


@pytest.mark.parametrize(
    ("stage", "moved"),
    [
        ({"name": "t", "transpose": "c[M N] -> d[N M]"}, 2 * 128 * M * N),
        ({"name": "t", "transpose": "c[M N] -> d[N M]", "by": "dma"}, 0),
        ({"name": "t", "broadcast": "r[N] -> d[N M]"}, 2 * M * N),
        ({"name": "t", "broadcast": "r[N] -> d[N M]", "by": "dma"}, 0),
    ],
)
def test_flops_that_only_move_data_are_counted_apart(stage, moved):
    op = matmul([stage], {"d": "N M", "r": "N"})
    _, numbers = counted(op)
    assert numbers.transpose_flops == moved
    assert numbers.flops["bfloat16"] == 2 * M * K * N
    _, elsewhere = counted(op, rows=0)
    assert elsewhere.transpose_flops == 0


def test_a_product_that_only_moves_data():
    op = operation(
        name="turn",
        dims={"M": M, "N": N, "J": N},
        tensors={"c": "M N", "i": "N J", "d": "M J"},
        stages=[{"name": "turn", "contract": "c[M N], i[N J] -> d[M J]", "moves_data": True}],
        variants={"v": {}},
    )
    _, numbers = counted(op)
    assert (numbers.flops, numbers.transpose_flops) == ({}, 2 * M * N * N)


def test_an_intermediate_crosses_between_kernels_only():
    stages = [
        {"name": "one", "elementwise": "c[M N] -> d[M N]"},
        {"name": "two", "elementwise": "c[M N] -> e[M N]"},
    ]
    tensors = {"d": "M N", "e": "M N"}
    size = 2 * M * N
    for kernels, expect in (
        ("one", 0),
        ("each", 3 * size),
        ([["product", "one"], ["two"]], 2 * size),
        (["product", ["one", "two"]], 2 * size),
    ):
        op = matmul(stages, tensors, kernels=kernels)
        found, _ = counted(op)
        assert bytes_of(found, op, "c") == expect, kernels


def test_the_memory_table_has_the_last_word():
    op = matmul(memory={"b": {"reads": "M / 16", "dtype": "int4"}, "c": "write read", "a": "none"})
    found, numbers = counted(op)
    assert bytes_of(found, op, "b") == 4 * K * N // 2
    assert bytes_of(found, op, "c") == 2 * 2 * M * N
    assert bytes_of(found, op, "a") == 0
    assert numbers.read_bytes == 4 * K * N // 2 + 2 * M * N
    assert numbers.write_bytes == 2 * M * N


def test_rounded_reads_are_whole():
    op = matmul(memory={"b": {"reads": "ceil(M / 48)"}})
    found, _ = counted(op)
    assert bytes_of(found, op, "b") == 2 * 2 * K * N
    steps = analyze(op, target="h100").variants[0].steps
    assert any("ceil(M ÷ 48)" in step.formula for step in steps)


def test_a_tensor_left_out_is_named_and_not_counted():
    op = matmul(
        [{"name": "bias", "elementwise": "c[M N], r[N] -> d[M N]"}],
        {"d": "M N", "r": {"dims": "N", "count": False}},
    )
    found, numbers = counted(op)
    assert numbers.bytes == 2 * (M * K + K * N + M * N)
    assert "r" not in {item.tensor.name for item in found.counted}
    notes = [step.note for step in analyze(op, target="h100").variants[0].steps]
    assert any("r left out (32 bytes a core)" in note for note in notes)


def test_a_variant_that_moves_nothing_has_no_intensity():
    op = matmul(memory={"a": "none", "b": "none", "c": "none"})
    with pytest.raises(InputError, match="moves no bytes"):
        analyze(op, target="h100")
