"""Values as another author would check them: rounding, saturation, activation functions, sums, scans, transposes."""

# ruff: noqa: B007, B023, F401, F841, PLC3002, PLW2901, PT018, RUF034 (written as their authors write)

from __future__ import annotations

import math

import ml_dtypes
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from scipy import special

import vibeserve.nki.shim

F32 = np.float32
CORNERS = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        3.5,
        -0.5,
        -1.5,
        -2.5,
        1e-45,
        1.4e-45,
        1.17549435e-38,
        1e-40,
        1e-8,
        6e-8,
        5.96e-8,
        2.98e-8,
        65504,
        65519.99,
        65520,
        65536,
        240,
        247.9,
        248,
        248.1,
        256,
        448,
        463.9,
        464,
        464.1,
        480,
        57344,
        61439,
        61440,
        3.38e38,
        3.4028235e38,
        -3.4028235e38,
        np.inf,
        -np.inf,
        np.nan,
        127,
        127.5,
        128,
        255,
        255.5,
        256,
        -128,
        -128.5,
        -129,
        32767,
        32767.5,
        2147483647,
        2147483648,
        -2147483648,
        -2147483649,
        4294967295,
        4294967296,
        16777216,
        16777217,
        1.0009765625,
        1.00048828125,
        1.000488400459,
        1.00390625,
        1.001953125,
        1.0019531250001,
        0.1,
        1 / 3,
    ],
    F32,
)
RAND = np.concatenate(
    [
        (
            np.random.default_rng(0).standard_normal(4000) * 10.0 ** np.random.default_rng(1).integers(-9, 9, 4000)
        ).astype(F32),
        CORNERS,
    ]
)
X = np.resize(RAND, (64, 64)).copy()


def run(body, *arrays, target="trn2", out=None):
    @nki.jit
    def k(*xs):
        tiles = [nl.load(x) for x in xs]
        r = body(*tiles)
        rs = r if isinstance(r, tuple) else (r,)
        outs = []
        for t in rs:
            if t.buffer == nl.psum:
                t = nl.copy(t)
            o = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
            nl.store(o, t)
            outs.append(o)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return nki.simulate(k, target=target)(*arrays)


def int_ref(x, dt):
    i = np.iinfo(dt)
    out = np.empty(x.shape, dt)
    for idx, v in np.ndenumerate(x):
        if math.isnan(v):
            out[idx] = 0
            continue
        if math.isinf(v):
            out[idx] = i.max if v > 0 else i.min
            continue
        out[idx] = min(max(round(float(v)), i.min), i.max)  # Python's round is ties to even
    return out


@pytest.mark.parametrize("route", ["dma", "copy", "scalar", "act", "nl", "tt", "gpsimd", "psum"])
@pytest.mark.parametrize(
    "dt",
    [
        "bfloat16",
        "float16",
        "float8_e4m3",
        "float8_e5m2",
        "float8_e4m3fn",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "tfloat32",
    ],
)
def test_casts(dt, route):
    d = getattr(nl, dt)

    def body(t):
        o = nl.ndarray(t.shape, d)
        if route == "dma":
            nisa.dma_copy(dst=o, src=t)
        elif route == "copy":
            nisa.tensor_copy(dst=o, src=t)
        elif route == "gpsimd":
            nisa.tensor_copy(dst=o, src=t, engine=nisa.engine.gpsimd)
        elif route == "scalar":
            nisa.tensor_scalar(dst=o, data=t, op0=nl.multiply, operand0=1.0)
        elif route == "act":
            nisa.activation(dst=o, op=nl.copy, data=t)
        elif route == "nl":
            o = nl.copy(t, dtype=d)
        elif route == "tt":
            z = nl.zeros(t.shape, nl.float32)
            nisa.tensor_tensor(o, t, z, nl.add)
        elif route == "psum":
            p = nl.ndarray(t.shape, nl.float32, nl.psum)
            nisa.tensor_copy(p, t)
            nisa.tensor_copy(o, p)
        return o

    with np.errstate(all="ignore"):
        got = run(body, X)
        x = X if route not in ("scalar", "tt") else X  # x*1, x+0 are exact (but -0 + 0 = 0)
        if dt == "tfloat32":
            b = x.view(np.uint32).astype(np.uint64)
            m = ((b + 0xFFF + ((b >> 13) & 1)) & 0xFFFFE000).astype(np.uint32).view(F32)
            want = np.where(np.isfinite(x), m, x)
        elif d.is_int:
            want = int_ref(x, np.dtype(d))
        else:
            want = x.astype(np.float64).astype(F32).astype(np.dtype(d))
    g, w = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(g, w)


