"""Formulas as another author would check them: statistics, selects, reductions, integers, shuffles, microscaling."""

# ruff: noqa: B007, B023, PLC3002 (written as their authors write)

from __future__ import annotations

import ml_dtypes
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from tests.nki.foreign_values import F32, run


def test_bn_formulas():
    x = np.random.default_rng(0).standard_normal((20, 37)).astype(F32) + 5

    def body(t):
        s = nl.ndarray((20, 6), nl.float32)
        nisa.bn_stats(s, t)
        m = nl.ndarray((20, 2), nl.float32)
        nisa.bn_aggr(m, s)
        return s, m

    s, m = run(body, x)
    e, o = x[:, ::2].astype(np.float64), x[:, 1::2].astype(np.float64)
    want = np.stack([np.full(20, 19), e.mean(1), e.var(1) * 19, np.full(20, 18), o.mean(1), o.var(1) * 18], 1)
    np.testing.assert_allclose(s, want, rtol=1e-5)
    np.testing.assert_allclose(m, np.stack([x.mean(1), x.var(1)], 1), rtol=1e-5)
    one = x[:, :1].copy()
    s = run(lambda t: (lambda s: (nisa.bn_stats(s, t), s)[1])(nl.ndarray((20, 6), nl.float32)), one)
    np.testing.assert_allclose(s, np.stack([np.ones(20), one[:, 0], *[np.zeros(20)] * 4], 1), rtol=1e-6)


@pytest.mark.parametrize("op", ["greater_equal", "greater", "less", "less_equal", "equal", "not_equal"])
def test_affine_select(op):
    x = np.random.default_rng(0).standard_normal((16, 3, 5)).astype(F32)

    def body(t):
        o = nl.ndarray(t.shape, nl.float32)
        nisa.affine_select(
            dst=o,
            pattern=[[2, 3], [-1, 5]],
            channel_multiplier=1,
            on_true_tile=t,
            on_false_value=-9.5,
            cmp_op=getattr(nl, op),
            offset=-3,
        )
        return o

    a = -3 + np.arange(16)[:, None, None] + 2 * np.arange(3)[:, None] - np.arange(5)
    f = {
        "greater_equal": np.greater_equal,
        "greater": np.greater,
        "less": np.less,
        "less_equal": np.less_equal,
        "equal": np.equal,
        "not_equal": np.not_equal,
    }[op]
    np.testing.assert_array_equal(run(body, x), np.where(f(a, 0), x, F32(-9.5)))


def test_reduce_families():
    x = np.random.default_rng(0).standard_normal((8, 3, 4, 5)).astype(F32)
    for axis, ax in ((3, 3), ((2, 3), (2, 3)), ([3], 3), ((1, 2, 3), (1, 2, 3)), (-1, 3)):
        for op, f in (("add", np.sum), ("maximum", np.max), ("minimum", np.min), ("multiply", np.prod)):

            def body(t):
                w = f(x, axis=ax)
                sh = w.shape if w.ndim > 1 else (8, 1)
                o = nl.ndarray(sh, nl.float32)
                nisa.tensor_reduce(dst=o, op=getattr(nl, op), data=t, axis=axis, negate=op == "maximum")
                return o

            w = f(x.astype(np.float64), axis=ax)
            w = -w if op == "maximum" else w
            np.testing.assert_allclose(run(body, x).reshape(w.shape), w, rtol=2e-5, atol=1e-5)


def test_logical_and_compare_dtypes():
    a = np.array([[0, 1, 2, -1, 0.5, np.nan]], F32)
    b = np.array([[1, 1, 0, 0, 0.5, np.nan]], F32)
    for dt in (nl.float32, nl.uint8, nl.uint32, nl.bfloat16, nl.int32):
        for op, f in (
            ("logical_and", lambda x, y: (x != 0) & (y != 0)),
            ("logical_or", lambda x, y: (x != 0) | (y != 0)),
            ("logical_xor", lambda x, y: (x != 0) ^ (y != 0)),
            ("less", np.less),
            ("equal", np.equal),
            ("not_equal", np.not_equal),
            ("greater_equal", np.greater_equal),
        ):

            def body(x, y):
                o = nl.ndarray(x.shape, dt)
                nisa.tensor_tensor(o, x, y, getattr(nl, op))
                return o

            np.testing.assert_array_equal(run(body, a, b).astype(F32), f(a, b).astype(F32))


def test_max_min_nan_and_inf():
    a = np.array([[np.nan, 1, -np.inf, np.inf, 0.0, -0.0]], F32)
    b = np.array([[1, np.nan, 2, 2, -0.0, 0.0]], F32)
    for op, f in (("maximum", np.maximum), ("minimum", np.minimum)):

        def body(x, y):
            o = nl.ndarray(x.shape, nl.float32)
            nisa.tensor_tensor(o, x, y, getattr(nl, op))
            return o

        np.testing.assert_array_equal(run(body, a, b), f(a, b))


