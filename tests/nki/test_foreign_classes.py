"""Kernels as classes, closures, dataclasses and factories, in the styles of other authors, each against NumPy."""

# ruff: noqa: B007, PLW, PT018, RUF059 (written as their authors write)

from __future__ import annotations

import enum
import functools
import inspect
import itertools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from nki.language import NKIObject
from tests.nki.foreign import BF16, R, near

P = 128


class Act(enum.Enum):
    SILU = 0
    GELU = "gelu"


@dataclass
class MlpCfg(NKIObject):
    hidden: int
    inter: int
    act: Act = Act.SILU
    eps: float | None = None
    tiles: tuple[int, ...] = (128, 512)

    def num_k(self):
        return (self.hidden + P - 1) // P

    @property
    def ktile(self):
        return min(P, self.hidden)


@dataclass
class Bufs(NKIObject):
    w: list[Any] = field(default_factory=list)

    def alloc(self, n, shape, dt, tag):
        for i in range(n):
            self.w.append(nl.ndarray(shape, dtype=dt, buffer=nl.sbuf, name=f"{tag}_{i}"))
        return self.w


def load_rows(dst, src, start, n):
    nisa.dma_copy(dst=dst[0:n, :], src=src[start : start + n, :])


@nki.jit
def mlp(x, wg, wu, wd, cfg: MlpCfg):
    S, H = x.shape
    I = wg.shape[1]
    out = nl.ndarray((S, H), dtype=x.dtype, buffer=nl.shared_hbm)
    nk = cfg.num_k()
    b = Bufs()
    xT = b.alloc(nk, (P, S), x.dtype, "xT")
    for k in nl.affine_range(nk):
        kk = min(P, H - k * P)
        nisa.dma_transpose(dst=xT[k][0:kk, :], src=x[:, k * P : k * P + kk])
    h = []
    for i0 in range(0, I, P):
        ii = min(P, I - i0)
        pg = nl.ndarray((P, S), dtype=nl.float32, buffer=nl.psum)
        pu = nl.ndarray((P, S), dtype=nl.float32, buffer=nl.psum)
        for k in range(nk):
            kk = min(P, H - k * P)
            tg = nl.ndarray((P, ii), dtype=wg.dtype, buffer=nl.sbuf)
            tu = nl.ndarray((P, ii), dtype=wu.dtype, buffer=nl.sbuf)
            load_rows(tg, wg[:, i0 : i0 + ii], k * P, kk)
            load_rows(tu, wu[:, i0 : i0 + ii], k * P, kk)
            nisa.nc_matmul(pg[0:ii, :], tg[0:kk, :], xT[k][0:kk, :])
            nisa.nc_matmul(pu[0:ii, :], tu[0:kk, :], xT[k][0:kk, :])
        g = nl.ndarray((P, S), dtype=nl.float32, buffer=nl.sbuf)
        op = nl.silu if cfg.act == Act.SILU else nl.gelu
        nisa.activation(dst=g[0:ii], op=op, data=pg[0:ii])
        hh = nl.ndarray((P, S), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=hh[0:ii], data1=g[0:ii], data2=pu[0:ii], op=nl.multiply)
        h.append((hh, ii, i0))
    for h0 in range(0, H, 512):
        hn = min(512, H - h0)
        po = nl.ndarray((S, hn), dtype=nl.float32, buffer=nl.psum)
        for hh, ii, i0 in h:
            tw = nl.ndarray((P, hn), dtype=wd.dtype, buffer=nl.sbuf)
            load_rows(tw, wd[:, h0 : h0 + hn], i0, ii)
            nisa.nc_matmul(dst=po, stationary=hh[0:ii], moving=tw[0:ii])
        so = nl.copy(po, dtype=x.dtype)
        nisa.dma_copy(dst=out[:, h0 : h0 + hn], src=so)
    return out


@pytest.mark.parametrize("act", [Act.SILU, Act.GELU])
@pytest.mark.parametrize(("S", "H", "I"), [(64, 256, 384), (33, 200, 130), (1, 64, 64)])
def test_mlp(act, S, H, I):
    from scipy import special

    x, wg, wu, wd = (R(S, H), R(H, I, seed=1) / 16, R(H, I, seed=2) / 16, R(I, H, seed=3) / 16)
    g = x @ wg
    a = g * special.expit(g) if act == Act.SILU else g * special.ndtr(g)
    near(mlp(x, wg, wu, wd, MlpCfg(H, I, act)), a * (x @ wu) @ wd, 0.001)


