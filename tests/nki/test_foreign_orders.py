"""Tiling, gathers, selects, constants, integers and small sizes in the styles of many authors, each against NumPy."""

from __future__ import annotations

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from tests.nki.foreign import F32, R, close, hbm, near, sb, sim


# 30. column tiling of PE
def test_pe_tiling():
    @nki.jit
    def k(a, b):  # 4 products of 32-row operands, row tiling
        at, bt = nl.load(a), nl.load(b)
        o = nl.ndarray((4, a.shape[1], b.shape[1]), nl.float32, buffer=nl.shared_hbm)
        for i in range(4):
            ps = nl.ndarray((a.shape[1], b.shape[1]), nl.float32, nl.psum)
            nisa.nc_matmul(
                ps, at[i * 32 : (i + 1) * 32], bt[i * 32 : (i + 1) * 32], tile_position=(i * 32, 0), tile_size=(32, 128)
            )
            nl.store(o[i], nl.copy(ps))
        return o

    a, b = R(128, 60), R(128, 80)
    close(sim(k, a, b), np.stack([a[i * 32 : (i + 1) * 32].T @ b[i * 32 : (i + 1) * 32] for i in range(4)]))


# 31. local gather, nc_n_gather, nonzero
def test_gathers():
    @nki.jit
    def k(x, i):
        t, it = nl.load(x), nl.load(i)
        d = nl.ndarray(i.shape, x.dtype)
        nisa.nc_n_gather(dst=d, data=t, indices=it)
        e = nl.gather_flattened(t, it)
        o, o2 = (nl.ndarray(i.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(2))
        nl.store(o, d)
        nl.store(o2, e)
        return o, o2

    x, i = R(64, 100), np.random.default_rng(0).integers(0, 100, (64, 30)).astype(np.uint32)
    a, b = sim(k, x, i)
    np.testing.assert_array_equal(a, np.take_along_axis(x, i.astype(int), 1))
    np.testing.assert_array_equal(b, a)

    @nki.jit
    def lg(x, i):
        t, it = nl.load(x), nl.load(i)
        n = i.shape[1] * 16
        d = nl.ndarray((x.shape[0], n), x.dtype)
        nisa.local_gather(dst=d, src_buffer=t, index=it, num_elem_per_idx=1, num_valid_indices=n)
        o = nl.ndarray(d.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(o, d)
        return o

    i = np.random.default_rng(0).integers(0, 100, (64, 2)).astype(np.uint16)
    w = np.concatenate([x[g * 16 : (g + 1) * 16][:, i[g * 16 : (g + 1) * 16].T.reshape(-1)] for g in range(4)])
    np.testing.assert_array_equal(sim(lg, x, i), w)


# 32. range_select / select_reduce / predicated
def test_selects():
    @nki.jit
    def k(x, lo, hi, m):
        t, l, h, mm = nl.load(x), nl.load(lo), nl.load(hi), nl.load(m)
        d, r = nl.ndarray(x.shape, nl.float32), nl.ndarray((x.shape[0], 1), nl.float32)
        nisa.range_select(
            dst=d,
            on_true_tile=t,
            comp_op0=nl.greater_equal,
            comp_op1=nl.less,
            bound0=l,
            bound1=h,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_res=r,
            reduce_op=nl.maximum,
            range_start=2,
            on_false_value=-3.4028235e38,
        )
        p = nl.full(x.shape, 7.0, dtype=nl.float32)
        nisa.tensor_copy_predicated(dst=p, src=t, predicate=mm)
        w = nl.where(nl.greater(t, 0.0), t, p)
        outs = [nl.ndarray(z.shape, nl.float32, buffer=nl.shared_hbm) for z in (d, r, p, w)]
        for o, z in zip(outs, (d, r, p, w), strict=False):
            nl.store(o, z)
        return tuple(outs)

    x = R(30, 40)
    lo = np.random.default_rng(0).integers(0, 20, (30, 1)).astype(F32)
    hi = lo + 8
    m = (R(30, 40, seed=9) > 0).astype(np.uint8)
    d, r, p, w = sim(k, x, lo, hi, m)
    idx = np.arange(40) + 2
    D = np.where((idx >= lo) & (idx < hi), x, np.finfo(F32).min)
    np.testing.assert_array_equal(d, D)
    np.testing.assert_array_equal(r[:, 0], D.max(1))
    P = np.where(m, x, F32(7))
    np.testing.assert_array_equal(p, P)
    np.testing.assert_array_equal(w, np.where(x > 0, x, P))


# 33. nested jit helpers
def test_nested_jit():
    @nki.jit
    def helper(t, f=2.0):
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=f)
        return t

    @nki.jit(mode="trace")
    def main(x):
        t = nl.load(x)
        helper(t)
        t = helper(t, f=3.0)
        o = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(o, t)
        return o

    np.testing.assert_array_equal(main(np.ones((2, 2), F32)), 6)


# 34. shared_constant, npy
def test_constants(tmp_path):
    c = R(4, 6)
    np.save(tmp_path / "c.npy", c)

    @nki.jit
    def k(x):
        a = nl.load(nl.shared_constant(c))
        b = nl.load(nl.shared_constant(str(tmp_path / "c.npy")))
        o = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(o, nl.add(nl.add(a, b), nl.load(x)))
        return o

    np.testing.assert_allclose(sim(k, c), 3 * c, rtol=1e-6)


# 35. no_reorder, schedule, depends_on
def test_order_tools():
    @nki.jit
    def k(x):
        with nl.no_reorder():
            t = nl.load(x)
            a = nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0, name="a")
            b = nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=2.0, name="b")
        b.depends_on(a)
        o = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(o, t)
        return o

    x = R(2, 2)
    np.testing.assert_allclose(k(x), (x + 1) * 2, rtol=1e-6)
    np.testing.assert_allclose(k.with_schedule([("b", "a")])(x), (x + 1) * 2, rtol=1e-6)
    np.testing.assert_allclose(nki.simulate(k.with_schedule([("b", ["a"])]))(x), (x + 1) * 2, rtol=1e-6)


