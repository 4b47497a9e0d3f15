"""Allocators, views of the helper library, enums, recursion, state objects and schedules in the styles of other authors, each against NumPy."""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import inspect
import pickle
import typing
from dataclasses import dataclass, replace

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from nki.language import NKIObject
from nkilib.core.utils.allocator import SbufManager
from nkilib.core.utils.common_types import NormType
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.logging import get_logger
from nkilib.core.utils.tensor_view import TensorView
from nkilib.core.utils.tiled_range import TiledRange
from tests.nki.foreign import BF16, R, hbm, near, pm, sb, sim

P = nl.tile_size.pmax


f32 = nl.float32


log = get_logger("fresh")


def rms_alloc(x, g, eps=1e-06, norm=NormType.RMS_NORM):
    kernel_assert(norm == NormType.RMS_NORM, "only rms")
    T, H = x.shape
    out = hbm((T, H), x.dtype)
    sbm = SbufManager(0, 160 * 1024, log)
    sbm.open_scope(name="outer")
    gt = sbm.alloc_stack((P, H), dtype=g.dtype, buffer=nl.sbuf, name="g")
    nisa.dma_copy(gt, g.reshape((1, H)).broadcast(0, P))
    for tile in TiledRange(T, P):
        sbm.open_scope(interleave_degree=2, name=f"t{tile.index}")
        t = sbm.alloc_stack((P, H), dtype=f32, name=f"x{tile.index}")
        sq = sbm.alloc_stack((P, H), dtype=f32, name=f"s{tile.index}")
        r = sbm.alloc_stack((P, 1), dtype=f32, name=f"r{tile.index}")
        n = tile.size
        s = tile.start_offset
        nisa.dma_copy(t[:n], x[s : s + n])
        nisa.activation(
            sq[:n], nl.square, t[:n], reduce_op=nl.add, reduce_res=r[:n], reduce_cmd=nisa.reduce_cmd.reset_reduce
        )
        nisa.tensor_scalar(r[:n], r[:n], nl.multiply, 1.0 / H, op1=nl.add, operand1=eps)
        nisa.activation(r[:n], nl.rsqrt, r[:n])
        nisa.scalar_tensor_tensor(t[:n], t[:n], nl.multiply, r[:n], nl.multiply, gt[:n])
        nisa.dma_copy(out[s : s + n], t[:n])
        sbm.close_scope()
    sbm.close_scope()
    return out


@pytest.mark.parametrize("T", [1, 128, 300])
def test_rms(T):
    x, g = (R(T, 96), R(96, seed=1))
    near(sim(rms_alloc, x, g), x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-06) * g, 0.001)


def tv(x):
    _B, _S, H, _D = x.shape
    v = TensorView(x).permute((1, 0, 2, 3)).slice(2, 0, H, 2)
    t = sb(tuple(v.shape))
    nisa.dma_copy(t, v.get_view())
    o = hbm(t.shape)
    nisa.dma_copy(o, t)
    return o


def test_tv():
    x = R(2, 10, 4, 6)
    near(sim(tv, x), x.transpose(1, 0, 2, 3)[:, :, ::2])


class Mode(enum.StrEnum):
    A = "a"
    B = "b"


def tiles(n, t):
    i = 0
    while (m := min(t, n - i)) > 0:
        yield (i, m)
        i += m


def modes(x, *ws, mode=Mode.A):
    o = hbm(x.shape, x.dtype)
    for s, m in tiles(x.shape[0], P):
        acc = nl.load(x[s : s + m])
        for w in ws:
            tw = nl.load(w[s : s + m])
            kw = {"dst": acc, "data1": acc, "data2": tw}
            match mode:
                case Mode.A:
                    nisa.tensor_tensor(**kw, op=nl.add)
                case Mode.B:
                    nisa.tensor_tensor(**{**kw, "op": nl.multiply})
        nl.store(o[s : s + m], acc)
    return o


