"""Routing, scans, convolutions and views in the styles of many authors, each against NumPy."""

# ruff: noqa: F841 (written as their authors write)

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from nkilib.core.utils.tensor_view import TensorView
from nkilib.core.utils.tiled_range import TiledRange
from tests.nki.foreign import BF16, F32, R, close, sim, softmax


# 10. topk router
@nki.jit
def topk_router(logits, k: int):
    T, E = logits.shape
    vals = nl.ndarray((T, k), dtype=nl.float32, buffer=nl.shared_hbm)
    idxs = nl.ndarray((T, k), dtype=nl.uint32, buffer=nl.shared_hbm)
    aff = nl.ndarray((T, E), dtype=nl.float32, buffer=nl.shared_hbm)
    for t in TiledRange(T, 128):
        lt = nl.ndarray((t.size, E), dtype=nl.float32)
        nisa.dma_copy(dst=lt, src=logits[t.start_offset : t.end_offset])
        probs = nl.softmax(lt, axis=-1)
        v8 = nl.ndarray((t.size, 8), dtype=nl.float32)
        i8 = nl.ndarray((t.size, 8), dtype=nl.uint32)
        nisa.max8(dst=v8, src=probs)
        nisa.nc_find_index8(dst=i8, data=probs, vals=v8)
        nisa.dma_copy(dst=vals[t.start_offset : t.end_offset], src=v8[:, 0:k])
        nisa.dma_copy(dst=idxs[t.start_offset : t.end_offset], src=i8[:, 0:k])
        it = nl.ndarray((t.size, E), dtype=nl.float32)
        nisa.iota(it, [[1, E]], 0, 0)
        fi = nl.ndarray((t.size, 8), dtype=nl.float32)
        nisa.tensor_copy(fi, i8)
        mask = nl.zeros((t.size, E), dtype=nl.float32)
        for j in range(k):
            oh = nl.ndarray((t.size, E), dtype=nl.float32)
            nisa.tensor_scalar(oh, it, nl.equal, fi[:, j : j + 1])
            nisa.tensor_tensor(mask, mask, oh, nl.add)
        nisa.tensor_tensor(mask, mask, probs, nl.multiply)
        nisa.dma_copy(dst=aff[t.start_offset : t.end_offset], src=mask)
    return vals, idxs, aff


@pytest.mark.parametrize(("T", "E", "k"), [(1, 8, 1), (130, 64, 4), (128, 512, 8)])
def test_topk(T, E, k):
    x = R(T, E)
    v, i, a = sim(topk_router, x, k)
    p = softmax(x)
    o = np.argsort(-p, 1, kind="stable")[:, :k]
    np.testing.assert_array_equal(i, o)
    close(v, np.take_along_axis(p, o, 1))
    w = np.zeros_like(p)
    np.put_along_axis(w, o, np.take_along_axis(p, o, 1), 1)
    close(a, w)