# 36. integer math
def test_int_math():
    @nki.jit
    def k(a, b):
        x, y = nl.load(a), nl.load(b)
        outs = []
        for op in (
            nl.add,
            nl.subtract,
            nl.multiply,
            nl.maximum,
            nl.minimum,
            nl.bitwise_and,
            nl.bitwise_or,
            nl.bitwise_xor,
        ):
            d = nl.ndarray(a.shape, a.dtype)
            nisa.tensor_tensor(d, x, y, op)
            o = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
            nl.store(o, d)
            outs.append(o)
        return tuple(outs)

    for dt in (np.int32, np.uint32):
        r = np.random.default_rng(0)
        a, b = (r.integers(0, 1 << 31, (4, 9)).astype(dt) for _ in range(2))
        fs = (np.add, np.subtract, np.multiply, np.maximum, np.minimum, np.bitwise_and, np.bitwise_or, np.bitwise_xor)
        for g, f in zip(sim(k, a, b), fs, strict=False):
            np.testing.assert_array_equal(g, f(a, b))


def test_iota_patterns():
    @nki.jit
    def k(x):
        a = nl.ndarray((8, 3, 4), nl.int32)
        nisa.iota(dst=a, pattern=[[10, 3], [1, 4]], offset=5, channel_multiplier=100)
        b = nl.ndarray((8, 12), nl.float32)
        nisa.iota(b, [[-1, 12]], 0, 2)
        o, p = (
            nl.ndarray((8, 3, 4), nl.int32, buffer=nl.shared_hbm),
            nl.ndarray((8, 12), nl.float32, buffer=nl.shared_hbm),
        )
        nl.store(o, a)
        nl.store(p, b)
        return o, p

    a, b = sim(k, R(1, 1))
    np.testing.assert_array_equal(a, 5 + 100 * np.arange(8)[:, None, None] + 10 * np.arange(3)[:, None] + np.arange(4))
    np.testing.assert_array_equal(b, 2 * np.arange(8)[:, None] - np.arange(12))