def modes_plain(x, a, b, mode=Mode.A):
    return modes(x, a, b, mode=mode)


@pytest.mark.parametrize("m", list(Mode))
def test_modes(m):
    x, a, b = (R(200, 5), R(200, 5, seed=1), R(200, 5, seed=2))
    near(sim(modes_plain, x, a, b, mode=m), x + a + b if m is Mode.A else x * a * b)


def tree(ts):
    if len(ts) == 1:
        return ts[0]
    h = len(ts) // 2
    a, b = (tree(ts[:h]), tree(ts[h:]))
    nisa.tensor_tensor(a, a, b, nl.add)
    return a


def treek(x):
    n = x.shape[0]
    r = tree([nl.load(x[i]) for i in range(n)])
    o = hbm(x.shape[1:])
    nl.store(o, r)
    return o


def test_tree():
    x = R(7, 4, 5)
    near(sim(treek, x), x.sum(0))


def moe(x, w, idx, aff):
    T, H = x.shape
    E, _, I = w.shape
    o = hbm((T, I))
    acc = nl.zeros((T, I), dtype=f32, buffer=nl.sbuf)
    pt = pm((H, T))
    t = nl.load(x)
    nisa.nc_transpose(pt, t)
    xT = nl.copy(pt)
    a = nl.load(aff)
    for e in range(E):
        p = pm((T, I))
        nisa.nc_matmul(p, xT, nl.load(w[e]))
        nisa.scalar_tensor_tensor(dst=acc, data=p, op0=nl.multiply, operand0=a[:, e : e + 1], op1=nl.add, operand1=acc)
    nl.store(o, acc)
    return o


def test_moe():
    x, w = (R(50, 40), R(3, 40, 60, seed=1))
    a = np.abs(R(50, 3, seed=2))
    near(sim(moe, x, w, np.zeros((50, 1), np.int32), a), np.einsum("th,ehi,te->ti", x, w, a), 0.001)


def order(x):
    t = sb(x.shape)
    a = nisa.dma_copy(t, x, name="ld")
    b = nisa.tensor_scalar(t, t, nl.multiply, 2.0, name="m")
    b.depends_on(a)
    o = hbm(x.shape)
    nisa.dma_copy(o, t, name="st").depends_on(a, b)
    return o


def test_order():
    x = R(5, 6)
    near(sim(order, x), 2 * x)


class K:
    scale = 3.0

    @staticmethod
    @nki.jit
    def st(x):
        return order(x)

    @nki.jit
    def me(self, x):
        o = hbm(x.shape)
        t = nl.load(x)
        nisa.tensor_scalar(t, t, nl.multiply, self.scale)
        nl.store(o, t)
        return o

    @classmethod
    def cm(cls, x):
        return nki.jit(functools.partial(_sc, scale=cls.scale))(x)


def _sc(x, scale):
    o = hbm(x.shape)
    t = nl.load(x)
    nisa.activation(t, nl.copy, t, scale=scale)
    nl.store(o, t)
    return o


def test_kinds():
    x = R(4, 5)
    near(K.st(x), 2 * x)
    near(K().me(x), 3 * x)
    near(K.cm(x), 3 * x)
    near(K.st[2](x), 2 * x)
    k = pickle.loads(pickle.dumps(nki.jit(_sc)))
    near(k(x, 2.0), 2 * x)
    near(copy.deepcopy(nki.jit(_sc))(x, scale=2.0), 2 * x)
    assert str(inspect.signature(K.me)).startswith("(self")
    assert typing.get_type_hints(K.st) is not None


