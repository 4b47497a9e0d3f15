"""Reductions, scans, batch-norm statistics and accumulators against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl

REDUCE = {"add": np.sum, "multiply": np.prod, "maximum": np.max, "minimum": np.min}


def new(shape, dtype="float32"):
    return nl.ndarray(shape, dtype=getattr(nl, dtype), buffer=nl.sbuf)


@given(
    st.sampled_from(sorted(REDUCE)), st.tuples(st.integers(1, 64), st.integers(1, 5), st.integers(1, 6), st.integers(1, 4)),
    st.integers(1, 3), st.booleans(), st.booleans(), st.sampled_from([np.float32, ml_dtypes.bfloat16]), st.integers(0, 50),
)  # fmt: skip
def test_tensor_reduce(evaluate, op, shape, count, negate, keepdims, kind, seed):
    a = np.random.default_rng(seed).integers(-2, 3, shape).astype(kind)
    axes = tuple(range(4 - count, 4))

    def body(x):
        kept = x.shape[: 4 - count] + ((1,) * count if keepdims else ())
        out = new(kept if len(kept) > 1 else (kept[0], 1))
        nisa.tensor_reduce(
            dst=out, op=getattr(nl, op), data=x, axis=axes if count > 1 else 3, negate=negate, keepdims=keepdims
        )
        return out

    expected = REDUCE[op](a.astype(np.float32), axis=axes) * (-1 if negate else 1)
    np.testing.assert_allclose(evaluate(body, a).reshape(expected.shape), expected, rtol=1e-6)


def test_tensor_reduce_of_a_permuted_view_and_of_bits(evaluate, rng):
    a = rng.standard_normal((4, 3, 5)).astype(np.float32)
    bits = rng.integers(0, 2**31, (4, 6)).astype(np.int32)

    def body(x, y):
        out, merged = new((4, 5)), new((4, 1), "int32")
        nisa.tensor_reduce(out, nl.add, x.permute((0, 2, 1)), axis=[2])
        nisa.tensor_reduce(merged, nl.bitwise_or, y, axis=1)
        return out, merged

    total, merged = evaluate(body, a, bits)
    np.testing.assert_allclose(total, a.sum(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(merged[:, 0], np.bitwise_or.reduce(bits, axis=1))


@given(st.integers(1, 128), st.integers(1, 30), st.integers(0, 50))
def test_tensor_tensor_scan(evaluate, parts, n, seed):
    draw = np.random.default_rng(seed)
    a, b = (draw.uniform(-1, 1, (parts, n)).astype(np.float32) for _ in range(2))
    start = draw.standard_normal((parts, 1)).astype(np.float32)

    def body(x, y, s):
        first, second = new(x.shape), new(x.shape)
        nisa.tensor_tensor_scan(dst=first, data0=x, data1=y, initial=s, op0=nl.multiply, op1=nl.add)
        nisa.tensor_tensor_scan(
            dst=second, data0=x, data1=y, initial=0.5, op0=nl.subtract, op1=nl.maximum, reverse0=True
        )
        return first, second

    first, second = np.empty_like(a), np.empty_like(a)
    state, other = start[:, 0], np.full(parts, 0.5, np.float32)
    for i in range(n):
        state = a[:, i] * state + b[:, i]
        other = np.maximum(other - a[:, i], b[:, i])
        first[:, i], second[:, i] = state, other
    got = evaluate(body, a, b, start)
    np.testing.assert_allclose(got[0], first, rtol=1e-6)
    np.testing.assert_allclose(got[1], second, rtol=1e-6)


@pytest.mark.parametrize("op1", ["add", "multiply", "maximum", "minimum"])
def test_tensor_scalar_cumulative(evaluate, rng, op1):
    a = rng.uniform(0.5, 1.5, (5, 9)).astype(np.float32)

    def body(x):
        out, more = new(x.shape), new(x.shape)
        nisa.tensor_scalar_cumulative(out, x, nl.add, getattr(nl, op1), 0.25)
        nisa.tensor_scalar_cumulative(more, x, nl.add, getattr(nl, op1), 0.25, reduce_cmd=nisa.reduce_cmd.reduce)
        return out, more

    ufunc = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}[op1]
    line = ufunc.accumulate(np.concatenate([a + 0.25, a + 0.25], axis=1), axis=1)
    got = evaluate(body, a)
    np.testing.assert_allclose(got[0], line[:, :9], rtol=1e-5)
    np.testing.assert_allclose(got[1], line[:, 9:], rtol=1e-5)


def test_tensor_scalar_reduce_and_its_accumulator(evaluate, rng):
    a = rng.standard_normal((6, 7)).astype(np.float32)

    def body(x):
        out, one, two, three = new(x.shape), new((6, 1)), new((6, 1)), new((6, 1))
        nisa.tensor_scalar_reduce(out, x, nl.multiply, 2.0, nl.add, reduce_res=one)
        nisa.tensor_scalar_reduce(out, x, nl.multiply, 2.0, nl.add, reduce_res=two, reduce_cmd=nisa.reduce_cmd.reduce)
        nisa.tensor_scalar_reduce(
            out,
            x,
            nl.multiply,
            2.0,
            nl.maximum,
            reduce_res=three,
            reduce_cmd=nisa.reduce_cmd.load_reduce,
            reduce_init=100.0,
            reduce_res_negate=True,
        )
        return out, one, two, three

    out, one, two, three = evaluate(body, a)
    np.testing.assert_allclose(out, 2 * a, rtol=1e-6)
    np.testing.assert_allclose(one[:, 0], (2 * a).sum(axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(two, 2 * one, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(three, np.full((6, 1), -100))


@pytest.mark.parametrize("n", [1, 2, 7, 512])
def test_batch_norm_pair(evaluate, rng, n):
    a = (rng.standard_normal((6, n)) * 3 + 1).astype(np.float32)

    def body(x):
        stats, both = new((6, 6)), new((6, 2))
        nisa.bn_stats(dst=stats, data=x)
        nisa.bn_aggr(dst=both, data=stats)
        return stats, both

    stats, both = evaluate(body, a)
    np.testing.assert_array_equal(stats[:, 0], -(-n // 2))
    np.testing.assert_allclose(stats[:, 1], a[:, ::2].mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(both[:, 0], a.mean(axis=1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both[:, 1], a.var(axis=1), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("op", "reference"), [("add", np.sum), ("average", np.mean), ("maximum", np.max)])
def test_tensor_partition_reduce(evaluate, rng, op, reference):
    a = rng.standard_normal((40, 6)).astype(np.float32)

    def body(x):
        out = new((1, 6))
        nisa.tensor_partition_reduce(out, getattr(nl, op), x)
        return out

    np.testing.assert_allclose(evaluate(body, a)[0], reference(a, axis=0), rtol=1e-5, atol=1e-6)


REJECTED = [
    ("B2-REDUCE-AXIS", lambda x: nisa.tensor_reduce(new((4, 1)), nl.add, x, axis=0)),
    (
        "B2-REDUCE-AXIS",
        lambda x: nisa.tensor_reduce(new((4, 6)), nl.add, x.reshape((4, 2, 3)).reshape((4, 6, 1)), axis=1),
    ),
    ("S-ELEMENTS", lambda x: nisa.tensor_reduce(new((4, 2)), nl.add, x, axis=1)),
    ("S-OP", lambda x: nisa.tensor_reduce(new((4, 1)), nl.less, x, axis=1)),
    ("S-OP", lambda x: nisa.tensor_partition_reduce(new((1, 6)), nl.multiply, x)),
    ("S-SIZE", lambda x: nisa.tensor_partition_reduce(new((4, 6)), nl.add, x)),
    ("NKI-OPERAND", lambda x: nisa.tensor_scalar_reduce(x, x, nl.add, 1.0, nl.add, reverse0=True)),
    ("S-REDUCE-CMD", lambda x: nisa.tensor_scalar_reduce(x, x, nl.add, 1.0, nl.add, reduce_init=1.0)),
    ("S-REDUCE-CMD", lambda x: nisa.tensor_scalar_reduce(x, x, nl.add, 1.0, nl.add, reduce_cmd=nisa.reduce_cmd.idle)),
    ("S-OP", lambda x: nisa.tensor_scalar_cumulative(x, x, nl.add, nl.less, 1.0)),
    ("S-DTYPE", lambda x: nisa.tensor_scalar_cumulative(new((4, 6), "int32"), x, nl.add, nl.add, 1.0)),
    ("S-SIZE", lambda x: nisa.bn_stats(new((4, 5)), x)),
    ("S-SIZE", lambda x: nisa.bn_aggr(new((4, 2)), x[:, 0:4])),
    ("S-SCALAROP", lambda x: nisa.tensor_tensor_scan(x, x, x, x, nl.add, nl.add)),
]


@pytest.mark.parametrize(("code", "body"), REJECTED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REJECTED)])
def test_rejected(rejected, code, body):
    rejected(code, body, np.ones((4, 6), np.float32))