def trace(fn):

    @functools.wraps(fn)
    def w(*a, **k):
        return fn(*a, **k)

    return w


@functools.cache
def make_scale(factor, dtype):

    @nki.jit
    @trace
    def scaled(x, bias=0.0):
        o = nl.ndarray(x.shape, dtype=dtype or x.dtype, buffer=nl.shared_hbm)
        for i in range(math.ceil(x.shape[0] / P)):
            s = slice(i * P, min((i + 1) * P, x.shape[0]))
            t = nl.load(x[s])
            r = nl.ndarray(t.shape, dtype=o.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(r, t, nl.multiply, factor, op1=nl.add, operand1=bias)
            nl.store(o[s], r)
        return o

    return scaled


def test_make():
    x = R(300, 40)
    k = make_scale(2.0, None)
    assert make_scale(2.0, None) is k
    near(k(x), 2 * x)
    near(k(x, bias=1.0), 2 * x + 1)
    near(make_scale(3.0, nl.bfloat16)(x), 3 * x, 0.01)
    assert k.__name__ == "scaled"
    assert "bias" in inspect.signature(k).parameters
    assert "tensor_scalar" in inspect.getsource(k)


class RopeKernel:
    def __init__(self, theta=10000.0, interleaved=False):
        self.theta = theta
        self.inter = interleaved

    def _tables(self, S, d):
        inv = 1 / self.theta ** (np.arange(0, d, 2) / d)
        a = np.outer(np.arange(S), inv)
        return (np.cos(a).astype(np.float32), np.sin(a).astype(np.float32))

    def __call__(self, x):
        c, s = self._tables(*x.shape)
        return nki.jit(self._k)(x, c, s)

    def _k(self, x, c, s):
        S, d = x.shape
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tx, tc, ts = (nl.load(x), nl.load(c), nl.load(s))
        if self.inter:
            v = tx.reshape((S, d // 2, 2))
            a, b = (v[:, :, 0], v[:, :, 1])
        else:
            a, b = (tx[:, : d // 2], tx[:, d // 2 :])
        r = nl.ndarray((S, d), dtype=nl.float32, buffer=nl.sbuf)
        ra, rb = (
            (r.reshape((S, d // 2, 2))[:, :, 0], r.reshape((S, d // 2, 2))[:, :, 1])
            if self.inter
            else (r[:, : d // 2], r[:, d // 2 :])
        )
        t1 = nl.ndarray((S, d // 2), dtype=nl.float32, buffer=nl.sbuf)
        t2 = nl.ndarray((S, d // 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(t1, a, tc, op=nl.multiply)
        nisa.tensor_tensor(t2, b, ts, op=nl.multiply)
        nisa.tensor_tensor(ra, t1, t2, op=nl.subtract)
        nisa.tensor_tensor(t1, a, ts, op=nl.multiply)
        nisa.tensor_tensor(t2, b, tc, op=nl.multiply)
        nisa.tensor_tensor(rb, t1, t2, op=nl.add)
        nl.store(out, value=r)
        return out


@pytest.mark.parametrize("inter", [False, True])
def test_rope(inter):
    x = R(100, 64)
    k = RopeKernel(interleaved=inter)
    c, s = k._tables(100, 64)
    a, b = (x[:, 0::2], x[:, 1::2]) if inter else (x[:, :32], x[:, 32:])
    w = np.empty_like(x)
    if inter:
        w[:, 0::2], w[:, 1::2] = (a * c - b * s, a * s + b * c)
    else:
        w = np.concatenate([a * c - b * s, a * s + b * c], 1)
    near(k(x), w)


@nki.jit
def adam(params, grads, lr=0.1):
    outs = {}
    for name in params:
        p, g = (params[name], grads[name])
        o = nl.ndarray(p.shape, dtype=p.dtype, buffer=nl.shared_hbm, name="o_" + name)
        tp, tg = (nl.load(p), nl.load(g))
        nisa.scalar_tensor_tensor(dst=tp, data=tg, op0=nl.multiply, operand0=-lr, op1=nl.add, operand1=tp)
        nl.store(o, tp)
        outs[name] = o
    return outs


def test_dicts():
    p = {"w": R(4, 6), "b": R(1, 3, seed=4)}
    g = {"w": R(4, 6, seed=1), "b": R(1, 3, seed=2)}
    o = adam(p, g)
    for k, value in p.items():
        near(o[k], value - 0.1 * g[k])


class QKV(NamedTuple):
    q: Any
    k: Any
    v: Any


@nki.jit
def split_heads(qkv, nh):
    S, _ = qkv.shape
    d = qkv.shape[1] // (3 * nh)
    outs = []
    t = nl.load(qkv).reshape((S, 3, nh, d))
    for i in range(3):
        o = nl.ndarray((nh, S, d), dtype=qkv.dtype, buffer=nl.shared_hbm)
        for h in range(nh):
            nisa.dma_copy(dst=o[h], src=t[:, i, h, :])
        outs.append(o)
    return QKV(*outs)


def test_namedtuple():
    x = R(32, 3 * 4 * 8)
    r = split_heads(x, 4)
    assert isinstance(r, QKV)
    w = x.reshape(32, 3, 4, 8).transpose(1, 2, 0, 3)
    for a, b in zip(r, w, strict=False):
        near(a, b)


@nki.jit
def attn(q, k, v, causal=True):
    d, S = q.shape
    scale = 1 / math.sqrt(d)
    out = nl.ndarray((S, d), dtype=q.dtype, buffer=nl.shared_hbm)
    qs, ks = (nl.load(q), nl.load(k))
    n = S // P
    vs = [nl.load(v[i * P : (i + 1) * P]) for i in range(n)]

    def one(i):
        m = nl.full((P, 1), -3e38, dtype=nl.float32, buffer=nl.sbuf)
        l = nl.zeros((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        acc = nl.zeros((P, d), dtype=nl.float32, buffer=nl.sbuf)

        def step(j):
            ps = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(ps, qs[:, nl.ds(i * P, P)], ks[:, nl.ds(j * P, P)])
            s = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(s, nl.copy, ps, scale=scale)
            if causal and j == i:
                nisa.affine_select(
                    dst=s,
                    pattern=[[-1, P]],
                    channel_multiplier=1,
                    on_true_tile=s,
                    on_false_value=-1e30,
                    offset=0,
                    cmp_op=nl.greater_equal,
                )
            nm = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(nm, nl.maximum, s, axis=1)
            nisa.tensor_tensor(nm, nm, m, op=nl.maximum)
            neg = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(neg, nm, nl.multiply, -1.0)
            corr = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(corr, nl.exp, m, bias=neg)
            rs = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
            p = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(
                p, nl.exp, s, bias=neg, reduce_op=nl.add, reduce_res=rs, reduce_cmd=nisa.reduce_cmd.reset_reduce
            )
            nisa.scalar_tensor_tensor(l, l, nl.multiply, corr, nl.add, rs)
            pt = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(pt, p)
            pts = nl.copy(pt)
            po = nl.ndarray((P, d), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(po, pts, vs[j])
            nisa.scalar_tensor_tensor(acc, acc, nl.multiply, corr, nl.add, po)
            nisa.tensor_copy(m, nm)

        for j in range(i + 1 if causal else n):
            step(j)
        r = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(r, l)
        nisa.tensor_scalar(acc, acc, nl.multiply, r)
        nl.store(out[i * P : (i + 1) * P, :], acc)

    for i in range(n):
        one(i)
    return out


@pytest.mark.parametrize("causal", [0, 1])
def test_attn(causal):
    q, k, v = (R(64, 256), R(64, 256, seed=1), R(256, 64, seed=2))
    s = q.T @ k / 8
    if causal:
        s = np.where(np.tril(np.ones_like(s)), s, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    near(attn(q, k, v, bool(causal)), p @ v, 0.001)


TOL = {nl.float32: 1e-05, nl.bfloat16: 0.02, nl.float16: 0.001}


NPT = {np.dtype(nl.float32): "f", np.dtype(nl.bfloat16): "b"}


@nki.jit
def square_sum(x, acc_dtype=nl.float32):
    r, c = x.shape
    t = nl.load(x)
    sq = nl.ndarray((r, c), dtype=acc_dtype, buffer=nl.sbuf)
    s = nl.ndarray((r, 1), dtype=acc_dtype, buffer=nl.sbuf)
    nisa.activation_reduce(
        dst=sq,
        op=nl.square,
        data=t,
        reduce_op=nl.add,
        reduce_res=s,
        bias=nl.zeros((r, 1), dtype=nl.float32, buffer=nl.sbuf),
        scale=1.0,
    )
    o = nl.ndarray((r, 1), dtype=acc_dtype, buffer=nl.shared_hbm)
    nl.store(o, s)
    return o


@pytest.mark.parametrize("dt", [nl.float32, nl.bfloat16, nl.float16])
@pytest.mark.parametrize("tgt", ["trn1", "trn2", "trn3"])
def test_harness(dt, tgt, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", tgt)
    x = np.random.default_rng(0).random((64, 48)).astype(np.dtype(dt))
    assert x.dtype == dt
    o = square_sum(x, acc_dtype=nl.float32)
    near(o, (x.astype(np.float32) ** 2).sum(1, keepdims=True), TOL[dt] * 10)
    assert o.dtype == nl.float32
    assert np.dtype(nl.float32) in NPT
    assert nl.float32 in {np.dtype(np.float32): 1}
    o = square_sum(x.astype(np.float32), acc_dtype=np.float32)


def test_torch():
    torch = pytest.importorskip("torch")
    x = torch.linspace(-3, 3, 3000, dtype=torch.bfloat16).reshape(100, 30)
    y = make_scale(2.0, None)(x)
    assert isinstance(y, torch.Tensor)
    assert y.dtype == torch.bfloat16
    assert torch.allclose(y, x * 2)
    z = nki.simulate(make_scale(0.5, nl.float32))(x.float().t())
    assert torch.allclose(z, x.float().t() * 0.5)
    o = adam({"w": torch.ones(2, 3)}, {"w": torch.ones(2, 3)})
    assert torch.allclose(o["w"], torch.full((2, 3), 0.9))


@nki.jit
def sharded(x):
    n, i = (nl.num_programs(0), nl.program_id(axis=0))
    R = x.shape[0] // n
    o = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for r in nl.static_range(0, R, P):
        m = min(P, R - r)
        t = nl.ndarray((P, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t[:m], src=x[i * R + r : i * R + r + m])
        nisa.activation(dst=t[:m], op=nl.tanh, data=t[:m])
        nisa.dma_copy(dst=o[i * R + r : i * R + r + m], src=t[:m])
    return o


@pytest.mark.parametrize("g", [1, 2, (2,), (1, 2), (2, 1), [2], np.int64(2)])
def test_grid(g):
    x = R(300, 20)
    near(sharded[g](x), np.tanh(x))


def tile_sizes(n, t):
    return tuple((i, min(t, n - i)) for i in range(0, n, t))


@nki.jit(mode="trace")
def blocked(aT, b):
    K, M = aT.shape
    N = b.shape[1]
    c = nl.ndarray((M, N), dtype=aT.dtype, buffer=nl.shared_hbm)
    A = {
        (k0, m0): nl.load(aT[k0 : k0 + kn, m0 : m0 + mn])
        for k0, kn in tile_sizes(K, 128)
        for m0, mn in tile_sizes(M, 128)
    }
    B = [[nl.load(b[k0 : k0 + kn, n0 : n0 + nn]) for n0, nn in tile_sizes(N, 512)] for k0, kn in tile_sizes(K, 128)]
    ps = [
        [nl.zeros((mn, nn), dtype=nl.float32, buffer=nl.psum) for n0, nn in tile_sizes(N, 512)]
        for m0, mn in tile_sizes(M, 128)
    ]
    for (ki, (k0, kn)), (mi, (m0, mn)), (ni, (n0, nn)) in itertools.product(
        enumerate(tile_sizes(K, 128)), enumerate(tile_sizes(M, 128)), enumerate(tile_sizes(N, 512))
    ):
        nisa.nc_matmul(ps[mi][ni], A[k0, m0], B[ki][ni], accumulate=True)
    for mi, (m0, mn) in enumerate(tile_sizes(M, 128)):
        for ni, (n0, nn) in enumerate(tile_sizes(N, 512)):
            r = nl.ndarray(ps[mi][ni].shape, dtype=c.dtype, buffer=nl.sbuf)
            (nisa.tensor_copy if (mi + ni) % 2 else nisa.activation)(
                **{"dst": r, "src": ps[mi][ni]} if (mi + ni) % 2 else {"dst": r, "op": nl.copy, "data": ps[mi][ni]}
            )
            nisa.dma_copy(c[m0 : m0 + mn, n0 : n0 + nn], r)
    return c


@pytest.mark.parametrize("dt", [np.float32, BF16])
def test_blocked(dt):
    a, b = (R(200, 150, dt=dt), R(200, 600, seed=1, dt=dt))
    w = a.astype(np.float32).T @ b.astype(np.float32)
    near(blocked(a, b) / 20, w / 20, 0.02 if dt == BF16 else 0.0001)