def test_shift_and_bits_u32():
    a = np.array([[0xFFFFFFFF, 0x80000000, 1, 0x12345678, 0]], np.uint32)
    for dt in (np.uint32, np.int32):
        x = a.view(dt)
        for s in (0, 1, 7, 31, 32):

            def body(t):
                l, r = nl.ndarray(t.shape, t.dtype), nl.ndarray(t.shape, t.dtype)
                nisa.tensor_scalar(l, t, nl.left_shift, s)
                nisa.tensor_scalar(r, t, nl.right_shift, s)
                return l, r

            l, r = run(body, x)
            np.testing.assert_array_equal(
                l.view(np.uint32), (a.astype(np.uint64) << s).astype(np.uint32) if s < 32 else 0
            )
            np.testing.assert_array_equal(r.view(np.uint32), (a.astype(np.uint64) >> s).astype(np.uint32))


def test_int_power_and_mixed():
    a = np.array([[2, 3, -2, 10]], np.int32)
    b = np.array([[3, -1, 2, 0]], np.int32)

    def body(x, y):
        o = nl.ndarray(x.shape, nl.float32)
        nisa.tensor_tensor(o, x, y, nl.power)
        return o

    np.testing.assert_allclose(run(body, a, b), a.astype(np.float64) ** b, rtol=1e-5)

    def body2(x, y):
        o = nl.ndarray(x.shape, nl.int32)
        nisa.tensor_tensor(o, x, y, nl.power)
        return o

    np.testing.assert_array_equal(run(body2, a, b), [[8, 0, 4, 1]])


def test_tensor_scalar_int_index_math():
    a = np.arange(0, 2**24, 2**17, dtype=np.int32).reshape(1, -1)

    def body(t):
        o = nl.ndarray(t.shape, nl.int32)
        nisa.tensor_scalar(o, t, nl.add, 128)
        return o

    np.testing.assert_array_equal(run(body, a), a + 128)

    def body2(t):
        o = nl.ndarray(t.shape, nl.int32)
        nisa.tensor_scalar(o, t, nl.multiply, 3, op1=nl.subtract, operand1=1)
        return o

    b = np.arange(1000, dtype=np.int32).reshape(1, -1)
    np.testing.assert_array_equal(run(body2, b), b * 3 - 1)


def test_rounding_of_half_through_multiply():
    a = np.array([[1, 3, 5, 7, -1, -3]], np.int32)

    def body(t):
        o = nl.ndarray(t.shape, nl.int32)
        nisa.tensor_scalar(o, t, nl.multiply, 0.5)
        return o

    np.testing.assert_array_equal(run(body, a), [[0, 2, 2, 4, 0, -2]])


def test_accumulate_true_bf16_dst_transposes():
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(ml_dtypes.bfloat16)
    x[0, 0] = np.nan

    def body(t):
        p = nl.ndarray((32, 64), nl.bfloat16, nl.psum)
        nisa.nc_transpose(p, t)
        return p

    got = run(body, x)
    assert np.isnan(got[0, 0].astype(F32))
    assert np.isfinite(got.astype(F32)).sum() == got.size - 1
    assert np.isnan(run(body, x, target="trn1").astype(F32)).all()