def test_chained_lists_and_dicts():
    @nki.jit
    def k(x):
        P, F = x.shape
        grid = [[nl.ndarray((P // 2, F // 2), x.dtype) for j in range(2)] for i in range(2)]
        named = {}
        for i in range(2):
            for j in range(2):
                nisa.dma_copy(grid[i][j], x[i * P // 2 : (i + 1) * P // 2, j * F // 2 : (j + 1) * F // 2])
                named[f"t{i}{j}"] = grid[i][j]
        o = nl.ndarray((F, P), x.dtype, buffer=nl.shared_hbm)
        for i in range(2):
            for j in range(2):
                pt = nl.transpose(named[f"t{i}{j}"])
                s = nl.ndarray((F // 2, P // 2), x.dtype)
                nisa.tensor_copy(s, pt)
                nisa.dma_copy(o[j * F // 2 : (j + 1) * F // 2, i * P // 2 : (i + 1) * P // 2], s)
        return o

    x = R(64, 100)
    np.testing.assert_array_equal(sim(k, x), x.T)


@pytest.mark.parametrize("p", [1, 2, 31, 32, 33, 64, 65, 96, 127, 128])
def test_every_partition_count(p):
    @nki.jit
    def k(x):
        t = nl.load(x)
        s = nl.sum(t, axis=1, keepdims=True)
        o = nl.ndarray((x.shape[0], 1), nl.float32, buffer=nl.shared_hbm)
        nl.store(o, s)
        return o

    x = R(p, 40)
    np.testing.assert_allclose(sim(k, x), x.sum(1, keepdims=True), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "abs",
        "square",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "sin",
        "cos",
        "tan",
        "arctan",
        "tanh",
        "ceil",
        "floor",
        "trunc",
        "negative",
        "sign",
        "relu",
        "sigmoid",
        "silu",
        "silu_dx",
        "gelu",
        "gelu_dx",
        "gelu_apprx_sigmoid",
        "gelu_apprx_sigmoid_dx",
        "gelu_apprx_tanh",
        "mish",
        "softplus",
        "erf",
        "erf_dx",
    ],
)
def test_nl_unary(name):
    from scipy import special

    x = (
        np.linspace(0.05, 1.4, 120).reshape(4, 30).astype(F32)
        if name in ("log", "sqrt", "rsqrt", "arctan", "tan")
        else np.linspace(-3, 3, 120).reshape(4, 30).astype(F32)
    )
    X = x.astype(np.float64)
    s = 1 / (1 + np.exp(-X))
    s2 = 1 / (1 + np.exp(-1.702 * X))
    phi = np.exp(-X * X / 2) / np.sqrt(2 * np.pi)
    Phi = 0.5 * (1 + special.erf(X / np.sqrt(2)))
    ref = {
        "abs": np.abs(X),
        "square": X * X,
        "negative": -X,
        "sign": np.sign(X),
        "relu": np.maximum(X, 0),
        "sigmoid": s,
        "silu": X * s,
        "silu_dx": s * (1 + X * (1 - s)),
        "gelu": X * Phi,
        "gelu_dx": Phi + X * phi,
        "gelu_apprx_sigmoid": X * s2,
        "gelu_apprx_sigmoid_dx": s2 + 1.702 * X * s2 * (1 - s2),
        "gelu_apprx_tanh": 0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))),
        "mish": X * np.tanh(np.log1p(np.exp(X))),
        "softplus": np.log1p(np.exp(X)),
        "erf": special.erf(X),
        "erf_dx": 2 / np.sqrt(np.pi) * np.exp(-X * X),
    }
    for f in ("exp", "log", "sqrt", "sin", "cos", "tan", "arctan", "tanh", "ceil", "floor", "trunc"):
        ref[f] = getattr(np, f)(X) if (f not in ("log", "sqrt") or (X > 0).all()) else X
    ref["rsqrt"] = 1 / np.sqrt(np.abs(X))
    ref["reciprocal"] = 1 / X

    @nki.jit
    def k(x):
        r = getattr(nl, name)(nl.load(x))
        o = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        nl.store(o, r)
        return o

    np.testing.assert_allclose(sim(k, x), ref[name], rtol=3e-6, atol=3e-7)


def clampmask(x, lens):
    B, S = x.shape
    t = nl.load(x)
    L = sb((B, 1))
    nisa.dma_copy(L, lens.reshape((B, 1)))
    it = sb((B, S))
    nisa.iota(it, [[1, S]], offset=0)
    m = sb((B, S), nl.uint8)
    nisa.tensor_scalar(m, it, nl.less, L)
    r = nl.full((B, S), -9.0, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy_predicated(dst=r, src=t, predicate=m)
    o = hbm((B, S))
    nl.store(o, r)
    w = nl.where(m, t, -9.0)
    o2 = hbm((B, S))
    nl.store(o2, w)
    return (o, o2)


def test_clamp():
    x = R(9, 12)
    l = np.arange(9).astype(np.int32)
    w = np.where(np.arange(12) < l[:, None], x, -9)
    a, b = sim(clampmask, x, l)
    near(a, w)
    near(b, w)


def ar(x):
    R, C = x.shape
    s = hbm((R, C))
    o = hbm((R, C))
    t = nl.load(x)
    nl.store(s, t)
    g = ncc.ReplicaGroup([[0, 1, 2, 3]])
    ncc.all_reduce(srcs=[s], dsts=[o], replica_group=g, op=nl.add)
    return o


def test_ar():
    from vibeserve.nki import simulate_ranks

    xs = [R(4, 8, seed=i) for i in range(4)]
    r = simulate_ranks(ar, ranks=4)([(x,) for x in xs])
    for a in r:
        near(a, sum(xs))


def nib(w, s):
    R, C = w.shape
    t = nl.load(w)
    lo, hi = (sb((R, C), nl.uint8), sb((R, C), nl.uint8))
    nisa.tensor_scalar(lo, t, nl.bitwise_and, 15)
    nisa.tensor_scalar(hi, t, nl.logical_shift_right if hasattr(nl, "logical_shift_right") else nl.right_shift, 4)
    r = sb((R, C, 2))
    ts = nl.load(s)
    for i, q in enumerate((lo, hi)):
        nisa.tensor_scalar(r[:, :, i], q, nl.subtract, 8.0, op1=nl.multiply, operand1=ts)
    o = hbm((R, 2 * C))
    nisa.dma_copy(o, r.reshape((R, 2 * C)))
    return o


def test_nib():
    w = np.random.default_rng(0).integers(0, 256, (20, 9)).astype(np.uint8)
    s = R(20, 1)
    v = np.stack([w & 15, w >> 4], -1).reshape(20, 18).astype(np.float32)
    near(sim(nib, w, s), (v - 8) * s)
