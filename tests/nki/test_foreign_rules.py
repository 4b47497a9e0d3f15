"""Rules, generations, Python features and bad arrays as other authors come upon them."""

# ruff: noqa: B023, F401 (written as their authors write)

from __future__ import annotations

import enum
import math

import ml_dtypes
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from tests.nki.foreign_bodies import F32, R, body_ok, out_of

import vibeserve.nki.shim


def test_stride0_dump_and_inplace_alias():
    def k(x):
        P, H = x.shape
        t = nl.load(x)
        dump = nl.ndarray((P, 1), nl.float32)
        s = nl.ndarray((P, 1), nl.float32)
        nisa.activation(
            dst=dump.ap([[1, P], [0, H]]),
            op=nl.square,
            data=t,
            reduce_op=nl.add,
            reduce_res=s,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        nisa.activation(dst=t, op=nl.exp, data=t)
        nisa.tensor_tensor(dst=t, data1=t, data2=t, op=nl.add)
        u = nl.copy(t)
        nisa.tensor_copy(dst=u[:, 1:], src=u[:, :-1])
        return out_of(s), out_of(t), out_of(u)

    x = R(6, 9)
    s, t, u = body_ok(k, x)
    np.testing.assert_allclose(s[:, 0], (x * x).sum(1), rtol=1e-5)
    np.testing.assert_allclose(t, 2 * np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(u[:, 1:], t[:, :-1])


def test_partition_starts():
    for start in (0, 32, 64, 96):

        def k(x):
            t = nl.ndarray((128, 4), nl.float32)
            nisa.memset(t, 0.0)
            s = nl.load(x)
            nisa.tensor_copy(dst=t[start : start + 32], src=s)
            return out_of(t)

        x = R(32, 4)
        g = body_ok(k, x)
        assert (g[start : start + 32] == x).all()
        assert g.sum() == pytest.approx(x.sum(), rel=1e-4)
    for start, n in ((16, 16), (1, 1), (33, 4), (32, 64)):

        def k(x):
            t = nl.ndarray((128, 4), nl.float32)
            nisa.memset(dst=t[start : min(128, start + n)], value=0.0)

        with pytest.raises(AssertionError):
            nki.simulate(k, target="trn2")(R(1, 1))


def test_generation_gates():
    def rs(x):
        t = nl.load(x)
        b = nl.zeros((x.shape[0], 1), nl.float32)
        nisa.range_select(dst=t, on_true_tile=t, comp_op0=nl.greater, comp_op1=nl.less, bound0=b, bound1=b)

    with pytest.raises(AssertionError, match="trn"):
        nki.simulate(rs, target="trn1")(R(4, 8))
    nki.simulate(rs, target="trn2")(R(4, 8))

    def ex(x):
        t = nl.load(x)
        nisa.exponential(dst=t, src=t)

    for t in ("trn1", "trn2"):
        with pytest.raises(AssertionError):
            nki.simulate(ex, target=t)(R(4, 8))
    nki.simulate(ex, target="trn3")(R(4, 8))


def test_psum_rules():
    def two(x):
        p, q = nl.zeros((4, 4), nl.float32, buffer=nl.psum), nl.zeros((4, 4), nl.float32, buffer=nl.psum)
        s = nl.ndarray((4, 4), nl.float32)
        nisa.tensor_tensor(s, p, q, nl.add)

    with pytest.raises(AssertionError, match="PSUM"):
        nki.simulate(two)(R(1, 1))

    def dmasrc(x):
        p = nl.zeros((4, 4), nl.float32, buffer=nl.psum)
        nisa.dma_copy(dst=nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm), src=p)

    with pytest.raises(AssertionError):
        nki.simulate(dmasrc)(R(1, 1))

    def big(x):
        p = nl.ndarray((128, 1024), nl.float32, nl.psum)
        a = nl.load(x)
        nisa.nc_matmul(p, a, a)

    with pytest.raises(AssertionError):
        nki.simulate(big)(R(128, 128))


def test_math_on_ints_and_python_features():
    class Cfg(nl.NKIObject):
        def __init__(self, n, names=("a", "b")):
            self.n, self.names, self.tiles = n, names, []

        def alloc(self, shape, dt=nl.float32):
            t = nl.ndarray(shape, dtype=dt, buffer=nl.sbuf)
            self.tiles.append(t)
            return t

        def __call__(self, t):
            return nl.multiply(t, float(self.n))

        @property
        def half(self):
            return self.n // 2

    class Mode(enum.Enum):
        A = "a"

    def pick(mode):
        if mode == Mode.A:
            return nl.exp
        return nl.log

    def k(x, mode=Mode.A, cfg=None):
        c = cfg if cfg is not None else Cfg(4)
        q, r = divmod(x.shape[0], 3)
        P = max(1, min(128, x.shape[0]))
        name = f"t_{q}_{r}"
        t = c.alloc((P, x.shape[1]))
        nisa.dma_copy(dst=t, src=x)
        fns = [lambda u: nl.add(u, 1.0), c]
        for f in fns:
            t = f(t)
        act = pick(mode)
        u = nl.ndarray(t.shape, nl.float32, name=name)
        nisa.activation(dst=u, op=act, data=t, scale=0.1)
        i = 0
        while i < c.half:
            u = nl.add(u, 1.0)
            i += 1
        out = [out_of(z) for z in (t, u)]
        a, *rest = out
        assert math.ceil(math.sqrt(float(P))) >= 1
        assert isinstance(name, str)
        assert "t_" in name
        d = {"a": a, "b": rest[0]}
        x_, y_ = (d[n] for n in c.names)
        return x_, y_

    x = R(5, 4)
    a, b = body_ok(k, x)
    np.testing.assert_allclose(a, (x + 1) * 4, rtol=1e-6)
    np.testing.assert_allclose(b, np.exp(0.1 * a) + 2, rtol=1e-5)
    body_ok(k, x, Mode.A, Cfg(2))


def test_user_exceptions_and_asserts_pass():
    def k(x):
        assert x.shape[1] == 3, f"bad {x.shape}"

    with pytest.raises(AssertionError, match="bad"):
        nki.simulate(k)(R(2, 2))

    def k2(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        nki.simulate(k2)(R(2, 2))
    with pytest.raises(AssertionError):
        nki.jit(lambda x: x)()
    with pytest.raises(AssertionError):
        nki.jit(lambda x: x)(R(1, 1), R(1, 1))
    with pytest.raises(AssertionError):
        nki.jit(lambda x: x)([R(1, 1)])


@pytest.mark.parametrize(
    "f",
    [
        lambda: np.zeros((0, 4), F32),
        lambda: np.zeros((2, 2), object),
        lambda: np.zeros((2, 2), complex),
        lambda: np.zeros((2, 2), "U3"),
        lambda: np.zeros((2, 2), np.int64),
        lambda: np.zeros((2, 2), np.float64),
        lambda: np.zeros((2, 2), "M8[s]"),
    ],
)
def test_bad_arrays(f):
    with pytest.raises(AssertionError):
        nki.jit(lambda x: x)(f())


def test_precise_fp(monkeypatch):
    def k(x):
        t = nl.load(x)
        c = nl.ndarray(x.shape, nl.bfloat16)
        nisa.tensor_scalar(c, t, nl.multiply, 1.001)
        return out_of(nl.copy(c, dtype=nl.float32))

    x = R(4, 4)
    a = nki.simulate(k)(x)
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    b = nki.simulate(k)(x)
    np.testing.assert_allclose(b, x * F32(1.001), rtol=1e-6)
    assert np.abs(a - b).max() > 1e-5


def test_same_array_twice_and_views_of_it():
    def k(a, b):
        assert True
        t, u = nl.load(a), nl.load(b)
        nisa.tensor_tensor(t, t, u, nl.add)
        nisa.dma_copy(a, t)
        return a, b

    x = np.ones((2, 2), F32)
    r = nki.simulate(k)(x, x)
    assert (r[0] == 2).all()
    assert (r[1] == 2).all()
    assert (x == 2).all()


def test_repeat_calls_are_pure():
    def k(x, s=1.0):
        t = nl.load(x)
        nisa.tensor_scalar(t, t, nl.multiply, s)
        return out_of(t)

    sk = nki.simulate(k)
    x = R(3, 3)
    for s in (1.0, 2.0, 0.5):
        np.testing.assert_allclose(sk(x, s=s), x * F32(s), rtol=1e-6)


def test_gpsimd_engine_choices_do_not_change_results():
    x, y = R(16, 20), R(16, 20, seed=1)

    def k(x, y):
        outs = []
        for e in (nisa.engine.unknown, nisa.engine.vector, nisa.engine.gpsimd, nisa.vector_engine, nisa.gpsimd_engine):
            t = nl.ndarray(x.shape, nl.float32)
            nisa.tensor_tensor(dst=t, data1=nl.load(x), data2=nl.load(y), op=nl.multiply, engine=e)
            u = nl.ndarray(x.shape, nl.float32)
            nisa.tensor_copy(u, t, engine=nisa.engine.scalar)
            outs.append(out_of(u))
        return tuple(outs)

    for g in body_ok(k, x, y):
        np.testing.assert_array_equal(g, x * y)


def test_dge_modes_and_priority():
    def k(x):
        t = nl.ndarray(x.shape, x.dtype)
        u = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(dst=t, src=x, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync, name="l")
        nisa.dma_copy(dst=u, src=t, dge_mode=nisa.dge_mode.swdge)
        nisa.dma_copy(dst=u, src=t, dge_mode=nisa.dge_mode.none, oob_mode=nisa.oob_mode.error)
        return out_of(u)

    x = R(4, 4)
    np.testing.assert_array_equal(body_ok(k, x), x)

    def p(x):
        t = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(dst=t, src=x, priority=0)
        return out_of(t)

    with pytest.raises(AssertionError):
        nki.simulate(p, target="trn2")(x)
    np.testing.assert_array_equal(body_ok(p, x, target="trn3"), x)