def mx(a, b):
    K_, M = (a.shape[0], a.shape[1] // 4)
    N = b.shape[1] // 4
    qs = []
    for s in (a, b):
        t = nl.load(s)
        q = sb((K_, s.shape[1] // 4), nl.float8_e4m3fn_x4)
        sc = sb((K_, s.shape[1] // 4), nl.uint8)
        nisa.quantize_mx(q, t, sc)
        qs.append((q, sc))
    p = pm((M, N))
    nisa.nc_matmul_mx(p, qs[0][0], qs[1][0], qs[0][1], qs[1][1])
    o = hbm((M, N))
    nl.store(o, nl.copy(p))
    return o


def test_mx():
    a, b = (R(128, 256, dt=BF16), R(128, 512, seed=1, dt=BF16))
    w = np.einsum("kmq,knq->mn", a.astype(np.float32).reshape(128, 64, 4), b.astype(np.float32).reshape(128, 128, 4))
    assert np.abs(sim(mx, a, b, target="trn3") - w).max() < 0.06 * np.abs(w).max()


def petile(a, b):
    o = hbm((a.shape[1], b.shape[1]))
    ta, tb = (nl.load(a), nl.load(b))
    p = pm((a.shape[1], b.shape[1]))
    for r in range(4):
        nisa.nc_matmul(
            p, ta[32 * r : 32 * r + 32], tb[32 * r : 32 * r + 32], tile_position=(32 * r, 0), tile_size=(32, 128)
        )
    nl.store(o, nl.copy(p))
    return o


def test_petile():
    a, b = (R(128, 100), R(128, 60, seed=1))
    near(sim(petile, a, b), a.T @ b, 0.001)


def lncmm(aT, b):
    n, rank = (nl.num_programs(0), nl.program_id(0))
    K_, M = aT.shape
    N = b.shape[1]
    h = K_ // n
    sc = hbm((n, M, N), name="partial")
    o = hbm((M, N), name="o")
    p = pm((M, N))
    nisa.nc_matmul(p, nl.load(aT[rank * h : (rank + 1) * h]), nl.load(b[rank * h : (rank + 1) * h]))
    nl.store(sc[rank], nl.copy(p))
    nisa.core_barrier(sc, (0, 1))
    m = M // n
    a0, a1 = (nl.load(sc[0, rank * m : (rank + 1) * m]), nl.load(sc[1, rank * m : (rank + 1) * m]))
    nisa.tensor_tensor(a0, a0, a1, nl.add)
    nl.store(o[rank * m : (rank + 1) * m], a0)
    return o


def test_lncmm():
    a, b = (R(200, 64), R(200, 80, seed=1))
    near(sim(lncmm, a, b, lnc=2), a.T @ b, 0.001)


def scat(x, idx, n):
    T, H = x.shape
    o = hbm((n, H))
    zt = nl.zeros((P, H), dtype=f32, buffer=nl.sbuf)
    for s, m in tiles(n, P):
        nl.store(o[s : s + m], zt[:m])
    ix = nl.load(idx.reshape((T, 1)))
    nisa.dma_copy(o.ap(pattern=[[H, T], [1, H]], vector_offset=ix), nl.load(x))
    return o


def test_scat():
    x = R(20, 6)
    i = np.random.default_rng(0).permutation(50)[:20].astype(np.uint32)
    w = np.zeros((50, 6), np.float32)
    w[i] = x
    near(sim(scat, x, i, 50), w)


def sm3(x):
    B, S, C = x.shape
    o = hbm(x.shape, x.dtype)
    for b in range(B):
        t = sb((S, C))
        nisa.dma_copy(t, x[b])
        m = sb((S, 1))
        nisa.tensor_reduce(m, nl.maximum, t, axis=1, negate=True)
        s = sb((S, 1))
        e = sb((S, C))
        nisa.activation(
            dst=e,
            op=nl.exp,
            data=t,
            bias=m,
            scale=1.0,
            reduce_op=nl.add,
            reduce_res=s,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        nisa.reciprocal(s, s)
        r = sb((S, C), x.dtype)
        nisa.tensor_scalar(dst=r, data=e, op0=nl.multiply, operand0=s, engine=nisa.engine.vector)
        nisa.dma_copy(dst=o[b], src=r)
    return o


@pytest.mark.parametrize("t", ["trn1", "trn2", "trn3"])
def test_sm3(t, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", t)
    x = R(2, 60, 40, dt=np.float16)
    e = np.exp(x.astype(np.float32) - x.max(-1, keepdims=True))
    near(sim(sm3, x), e / e.sum(-1, keepdims=True), 0.002)


@contextlib.contextmanager
def scope(name):
    yield name


def ctx(x):
    with scope("a") as s, nl.no_reorder():
        t = nl.load(x)
        nisa.tensor_scalar(t, t, nl.add, len(s))
    o = hbm(x.shape)
    nl.store(o, t)
    return o


def test_ctx():
    x = R(3, 4)
    near(sim(ctx, x), x + 1)


@dataclass(frozen=True)
class St:
    m: object
    l: object
    n: int = 0


def runmax(x):
    R, C = x.shape
    t = nl.load(x)
    st = St(sb((R, 1)), sb((R, 1)))
    nisa.memset(st.m, -1e30)
    for c in range(0, C, 4):
        w = min(4, C - c)
        b = sb((R, 1))
        nisa.tensor_reduce(b, nl.maximum, t[:, c : c + w], axis=1)
        nm = sb((R, 1))
        nisa.tensor_tensor(nm, b, st.m, nl.maximum)
        st = replace(st, m=nm, n=st.n + 1)
    o = hbm((R, 1))
    nl.store(o, st.m)
    return (o, st.n)


def test_runmax():
    x = R(9, 13)
    a, n = sim(runmax, x)
    near(a, x.max(1, keepdims=True))
    assert n == 4


@dataclass
class Cache(NKIObject):
    k: object
    v: object
    pos: int = 0


@nki.jit
def upd(c: Cache, nk, nv):
    n = nk.shape[0]
    nisa.dma_copy(c.k[c.pos : c.pos + n], nk)
    nisa.dma_copy(c.v[nl.ds(c.pos, n)], nv)
    return (c.k, c.v)


def test_cache():
    k, v = (np.zeros((10, 4), np.float32), np.zeros((10, 4), np.float32))
    a, b = upd(Cache(k, v, 3), R(2, 4), R(2, 4, seed=1))
    near(a[3:5], R(2, 4))
    near(b[3:5], R(2, 4, seed=1))
    assert a is k


def argmax(x):
    R, _C = x.shape
    t = nl.load(x)
    v = sb((R, 8))
    i = sb((R, 8), nl.uint32)
    nisa.max8(v, t)
    nisa.nc_find_index8(i, t, v)
    o = hbm((R, 1), nl.int32)
    r = sb((R, 1), nl.int32)
    nisa.tensor_copy(r, i[:, 0:1])
    nl.store(o, r)
    return o


def test_argmax():
    x = R(33, 50)
    np.testing.assert_array_equal(sim(argmax, x)[:, 0], x.argmax(1))


def lut(x, ix):
    o = hbm(ix.shape)
    t, i = (nl.load(x), nl.load(ix))
    r = sb(ix.shape)
    nisa.nc_n_gather(r, t, i)
    nl.store(o, r)
    return o


def test_lut():
    x = R(20, 16)
    i = np.random.default_rng(0).integers(0, 16, (20, 9)).astype(np.uint32)
    near(sim(lut, x, i), np.take_along_axis(x, i.astype(int), 1))


def tr32(x):
    R, C = x.shape
    t = nl.load(x)
    o = hbm((C, R))
    for c, m in tiles(C, P):
        for r, n in tiles(R, P):
            p = pm((m, n))
            nisa.nc_transpose(p, t[r : r + n, c : c + m])
            s = sb((m, n))
            nisa.tensor_copy(s, p, engine=nisa.engine.scalar)
            nl.store(o[c : c + m, r : r + n], s)
    return o


def test_tr32():
    x = R(100, 300)
    near(sim(tr32, x), x.T)