def test_low_precision_rounding_is_nearest_even():
    # independent of ml_dtypes' own rounding: pick the nearest of all values, ties to the even mantissa
    for name in ("bfloat16", "float8_e4m3", "float8_e5m2", "float8_e4m3fn"):
        d = np.dtype(getattr(nl, name))
        bits = np.arange(2 ** (8 * d.itemsize), dtype=np.uint32).astype(f"u{d.itemsize}")
        with np.errstate(invalid="ignore"):  # signalling NaNs
            vals = bits.view(d).astype(np.float64)
        fin = np.isfinite(vals)
        vb, vv = bits[fin], vals[fin]
        o = np.argsort(vv, kind="stable")
        vv, vb = vv[o], vb[o]
        x = X[np.isfinite(X) & (np.abs(X) <= vv.max())].reshape(1, -1)
        got = run(lambda t: nl.copy(t, dtype=getattr(nl, name)), x).astype(np.float64)[0]
        hi = np.clip(np.searchsorted(vv, x[0].astype(np.float64)), 1, len(vv) - 1)
        lo = hi - 1
        dl, dh = x[0] - vv[lo], vv[hi] - x[0]
        near = np.where(dl < dh, vv[lo], np.where(dh < dl, vv[hi], np.where(vb[lo] & 1, vv[hi], vv[lo])))
        np.testing.assert_array_equal(got, near)


def test_x_to_fp32_exact():
    for name in (
        "bfloat16",
        "float16",
        "float8_e4m3",
        "float8_e5m2",
        "float8_e4m3fn",
        "int8",
        "uint8",
        "int16",
        "uint16",
    ):
        d = np.dtype(getattr(nl, name))
        n = 2 ** (8 * d.itemsize)
        a = np.arange(n, dtype=np.uint32).astype(f"u{d.itemsize}").view(d).reshape(128, -1)
        np.testing.assert_array_equal(run(lambda t: nl.copy(t, dtype=nl.float32), a), a.astype(F32))


def test_same_dtype_copies_keep_bits():
    for name in ("bfloat16", "float16", "float32", "float8_e4m3", "float8_e5m2", "int32", "uint32", "float8_e4m3fn"):
        d = np.dtype(getattr(nl, name))
        a = np.random.default_rng(0).integers(0, 256, (64, 32 * d.itemsize), dtype=np.uint8).view(d)

        def body(t):
            b = nl.ndarray(t.shape, t.dtype)
            nisa.tensor_copy(b, t)
            c = nl.ndarray(t.shape, t.dtype)
            nisa.dma_copy(c, b)
            return c

        assert run(body, a).tobytes() == a.tobytes()


def test_int32_large_exact_copy_and_lossy_cast():
    a = np.array([[16777217, -16777217, 2**31 - 1, -(2**31), 2**24 + 3, 7]], np.int32)
    np.testing.assert_array_equal(run(nl.copy, a), a)
    np.testing.assert_array_equal(run(lambda t: nl.copy(t, dtype=nl.float32), a), a.astype(F32))
    # through float32 into another integer type
    np.testing.assert_array_equal(run(lambda t: nl.copy(t, dtype=nl.uint32), a), int_ref(a.astype(F32), np.uint32))


def ulps(got, ref):
    """Error in units of the last place of the float32 reference, with a floor at the smallest normal."""
    r32 = ref.astype(F32)
    unit = np.spacing(np.maximum(np.abs(r32), F32(2.0**-126))).astype(np.float64)
    return np.abs(got.astype(np.float64) - ref) / unit


def mp_ref(name, x):
    X = x.astype(np.float64)
    sig = special.expit
    s, s2 = sig(X), sig(1.702 * X)
    phi = np.exp(-X * X / 2) / math.sqrt(2 * math.pi)
    Phi = special.ndtr(X)
    sp = np.logaddexp(0, X)
    return {
        "copy": X,
        "square": X * X,
        "sigmoid": s,
        "relu": np.maximum(X, 0),
        "gelu": X * Phi,
        "gelu_dx": Phi + X * phi,
        "gelu_apprx_tanh": X * sig(2 * math.sqrt(2 / math.pi) * (X + 0.044715 * X**3)),
        "gelu_apprx_sigmoid": X * s2,
        "gelu_apprx_sigmoid_dx": s2 + 1.702 * X * s2 * sig(-1.702 * X),
        "silu": X * s,
        "silu_dx": s * (1 + X * sig(-X)),
        "tanh": np.tanh(X),
        "softplus": sp,
        "mish": X * np.tanh(sp),
        "erf": special.erf(X),
        "erf_dx": 2 / math.sqrt(math.pi) * np.exp(-X * X),
        "exp": np.exp(X),
        "sin": np.sin(X),
        "arctan": np.arctan(X),
        "sign": np.sign(X),
        "abs": np.abs(X),
        "log": np.log(np.abs(X)),
        "sqrt": np.sqrt(np.abs(X)),
        "rsqrt": 1 / np.sqrt(np.abs(X)),
        "reciprocal": 1 / X,
    }[name]


ACTS = [
    "copy",
    "square",
    "sigmoid",
    "relu",
    "gelu",
    "gelu_dx",
    "gelu_apprx_tanh",
    "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx",
    "silu",
    "silu_dx",
    "tanh",
    "softplus",
    "mish",
    "erf",
    "erf_dx",
    "exp",
    "log",
    "sin",
    "arctan",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sign",
    "abs",
]