def test_mx_formula():
    x = (
        np.random.default_rng(0).standard_normal((64, 16)) * 10.0 ** np.random.default_rng(1).integers(-3, 3, (64, 16))
    ).astype(ml_dtypes.bfloat16)
    x[8:16, 0:4] = 0
    for dt, emax, lane, mx in (
        ("float8_e4m3fn_x4", 8, ml_dtypes.float8_e4m3fn, 448),
        ("float8_e5m2_x4", 15, ml_dtypes.float8_e5m2, 57344),
    ):

        @nki.jit
        def k(x):
            t = nl.load(x)
            d = nl.ndarray((64, 4), getattr(nl, dt))
            s = nl.zeros((64, 4), nl.uint8)
            nisa.quantize_mx(d, t, s)
            o, p = (
                nl.ndarray((64, 16), nl.uint8, buffer=nl.shared_hbm),
                nl.ndarray((64, 4), nl.uint8, buffer=nl.shared_hbm),
            )
            nisa.dma_copy(o, d.view(nl.uint8))
            nisa.dma_copy(p, s)
            return o, p

        d, s = nki.simulate(k, target="trn3")(x)
        X = x.astype(np.float64).reshape(8, 8, 4, 4)
        amax = np.abs(X).max((1, 3))
        with np.errstate(all="ignore"):
            e = np.where(amax == 0, -127, np.floor(np.log2(amax)) - (emax - 1))
        rows = [32 * (i // 4) + i % 4 for i in range(8)]
        np.testing.assert_array_equal(s[rows], (e + 127).astype(np.uint8))
        q = (X / 2.0 ** e[:, None, :, None]).astype(F32).astype(lane).reshape(64, 16)
        np.testing.assert_array_equal(d, q.view(np.uint8))


def test_stream_shuffle_and_partition_reduce():
    x = np.random.default_rng(0).standard_normal((128, 7)).astype(F32)
    mask = [31 - i for i in range(32)]
    mask[4] = 255

    def body(t):
        o = nl.zeros((128, 7), nl.float32)
        nisa.nc_stream_shuffle(dst=o, src=t, shuffle_mask=mask)
        r = nl.ndarray((1, 7), nl.float32)
        nisa.tensor_partition_reduce(r, nl.add, t)
        return o, r

    o, r = run(body, x)
    w = x.reshape(4, 32, 7)[:, [31 - i for i in range(32)]].copy()
    w[:, 4] = 0
    np.testing.assert_array_equal(o, w.reshape(128, 7))
    np.testing.assert_allclose(r[0], x.sum(0), rtol=1e-4, atol=1e-5)


def test_find_index_duplicates():
    x = np.array([[3, 1, 3, 3, 2, 2, 0, -1, 5, 5]], F32)

    def body(t):
        v = nl.ndarray((1, 8), nl.float32)
        nisa.max8(v, t)
        i = nl.ndarray((1, 8), nl.uint32)
        nisa.nc_find_index8(i, t, v)
        return v, i

    v, i = run(body, x)
    np.testing.assert_array_equal(v, [[5, 5, 3, 3, 3, 2, 2, 1]])
    np.testing.assert_array_equal(i, [[8, 9, 0, 2, 3, 4, 5, 1]])

    def miss(t):
        v = nl.full((1, 8), 77.0, nl.float32)
        i = nl.ndarray((1, 8), nl.uint32)
        nisa.nc_find_index8(i, t, v)
        return i

    assert (run(miss, x) == 0xFFFFFFFF).all()


def test_activation_fused_scale_bias_tile_and_accumulate():
    x = np.random.default_rng(0).standard_normal((30, 50)).astype(F32)
    sc, bi = (np.random.default_rng(i).standard_normal((30, 1)).astype(F32) for i in (1, 2))

    def body(t, s, b):
        o, r = nl.ndarray(t.shape, nl.float32), nl.ndarray((30, 1), nl.float32)
        nisa.activation(
            dst=o[:, 0:25],
            op=nl.tanh,
            data=t[:, 0:25],
            scale=s,
            bias=b,
            reduce_op=nl.add,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        nisa.activation(
            dst=o[:, 25:50],
            op=nl.tanh,
            data=t[:, 25:50],
            scale=s,
            bias=b,
            reduce_op=nl.add,
            reduce_res=r,
            reduce_cmd=nisa.reduce_cmd.reduce,
        )
        return o, r

    o, r = run(body, x, sc, bi)
    w = np.tanh(x.astype(np.float64) * sc + bi)
    np.testing.assert_allclose(o, w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(r[:, 0], w.sum(1), rtol=1e-5, atol=1e-5)


def test_dma_compute_casts_and_sums():
    xs = [np.random.default_rng(i).standard_normal((40, 20)).astype(ml_dtypes.bfloat16) for i in range(3)]

    @nki.jit
    def k(a, b, c):
        o = nl.ndarray(a.shape, nl.bfloat16, buffer=nl.shared_hbm)
        nisa.dma_compute(o, [a, b, c], nl.add)
        return o

    np.testing.assert_array_equal(
        nki.simulate(k)(*xs), (xs[0].astype(F32) + xs[1].astype(F32) + xs[2].astype(F32)).astype(ml_dtypes.bfloat16)
    )


def test_dma_transpose_ranks():
    for shape, axes in (((64, 96), (1, 0)), ((3, 5, 64), (2, 1, 0)), ((2, 3, 4, 32), (3, 1, 2, 0))):
        for dt in (np.float32, ml_dtypes.bfloat16):
            x = np.random.default_rng(0).standard_normal(shape).astype(dt)

            @nki.jit
            def k(x):
                t = nl.ndarray(tuple(x.shape[a] for a in axes), x.dtype)
                nisa.dma_transpose(dst=t, src=x)
                o = nl.ndarray(t.shape, x.dtype, buffer=nl.shared_hbm)
                nisa.dma_copy(o, t)
                return o

            np.testing.assert_array_equal(nki.simulate(k)(x), x.transpose(axes))