# 11. topk > 8 by match_replace
def test_top32():
    @nki.jit
    def k(x, n):
        P, F = x.shape
        cur = nl.load(x)
        out = nl.ndarray((P, n), nl.float32, buffer=nl.shared_hbm)
        oi = nl.ndarray((P, n), nl.uint32, buffer=nl.shared_hbm)
        for r in range(n // 8):
            v = nl.ndarray((P, 8), nl.float32)
            ix = nl.ndarray((P, 8), nl.uint32)
            nisa.max8(dst=v, src=cur)
            nxt = nl.ndarray((P, F), nl.float32)
            nisa.nc_match_replace8(dst=nxt, data=cur, vals=v, imm=-3.4e38, dst_idx=ix)
            nisa.dma_copy(dst=out[:, r * 8 : (r + 1) * 8], src=v)
            nisa.dma_copy(dst=oi[:, r * 8 : (r + 1) * 8], src=ix)
            cur = nxt
        return out, oi

    x = R(64, 300)
    v, i = sim(k, x, 32)
    o = np.argsort(-x, 1, kind="stable")[:, :32]
    np.testing.assert_array_equal(v, np.take_along_axis(x, o, 1))
    np.testing.assert_array_equal(i, o)


# 12. cumsum by scan with carry; decay scan
def test_scan_carry():
    @nki.jit
    def k(x, T: int):
        P, N = x.shape
        o = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        ones = nl.ones((P, T), dtype=nl.float32)
        carry = nl.zeros((P, 1), dtype=nl.float32)
        for s in range(0, N, T):
            w = min(T, N - s)
            t = nl.load(x[:, s : s + w])
            r = nl.ndarray((P, w), dtype=nl.float32)
            nisa.tensor_tensor_scan(dst=r, data0=ones[:, 0:w], data1=t, initial=carry, op0=nl.multiply, op1=nl.add)
            nisa.tensor_copy(dst=carry, src=r[:, w - 1 : w])
            c = nl.ndarray((P, w), x.dtype)
            nisa.tensor_copy(c, r)
            nl.store(o[:, s : s + w], c)
        return o

    for dt in (F32, BF16):
        x = R(70, 1000, dt=dt)
        close(sim(k, x, 256), np.cumsum(x.astype(np.float64), 1), 2e-5 if dt is F32 else 1e-2)


@pytest.mark.parametrize(
    ("op0", "op1"),
    [
        ("multiply", "add"),
        ("add", "maximum"),
        ("multiply", "subtract"),
        ("subtract", "add"),
        ("minimum", "add"),
        ("add", "multiply"),
    ],
)
@pytest.mark.parametrize("rev", [(False, False), (True, False), (False, True), (True, True)])
def test_scan_semantics(op0, op1, rev):
    a, b = R(4, 20, scale=0.5), R(4, 20, seed=5, scale=0.5)
    ini = R(4, 1)
    f = {"multiply": np.multiply, "add": np.add, "subtract": np.subtract, "maximum": np.maximum, "minimum": np.minimum}

    @nki.jit
    def k(a, b, i):
        d = nl.ndarray(a.shape, nl.float32)
        nisa.tensor_tensor_scan(
            d, nl.load(a), nl.load(b), nl.load(i), getattr(nl, op0), getattr(nl, op1), rev[0], rev[1]
        )
        o = nl.ndarray(a.shape, nl.float32, buffer=nl.shared_hbm)
        nl.store(o, d)
        return o

    s = ini[:, 0].astype(F32)
    w = []
    for j in range(20):
        t = f[op0](s, a[:, j]) if rev[0] else f[op0](a[:, j], s)
        s = f[op1](b[:, j], t) if rev[1] else f[op1](t, b[:, j])
        w.append(s)
    np.testing.assert_array_equal(sim(k, a, b, ini), np.stack(w, 1))


# 13. conv as shifted matmuls
def test_conv_taps():
    @nki.jit
    def k(x, w):  # x [C, L], w [K, C, O]
        C, L = x.shape
        K, _, O = w.shape
        xt = nl.zeros((C, L + K - 1), dtype=x.dtype)
        nisa.dma_copy(dst=xt[:, K // 2 : K // 2 + L], src=x)
        ps = nl.ndarray((O, L), nl.float32, nl.psum)
        for t in range(K):
            nisa.nc_matmul(ps, nl.load(w[t]), xt[:, t : t + L])
        o = nl.ndarray((O, L), nl.float32, buffer=nl.shared_hbm)
        s = nl.ndarray((O, L), nl.float32)
        nisa.activation(dst=s, op=nl.relu, data=ps)
        nl.store(o, s)
        return o

    x, w = R(40, 100), R(5, 40, 24)
    xp = np.pad(x, ((0, 0), (2, 2)))
    close(sim(k, x, w), np.maximum(sum(w[t].T @ xp[:, t : t + 100] for t in range(5)), 0))


# 14. avg pool via .ap 5-D and reshape
def test_pool_styles():
    @nki.jit
    def k(x, p: int):
        C, H, W = x.shape
        t = nl.load(x)
        v = t.ap(pattern=[[H * W, C], [p * W, H // p], [p, W // p], [W, p], [1, p]])
        s = nl.ndarray((C, H // p, W // p), nl.float32)
        nisa.tensor_reduce(dst=s, op=nl.add, data=v, axis=(3, 4))
        nisa.tensor_scalar(s, s, nl.multiply, 1.0 / (p * p))
        o = nl.ndarray(s.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(o, s)
        return o

    @nki.jit
    def k2(x, p: int):
        C, H, W = x.shape
        t = nl.load(x).reshape((C, H // p, p, W // p, p)).permute((0, 1, 3, 2, 4))
        s = nl.ndarray((C, H // p, W // p), nl.float32)
        nisa.tensor_reduce(dst=s, op=nl.maximum, data=t, axis=[3, 4])
        o = nl.ndarray(s.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(o, s)
        return o

    x = R(10, 8, 12)
    r = x.reshape(10, 4, 2, 6, 2)
    close(sim(k, x, 2), r.mean((2, 4)))
    close(sim(k2, x, 2), r.max((2, 4)))


# 15. TensorView chains
def test_tensor_view_chain():
    @nki.jit
    def k(x):
        _B, S, H = x.shape
        tv = (
            TensorView(x)
            .reshape_dim(2, (4, H // 4))
            .permute((0, 2, 1, 3))
            .select(0, 1)
            .slice(dim=1, start=1, end=S, step=2)
        )
        o = nl.ndarray(tv.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=o, src=tv.get_view())
        t = nl.ndarray((S, H), x.dtype)
        nisa.dma_copy(dst=t, src=TensorView(x).select(dim=0, index=0).get_view())
        tv2 = (
            TensorView(t)
            .reshape_dim(dim=1, shape=(4, -1))
            .permute([0, 2, 1])
            .flatten_dims(start_dim=1, end_dim=1)
            .expand_dim(1)
            .squeeze_dim(1)
        )
        c = nl.ndarray((S, H // 4, 4), x.dtype)
        nisa.tensor_copy(dst=c, src=tv2.get_view())
        assert tv2.is_sbuf()
        assert not tv2.has_dynamic_access()
        assert tv2.get_dim() == 3
        o2 = nl.ndarray(c.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(o2, c)
        return o, o2

    x = R(2, 6, 8)
    a, b = sim(k, x)
    np.testing.assert_array_equal(a, x.reshape(2, 6, 4, 2).transpose(0, 2, 1, 3)[1][:, 1::2])
    np.testing.assert_array_equal(b, x[0].reshape(6, 4, 2).transpose(0, 2, 1))


# 16. rearrange
def test_rearrange():
    @nki.jit
    def k(x):
        B, S, H = x.shape
        o = nl.ndarray((S, B, 2, H // 2), x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=o, src=x.rearrange(("b", "s", ("t", "h")), ("s", "b", "t", "h"), {"t": 2}))
        o2 = nl.ndarray((H, B * S), x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=o2, src=x.rearrange(("b", "s", "h"), ("h", ("b", "s"))))
        return o, o2

    x = R(3, 4, 6)
    a, b = sim(k, x)
    np.testing.assert_array_equal(a, x.reshape(3, 4, 2, 3).transpose(1, 0, 2, 3))
    np.testing.assert_array_equal(b, x.transpose(2, 0, 1).reshape(6, 12))


# 17. dtype packing / view
def test_bit_views():
    @nki.jit
    def k(x):
        t = nl.load(x)
        b = t.view(nl.uint8)
        h = t.reinterpret_cast(nl.uint16)
        o = nl.ndarray((x.shape[0], x.shape[1] * 4), nl.uint8, buffer=nl.shared_hbm)
        nisa.dma_copy(o, b)
        hi = nl.ndarray((x.shape[0], x.shape[1]), nl.bfloat16)
        nisa.tensor_copy(hi, t.view(nl.bfloat16)[:, 1::2])
        o2 = nl.ndarray(hi.shape, nl.bfloat16, buffer=nl.shared_hbm)
        nisa.dma_copy(o2, hi)
        i = nl.ndarray(x.shape, nl.uint32)
        nisa.tensor_scalar(
            dst=i, data=t.view(nl.uint32), op0=nl.right_shift, operand0=23, op1=nl.bitwise_and, operand1=0xFF
        )
        o3 = nl.ndarray(x.shape, nl.uint32, buffer=nl.shared_hbm)
        nisa.dma_copy(o3, i)
        return o, o2, o3

    x = R(5, 6) * 100
    a, b, c = sim(k, x)
    np.testing.assert_array_equal(a, x.view(np.uint8).reshape(5, 24))
    np.testing.assert_array_equal(b.view(np.uint16), x.view(np.uint16)[:, 1::2])
    np.testing.assert_array_equal(c, (x.view(np.uint32) >> 23) & 0xFF)