@pytest.mark.parametrize("name", ACTS)
def test_activation_precision(name):
    r = np.random.default_rng(3)
    lim = {"sin": 3.14159, "arctan": 1.57, "exp": 80, "sigmoid": 30}.get(name, 12)
    x = r.uniform(-lim, lim, (128, 256)).astype(F32)
    x[:, :32] = (r.standard_normal((128, 32)) * 1e-3).astype(F32)
    if name in ("log", "sqrt", "rsqrt"):
        x = np.abs(x) + F32(1e-6)
    with np.errstate(all="ignore"):
        ref = mp_ref(name, x)

    def body(t):
        o = nl.ndarray(t.shape, nl.float32)
        nisa.activation(dst=o, op=getattr(nl, name), data=t)
        return o

    got = run(body, x)
    e = np.abs(got - ref)
    scale = np.abs(ref)
    rel = e / np.maximum(scale, 1e-30)
    worst = np.unravel_index(np.argmax(rel), rel.shape)
    assert rel.max() < 1e-4 or e.max() < 2e-7, (rel.max(), e.max())


@pytest.mark.parametrize("name", ACTS)
def test_activation_specials(name):
    x = np.array(
        [[np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 700.0, -700.0, -3.4028235e38, 3.4028235e38]],
        F32,
    )

    def body(t):
        o = nl.ndarray(t.shape, nl.float32)
        nisa.activation(dst=o, op=getattr(nl, name), data=t)
        return o

    g = run(body, x)[0]
    assert np.isnan(g[2])
    if name in ("sigmoid",):
        assert g[0] == 1
        assert g[1] == 0
    if name == "exp":
        assert g[1] == 0
        assert g[11] == 0
        assert g[0] == np.inf
    if name in ("silu", "gelu", "gelu_apprx_sigmoid", "gelu_apprx_tanh", "mish"):
        assert g[9] == 700 and abs(g[10]) < 1e-30, g
    if name in ("silu_dx", "gelu_dx", "gelu_apprx_sigmoid_dx"):
        assert abs(g[9] - 1) < 1e-6
        assert abs(g[10]) < 1e-6
    if name == "softplus":
        assert g[9] == 700
        assert g[10] == 0
    if name == "tanh":
        assert g[0] == 1
        assert g[1] == -1


def test_exp_of_minus_inf_minus_max_and_masks():
    def body(t):
        m = nl.max(t, axis=1, keepdims=True)
        o = nl.ndarray(t.shape, nl.float32)
        nisa.activation(dst=o, op=nl.exp, data=t, bias=nl.negative(m))
        return o, m

    x = np.array([[-np.inf, 0, 1.0, -3.4028235e38]], F32)
    o, m = run(body, x)
    assert m[0, 0] == 1
    assert o[0, 0] == 0
    assert o[0, 3] == 0
    assert o[0, 2] == 1


def test_psum_accumulates_in_f32():
    # products that bf16 accumulation would lose
    K = 128
    a = np.zeros((K, 4), ml_dtypes.bfloat16)
    b = np.ones((K, 8), ml_dtypes.bfloat16)
    a[0] = 256
    a[1:] = 1

    def body(x, y):
        p = nl.ndarray((4, 8), nl.float32, nl.psum)
        for i in range(3):
            nisa.nc_matmul(p, x, y)
        return p

    np.testing.assert_array_equal(run(body, a, b), 3 * (256 + 127))
    # the order of independent accumulation groups does not matter for integers
    x, y = (np.random.default_rng(i).integers(-8, 8, (256, 32)).astype(F32) for i in range(2))

    def order(perm):
        def body(_):
            return None

        @nki.jit
        def k(x, y):
            p = nl.ndarray((32, 32), nl.float32, nl.psum)
            for j in perm:
                nisa.nc_matmul(p, nl.load(x[j * 64 : (j + 1) * 64]), nl.load(y[j * 64 : (j + 1) * 64]))
            o = nl.ndarray((32, 32), nl.float32, buffer=nl.shared_hbm)
            nl.store(o, nl.copy(p))
            return o

        return nki.simulate(k)(x, y)

    for perm in ((0, 1, 2, 3), (3, 1, 0, 2)):
        np.testing.assert_array_equal(order(perm), x.T @ y)


def test_psum_per_element_groups():
    def body(a, b):
        p = nl.ndarray((32, 64), nl.float32, nl.psum)
        nisa.nc_matmul(p[:, 0:40], a, b[:, 0:40])
        nisa.nc_matmul(p[:, 20:64], a, b[:, 20:64])
        return p

    a, b = (np.random.default_rng(i).integers(-8, 8, (16, n)).astype(F32) for i, n in ((0, 32), (1, 64)))
    w = a.T @ b
    w[:, 20:40] *= 2
    np.testing.assert_array_equal(run(body, a, b), w)


def test_matmul_bf16_products_exact_and_fp32_pass():
    a, b = (np.random.default_rng(i).standard_normal((128, 64)).astype(ml_dtypes.bfloat16) for i in range(2))
    ref = a.astype(np.float64).T @ b.astype(np.float64)

    def body(x, y):
        p = nl.ndarray((64, 64), nl.float32, nl.psum)
        nisa.nc_matmul(p, x, y)
        return p

    np.testing.assert_allclose(run(body, a, b), ref, rtol=1e-5, atol=1e-4)


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
