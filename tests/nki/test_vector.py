"""Element-by-element instructions against NumPy statements of their formulas."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl

FLOATS = [np.float32, ml_dtypes.bfloat16, np.float16]
BINARY = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": lambda a, b: (a == b) * 1.0,
    "not_equal": lambda a, b: (a != b) * 1.0,
    "less": lambda a, b: (a < b) * 1.0,
    "less_equal": lambda a, b: (a <= b) * 1.0,
    "greater": lambda a, b: (a > b) * 1.0,
    "greater_equal": lambda a, b: (a >= b) * 1.0,
    "logical_and": lambda a, b: ((a != 0) & (b != 0)) * 1.0,
    "logical_or": lambda a, b: ((a != 0) | (b != 0)) * 1.0,
    "logical_xor": lambda a, b: ((a != 0) ^ (b != 0)) * 1.0,
}


def f32(x):
    return x.astype(np.float32)


shapes = st.tuples(st.integers(1, 128), st.integers(1, 40))


@given(shapes, st.sampled_from(sorted(BINARY)), st.sampled_from(FLOATS), st.sampled_from(FLOATS), st.integers(0, 99))
def test_tensor_tensor(evaluate, shape, op, kind, out_kind, seed):
    draw = np.random.default_rng(seed)
    a, b = (draw.integers(-4, 5, shape).astype(kind) for _ in range(2))

    def body(x, y):
        out = nl.ndarray(x.shape, dtype=np.dtype(out_kind), buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out, data1=x, data2=y, op=getattr(nl, op))
        return out

    got = evaluate(body, a, b)
    assert got.dtype == out_kind
    np.testing.assert_array_equal(f32(got), f32(BINARY[op](f32(a), f32(b)).astype(out_kind)))


@given(st.sampled_from(["add", "subtract", "multiply", "maximum"]), st.integers(0, 99))
def test_tensor_tensor_of_32_bit_integers_is_exact(evaluate, op, seed):
    a, b = (np.random.default_rng(seed + i).integers(-(2**31), 2**31, (4, 9)).astype(np.int32) for i in range(2))

    def body(x, y):
        out = nl.ndarray(x.shape, dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_tensor(out, x, y, getattr(nl, op))
        return out

    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(evaluate(body, a, b), BINARY[op](a, b))


def test_integers_on_the_vector_engine_go_through_float32(evaluate):
    a = np.array([[2**24 + 1, 5]], np.int32)

    def body(x):
        out = nl.ndarray(x.shape, dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_tensor(out, x, x, nl.maximum, engine=nisa.engine.vector)
        return out

    np.testing.assert_array_equal(evaluate(body, a), [[2**24, 5]])


BITS = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": lambda a, b: (a.astype(np.uint64) << b.astype(np.uint64)).astype(np.uint32),
    "right_shift": lambda a, b: a >> b,
}


@given(st.sampled_from(sorted(BITS)), st.sampled_from([np.int32, np.uint32]), st.integers(0, 99))
def test_bit_operators_keep_every_bit(evaluate, op, kind, seed):
    draw = np.random.default_rng(seed)
    a = draw.integers(0, 2**32, (5, 7), dtype=np.uint32)
    b = (
        draw.integers(0, 32, (5, 7), dtype=np.uint32)
        if "shift" in op
        else draw.integers(0, 2**32, (5, 7), dtype=np.uint32)
    )

    def body(x, y):
        out = nl.ndarray(x.shape, dtype=np.dtype(kind), buffer=nl.sbuf)
        nisa.tensor_tensor(out, x, y, getattr(nl, op))
        return out

    got = evaluate(body, a.view(kind), b.view(kind))
    np.testing.assert_array_equal(got.view(np.uint32), BITS[op](a, b))


@given(
    shapes, st.sampled_from(["add", "subtract", "multiply", "maximum", "less"]), st.sampled_from(["add", "multiply", "minimum", None]),
    st.booleans(), st.booleans(), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_tensor_scalar(evaluate, shape, op0, op1, reverse0, reverse1, as_tile, seed):
    draw = np.random.default_rng(seed)
    data = draw.standard_normal(shape).astype(np.float32)
    column = draw.standard_normal((shape[0], 1)).astype(np.float32)

    def body(x, c):
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        options = {"op1": getattr(nl, op1), "operand1": 0.5, "reverse1": reverse1} if op1 else {}
        nisa.tensor_scalar(out, x, getattr(nl, op0), c if as_tile else 1.25, reverse0=reverse0, **options)
        return out

    operand = column if as_tile else np.float32(1.25)
    expected = BINARY[op0](operand, data) if reverse0 else BINARY[op0](data, operand)
    if op1:
        half = np.float32(0.5)
        expected = BINARY[op1](half, expected) if reverse1 else BINARY[op1](expected, half)
    np.testing.assert_allclose(evaluate(body, data, column), f32(expected), rtol=1e-6)


def test_tensor_scalar_on_integers_with_a_python_int(evaluate):
    a = np.arange(12, dtype=np.int32).reshape(3, 4)

    def body(x):
        out = nl.ndarray(x.shape, dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_scalar(out, x, nl.add, 128)
        shifted = nl.ndarray(x.shape, dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_scalar(shifted, x, nl.left_shift, 3, op1=nl.bitwise_or, operand1=1)
        return out, shifted

    plus, shifted = evaluate(body, a)
    np.testing.assert_array_equal(plus, a + 128)
    np.testing.assert_array_equal(shifted, a << 3 | 1)


def test_unary_operators_of_tensor_scalar(evaluate, rng):
    a = (rng.random((4, 6)) + 0.5).astype(np.float32)

    def body(x):
        root, absolute = (nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
        nisa.tensor_scalar(root, x, nl.add, 1.0, op1=nl.rsqrt, operand1=None)
        nisa.tensor_scalar(absolute, x, nl.multiply, -1.0, op1=nl.abs, operand1=0.0)
        return root, absolute

    root, absolute = evaluate(body, a)
    np.testing.assert_allclose(root, 1 / np.sqrt(a + 1), rtol=1e-6)
    np.testing.assert_array_equal(absolute, a)


@given(shapes, st.integers(0, 99))
def test_scalar_tensor_tensor(evaluate, shape, seed):
    draw = np.random.default_rng(seed)
    a, b = (draw.standard_normal(shape).astype(np.float32) for _ in range(2))
    c = draw.standard_normal((shape[0], 1)).astype(np.float32)

    def body(x, y, s):
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=out, data=x, op0=nl.subtract, operand0=s, op1=nl.multiply, operand1=y, reverse0=True
        )
        return out

    np.testing.assert_allclose(evaluate(body, a, b, c), (c - a) * b, rtol=1e-6)


@given(
    st.sampled_from([np.float32, ml_dtypes.bfloat16, np.int32, np.int8, np.uint8]),
    st.sampled_from([np.float32, ml_dtypes.bfloat16, np.int32, np.int8, np.uint8, ml_dtypes.float8_e4m3]), st.integers(0, 99),
)  # fmt: skip
def test_tensor_copy_casts_by_rounding_and_saturating(evaluate, source, target, seed):
    values = (np.random.default_rng(seed).standard_normal((3, 8)) * 200).astype(np.float32)
    if np.dtype(source).kind in "iu":
        info = np.iinfo(source)
        values = np.clip(np.rint(values), info.min, info.max)
    a = values.astype(source)

    def body(x):
        out = nl.ndarray(x.shape, dtype=np.dtype(target), buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=x)
        return out

    got = evaluate(body, a)
    if np.dtype(target).kind in "iu":
        info = np.iinfo(target)
        np.testing.assert_array_equal(got, np.clip(np.rint(f32(a)), info.min, info.max).astype(target))
    else:
        np.testing.assert_array_equal(f32(got), f32(f32(a).astype(target)))


def test_copy_between_free_shapes_and_in_place_overlap(evaluate, rng):
    a = rng.standard_normal((8, 2, 6)).astype(np.float32)

    def body(x):
        flat = nl.ndarray((8, 12), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(flat, x)
        nisa.tensor_copy(flat[:, 1:12], flat[:, 0:11])
        return flat

    flat = a.reshape(8, 12)
    np.testing.assert_array_equal(evaluate(body, a), np.concatenate([flat[:, :1], flat[:, :11]], axis=1))


@given(st.booleans(), st.booleans(), st.integers(0, 99))
def test_tensor_copy_predicated(evaluate, reverse, scalar, seed):
    draw = np.random.default_rng(seed)
    a, b = (draw.standard_normal((6, 9)).astype(np.float32) for _ in range(2))
    mask = draw.integers(0, 2, (6, 9)).astype(np.uint8)

    def body(x, y, m):
        nisa.tensor_copy_predicated(dst=x, src=-1.5 if scalar else y, predicate=m, reverse_pred=reverse)
        return x

    chosen = (mask == 0) if reverse else (mask != 0)
    np.testing.assert_array_equal(evaluate(body, a, b, mask), np.where(chosen, np.float32(-1.5) if scalar else b, a))


@pytest.mark.parametrize(
    ("dtype", "value"), [("float32", 1.5), ("bfloat16", -0.1), ("int32", -7), ("uint8", 255), ("float32", 3)]
)
def test_memset(evaluate, dtype, value):
    def body(x):
        out = nl.ndarray((5, 4), dtype=getattr(nl, dtype), buffer=nl.sbuf)
        nisa.memset(dst=out, value=value)
        return out

    expected = np.full((5, 4), value, np.float32).astype(getattr(nl, dtype).dtype)
    np.testing.assert_array_equal(f32(evaluate(body, np.zeros((1, 1), np.float32))), f32(expected))


def test_reciprocal(evaluate, rng):
    a = (rng.random((7, 5)) + 0.1).astype(np.float32)

    def body(x):
        nisa.reciprocal(dst=x, data=x)
        return x

    np.testing.assert_allclose(evaluate(body, a), 1 / a, rtol=1e-6)


def test_stride_zero_view_is_an_operand(evaluate, rng):
    a, b = rng.standard_normal((6, 4, 3)).astype(np.float32), rng.standard_normal((6, 4, 1)).astype(np.float32)

    def body(x, y):
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(out, x, y.broadcast(2, 3), nl.multiply)
        return out

    np.testing.assert_allclose(evaluate(body, a, b), a * b, rtol=1e-6)


def test_abs_max_takes_the_signed_value(evaluate):
    a, b = np.array([[1.0, -3.0, 2.0]], np.float32), np.array([[-2.0, 2.0, -2.0]], np.float32)

    def body(x, y):
        high, low = (nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
        nisa.tensor_tensor(high, x, y, nl.abs_max)
        nisa.tensor_tensor(low, x, y, nl.abs_min)
        return high, low

    high, low = evaluate(body, a, b, target="trn3")
    np.testing.assert_array_equal(high, [[-2, -3, -2]])
    np.testing.assert_array_equal(low, [[1, 2, -2]])


REJECTED = [
    ("S-PARTITIONS", lambda x, y: nisa.tensor_tensor(x, x, y[0:2, :], nl.add)),
    ("S-ELEMENTS", lambda x, y: nisa.tensor_tensor(x, x, y[:, 0:3], nl.add)),
    ("B1-NUMPY", lambda x, y: nisa.tensor_tensor(x, x, y, np.add)),
    ("B1-NL-MAX-OP", lambda x, y: nisa.tensor_tensor(x, x, y, nl.max)),
    ("S-NLDIV", lambda x, y: nisa.tensor_tensor(x, x, y, nl.divide)),
    ("S-BITVEC", lambda x, y: nisa.tensor_tensor(x, x, y, nl.bitwise_and)),
    ("S-OP", lambda x, y: nisa.tensor_tensor(x, x, y, nl.exp)),
    ("S-GENERATION", lambda x, y: nisa.tensor_tensor(x, x, y, nl.abs_max)),
    ("S-ENGINE", lambda x, y: nisa.tensor_tensor(x, x, y, nl.add, engine=nisa.engine.tensor)),
    ("B2-INT-ENUM", lambda x, y: nisa.tensor_copy(x, y, engine=5)),
    ("B1-RESULT", lambda x, y: nisa.tensor_copy(x, nisa.tensor_copy(x, y))),
    ("B2-MEMSET-TYPE", lambda x, y: nisa.memset(nl.ndarray((4, 4), dtype=nl.int32), 0.5)),
    ("B2-MEMSET-X4", lambda x, y: nisa.memset(nl.ndarray((4, 4), dtype=nl.float8_e4m3fn_x4), 1)),
    ("S-SCALAROP", lambda x, y: nisa.tensor_scalar(x, x, nl.add, y[:, 0:2])),
    ("NKI-OPERAND", lambda x, y: nisa.tensor_scalar(x, x, nl.add, None)),
    ("NKI-OPERAND", lambda x, y: nisa.tensor_scalar(x, x, nl.rsqrt, 2.0)),
    ("NKI-OPERAND", lambda x, y: nisa.tensor_scalar(x, x, nl.add, 2.0, operand1=3.0)),
    ("S-BITVEC", lambda x, y: nisa.tensor_scalar(x, x, nl.add, 2.0, op1=nl.bitwise_and, operand1=1)),
    ("S-ENGINE", lambda x, y: nisa.tensor_scalar(x, x, nl.subtract, 2.0, engine=nisa.engine.scalar)),
    ("S-ENGINE", lambda x, y: nisa.tensor_scalar(x, x, nl.add, 2.0, engine=nisa.engine.gpsimd)),
    ("S-OP", lambda x, y: nisa.scalar_tensor_tensor(x, x, nl.exp, 1.0, nl.add, y)),
    ("S-DTYPE", lambda x, y: nisa.tensor_copy_predicated(x, y, x)),
    ("S-SPACE", lambda x, y: nisa.tensor_copy(x, nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.hbm))),
    ("S-PSTART", lambda x, y: nisa.tensor_copy(x[1:2, :], x[0:1, :])),
    ("B2-UNKNOWN-KW", lambda x, y: nisa.tensor_copy(x, y, source=y)),
    ("B1-MASK", lambda x, y: nisa.tensor_copy(x, y, mask=None)),
    ("B1-DTYPE-KW", lambda x, y: nisa.tensor_copy(x, y, dtype=nl.float32)),
    ("B1-DST-FIRST", lambda x, y: nisa.tensor_copy(src=y)),
    ("B2-UNKNOWN-KW", lambda x, y: nl.ndarray((4, 4), dtype=nl.float32, space=1)),
    ("L-LIB", lambda x, y: x + y),
    ("L-TENSOR-TRUTH", lambda x, y: 1 if x else 0),
    ("B1-RESULT", lambda x, y: x.__setitem__((0, 0), y)),
]


@pytest.mark.parametrize(("code", "body"), REJECTED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REJECTED)])
def test_rejected(rejected, code, body):
    a = np.ones((4, 8), np.float32)
    error = rejected(code, body, a, a)
    assert error.place.file == __file__
    assert isinstance(error, AssertionError)


def test_psum_rules(rejected):
    def psum():
        tile = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.psum)
        nisa.memset(tile, 0.0)
        return tile

    a = np.ones((4, 8), np.float32)
    rejected("S-BOTH-PSUM", lambda x: nisa.tensor_tensor(x, psum(), psum(), nl.add), a)
    rejected("S-GPS-PSUM", lambda x: nisa.tensor_copy(x, psum(), engine=nisa.engine.gpsimd), a)
    rejected("S-GPS-PSUM", lambda x: nisa.tensor_tensor(x, x, psum(), nl.power), a)
    rejected("V5-RSQRT-PSUM", lambda x: nl.rsqrt(psum()), a)
    rejected("S-ENGINE", lambda x: nisa.tensor_copy(x, x, engine=nisa.engine.scalar), a, target="trn1")


def test_more_than_128_partitions_has_the_vendors_words(rejected):
    def body(x):
        wide = nl.ndarray((129, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=wide, value=0.0)

    error = rejected("V6-PARTITION", body, np.ones((4, 4), np.float32))
    assert "memset dst partition dimension 129 exceeds maximum 128" in str(error)
    assert isinstance(error, nisa.NkiValidationError)


def test_what_a_predicate_leaves_unwritten_stays_unwritten(evaluate, rejected):
    mask = np.array([[1, 0, 1, 0]], np.uint8)

    def body(x, m):
        out = nl.ndarray((1, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy_predicated(out, x, m)
        return out

    a = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(evaluate(body, a, mask), [[1, np.nan, 1, np.nan]])
    rejected("NCC_ISIM074", lambda x, m: nisa.tensor_copy(x, body(x, m)), a, mask, strict=True)
