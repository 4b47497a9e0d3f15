"""Values as another author would check them: rounding, saturation, activation functions, sums in PSUM."""

# ruff: noqa: B007, B023, F841, PT018, RUF034 (written as their authors write)

from __future__ import annotations

import math

import ml_dtypes
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from scipy import special
from tests.nki.foreign_values import F32, X, run


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
