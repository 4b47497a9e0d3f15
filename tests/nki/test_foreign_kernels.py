"""Kernels in the styles of many authors, each against NumPy."""

# ruff: noqa: B007, F401, F841 (written as their authors write)

from __future__ import annotations

import math

import ml_dtypes
import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from nki.collectives import ReplicaGroup
from nki.isa.constants import oob_mode, reduce_cmd
from nkilib.core.utils.allocator import SbufManager
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info
from nkilib.core.utils.stream_shuffle_broadcast import stream_shuffle_broadcast
from nkilib.core.utils.tensor_view import TensorView
from nkilib.core.utils.tiled_range import TiledRange

import vibeserve.nki.shim

F32, BF16, F16 = np.float32, ml_dtypes.bfloat16, np.float16
TOL = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}


def R(*s, seed=0, dt=F32, scale=1.0):
    return (np.random.default_rng(seed + sum(s)).standard_normal(s) * scale).astype(dt)


def close(got, want, tol=None):
    g, w = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    assert g.shape == w.shape, (g.shape, w.shape)
    tol = TOL[str(np.asarray(got).dtype)] if tol is None else tol
    s = max(np.abs(w).max(), 1e-6)
    e = np.abs(g - w).max() / s
    assert e <= tol, e


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sim(k, *a, target="trn2", strict=True, **kw):
    s = nki.simulate(k, target=target, strict=strict)
    r = s(*a, **kw)
    return r


# 1. positional everywhere
@nki.jit
def softmax_positional(x):
    P, N = x.shape
    out = nl.ndarray((P, N), x.dtype, nl.shared_hbm)
    for i in range(math.ceil(P / 128)):
        r = min(128, P - i * 128)
        t = nl.ndarray((128, N), nl.float32, nl.sbuf)
        nisa.dma_copy(t[0:r], x[i * 128 : i * 128 + r])
        m = nl.ndarray((128, 1), nl.float32, nl.sbuf)
        nisa.tensor_reduce(m[0:r], nl.maximum, t[0:r], 1, True)
        s = nl.ndarray((128, 1), nl.float32, nl.sbuf)
        nisa.activation(t[0:r], nl.exp, t[0:r], m[0:r], 1.0, nl.add, s[0:r], nisa.reduce_cmd.reset_reduce)
        nisa.reciprocal(s[0:r], s[0:r])
        o = nl.ndarray((128, N), x.dtype, nl.sbuf)
        nisa.tensor_scalar(o[0:r], t[0:r], nl.multiply, s[0:r])
        nisa.dma_copy(out[i * 128 : i * 128 + r], o[0:r])
    return out


@pytest.mark.parametrize("dt", [F32, BF16, F16])
@pytest.mark.parametrize("shape", [(128, 512), (130, 77), (1, 1), (300, 1000)])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_softmax(dt, shape, target):
    x = R(*shape, dt=dt)
    close(sim(softmax_positional, x, target=target), softmax(x.astype(F32)))


# 2. activation_reduce style
@nki.jit
def rmsnorm_ar(x, g, eps=1e-6):
    B, H = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    gt = nl.ndarray((1, H), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=gt, src=g.reshape((1, H)))
    gb = nl.ndarray((nl.tile_size.pmax, H), dtype=nl.float32, buffer=nl.sbuf)
    stream_shuffle_broadcast(gt, gb)
    for tile in TiledRange(B, 128):
        xt = nl.ndarray((tile.size, H), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=xt, src=x[tile.start_offset : tile.end_offset, :])
        sq = nl.ndarray((tile.size, H), dtype=nl.float32, buffer=nl.sbuf)
        ss = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=sq, op=nl.square, data=xt, reduce_op=nl.add, reduce_res=ss)
        ep = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=ep, value=eps)
        rs = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=rs, op=nl.rsqrt, data=ss, scale=1.0 / H, bias=ep)
        ot = nl.ndarray((tile.size, H), dtype=x.dtype, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=ot, data=xt, op0=nl.multiply, operand0=rs, op1=nl.multiply, operand1=gb[0 : tile.size]
        )
        nisa.dma_copy(dst=out[tile.start_offset : tile.end_offset, :], src=ot)
    return out


@pytest.mark.parametrize("dt", [F32, BF16])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_rmsnorm(dt, target):
    x, g = R(200, 384, dt=dt), R(384)
    xf = x.astype(F32)
    close(sim(rmsnorm_ar, x, g, target=target), xf / np.sqrt((xf**2).mean(1, keepdims=True) + 1e-6) * g)


# 3. layernorm by bn
@nki.jit
def layernorm_bn(x, gamma, beta, eps):
    B, H = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    FM = nl.tile_size.bn_stats_fmax
    n = div_ceil(H, FM)
    gb = nl.ndarray((128, H), dtype=nl.float32, buffer=nl.sbuf)
    bb = nl.ndarray((128, H), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=gb, src=gamma.reshape((1, H)).broadcast(0, 128))
    nisa.dma_copy(dst=bb, src=beta.ap(pattern=[[0, 128], [1, H]]))
    for i in range(div_ceil(B, 128)):
        p = min(128, B - i * 128)
        t = nl.ndarray((p, H), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128 : i * 128 + p, :])
        st = nl.ndarray((p, n, 6), dtype=nl.float32, buffer=nl.sbuf)
        for j in range(n):
            w = min(FM, H - j * FM)
            nisa.bn_stats(dst=st[:, j, :], data=t[:, j * FM : j * FM + w])
        mv = nl.ndarray((p, 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.bn_aggr(dst=mv, data=st)
        r = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=r, data=mv[:, 1:2], op0=nl.add, operand0=eps)
        nisa.activation(dst=r, op=nl.rsqrt, data=r)
        nisa.tensor_scalar(dst=t, data=t, op0=nl.subtract, operand0=mv[:, 0:1], op1=nl.multiply, operand1=r)
        nisa.tensor_tensor(dst=t, data1=t, data2=gb[0:p], op=nl.multiply)
        o = nl.ndarray((p, H), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=o, data1=t, data2=bb[0:p], op=nl.add)
        nisa.dma_copy(dst=out[i * 128 : i * 128 + p, :], src=o)
    return out


@pytest.mark.parametrize("h", [512, 700, 1025, 3])
def test_layernorm(h):
    x, g, b = R(150, h), R(h, seed=1), R(h, seed=2)
    close(
        sim(layernorm_bn, x, g, b, 1e-5),
        (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * g + b,
        1e-4,
    )


# 4. matmul styles
@nki.jit
def mm_list_of_tiles(lhsT, rhs):
    K, M = lhsT.shape
    K2, N = rhs.shape
    assert K == K2, f"{K} != {K2}"
    TK, TM, TN = nl.tile_size.pmax, nl.tile_size.gemm_stationary_fmax, nl.tile_size.gemm_moving_fmax
    out = nl.ndarray((M, N), dtype=lhsT.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(div_ceil(M, TM)):
        ms = min(TM, M - m * TM)
        lt = []
        for k in nl.affine_range(div_ceil(K, TK)):
            ks = min(TK, K - k * TK)
            t = nl.ndarray((TK, TM), dtype=lhsT.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t[0:ks, 0:ms], src=lhsT[nl.ds(k * TK, ks), nl.ds(m * TM, ms)])
            lt.append(t)
        for n in nl.affine_range(div_ceil(N, TN)):
            ns = min(TN, N - n * TN)
            ps = nl.ndarray((TM, TN), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(div_ceil(K, TK)):
                ks = min(TK, K - k * TK)
                rt = nl.ndarray((TK, TN), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=rt[0:ks, 0:ns], src=rhs[nl.ds(k * TK, ks), nl.ds(n * TN, ns)])
                nisa.nc_matmul(dst=ps[0:ms, 0:ns], stationary=lt[k][0:ks, 0:ms], moving=rt[0:ks, 0:ns])
            sb = nl.ndarray((TM, TN), dtype=lhsT.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=sb[0:ms, 0:ns], src=ps[0:ms, 0:ns])
            nisa.dma_copy(dst=out[nl.ds(m * TM, ms), nl.ds(n * TN, ns)], src=sb[0:ms, 0:ns])
    return out


@pytest.mark.parametrize("dt", [F32, BF16, F16])
@pytest.mark.parametrize("mkn", [(128, 128, 512), (130, 300, 513), (5, 1, 7)])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_mm(dt, mkn, target):
    m, k, n = mkn
    a, b = R(k, m, dt=dt), R(k, n, dt=dt)
    close(sim(mm_list_of_tiles, a, b, target=target), a.astype(F32).T @ b.astype(F32))


# 5. accumulate flag on zeros psum, and (k>0)
@pytest.mark.parametrize("style", ["true_zeros", "kgt0", "none"])
def test_mm_accumulate_styles(style):
    @nki.jit
    def k(aT, b):
        K, M = aT.shape
        N = b.shape[1]
        ps = (
            nl.zeros((M, N), dtype=nl.float32, buffer=nl.psum)
            if style == "true_zeros"
            else nl.ndarray((M, N), dtype=nl.float32, buffer=nl.psum)
        )
        for i in range(K // 64):
            l, r = nl.load(aT[i * 64 : (i + 1) * 64]), nl.load(b[i * 64 : (i + 1) * 64])
            acc = True if style == "true_zeros" else (i > 0 if style == "kgt0" else None)
            nisa.nc_matmul(dst=ps, stationary=l, moving=r, accumulate=acc)
        o = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(o, nl.copy(ps, dtype=nl.float32))
        return o

    a, b = R(256, 96), R(256, 200)
    close(sim(k, a, b, strict=style != "true_zeros"), a.T @ b)


# 6. rotating psum banks with addresses, SbufManager
@nki.jit
def banks(x, w):
    K, M = x.shape
    N = w.shape[1]
    sbm = SbufManager(0, nl.tile_size.total_available_sbuf_size)
    sbm.open_scope(name="outer")
    xt = sbm.alloc_stack((K, M), dtype=x.dtype, buffer=nl.sbuf, name="x")
    nisa.dma_copy(dst=xt, src=x)
    out = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.shared_hbm)
    sbm.open_scope(interleave_degree=2)
    for i in range(div_ceil(N, 512)):
        n = min(512, N - i * 512)
        wt = sbm.alloc_stack((K, n), dtype=w.dtype)
        nisa.dma_copy(dst=wt, src=w[:, i * 512 : i * 512 + n])
        ps = nl.ndarray((M, n), dtype=nl.float32, buffer=nl.psum, address=(0, (i % 8) * 2048))
        nisa.nc_matmul(dst=ps, stationary=xt, moving=wt)
        ot = sbm.alloc_stack((M, n), dtype=nl.float32)
        nisa.tensor_copy(dst=ot, src=ps, engine=nisa.engine.scalar)
        nisa.dma_copy(dst=out[:, nl.ds(i * 512, n)], src=ot)
        sbm.increment_section()
    sbm.close_scope()
    sbm.close_scope()
    return out


def test_banks():
    x, w = R(128, 64), R(128, 5000)
    close(sim(banks, x, w), x.T @ w)


# 7. causal attention, GQA, running max
@nki.jit
def flash(q, k, v, scale=None, causal=True, group=1):
    H, D, S = q.shape
    scale = scale if scale is not None else 1.0 / math.sqrt(D)
    out = nl.ndarray((H, S, D), dtype=q.dtype, buffer=nl.shared_hbm)
    T = 128
    idn = nl.shared_identity_matrix(128, dtype=nl.bfloat16)
    for h in range(H):
        for qi in range(div_ceil(S, T)):
            qs = min(T, S - qi * T)
            qt = nl.load(q[h, :, qi * T : qi * T + qs])
            m = nl.full((qs, 1), -3e38, dtype=nl.float32)
            l = nl.zeros((qs, 1), dtype=nl.float32)
            acc = nl.zeros((qs, D), dtype=nl.float32)
            for ki in range(div_ceil(S, T)):
                if causal and ki > qi:
                    break
                ks = min(T, S - ki * T)
                kt = nl.load(k[h // group, :, ki * T : ki * T + ks])
                sp = nl.ndarray((qs, ks), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=sp, stationary=qt, moving=kt)
                s = nl.ndarray((qs, ks), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(dst=s, data=sp, op0=nl.multiply, operand0=scale)
                if causal and ki == qi:
                    nisa.affine_select(
                        dst=s,
                        pattern=[[-1, ks]],
                        channel_multiplier=1,
                        on_true_tile=s,
                        on_false_value=-3e38,
                        cmp_op=nl.greater_equal,
                        offset=0,
                    )
                mx = nl.ndarray((qs, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_reduce(dst=mx, op=nl.maximum, data=s, axis=(1,), keepdims=True)
                mn = nl.maximum(m, mx)
                neg = nl.negative(mn)
                p = nl.ndarray((qs, ks), dtype=nl.bfloat16, buffer=nl.sbuf)
                ps = nl.ndarray((qs, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.activation(
                    dst=p,
                    op=nl.exp,
                    data=s,
                    bias=neg,
                    reduce_op=nl.add,
                    reduce_res=ps,
                    reduce_cmd=nisa.reduce_cmd.reset_reduce,
                )
                corr = nl.exp(nl.subtract(m, mn))
                l = nl.add(nl.multiply(l, corr), ps)
                nisa.tensor_scalar(dst=acc, data=acc, op0=nl.multiply, operand0=corr)
                pt = nl.ndarray((ks, qs), dtype=nl.bfloat16, buffer=nl.psum)
                nisa.nc_transpose(dst=pt, data=p)
                ptb = nl.ndarray((ks, qs), dtype=nl.bfloat16, buffer=nl.sbuf)
                nisa.tensor_copy(dst=ptb, src=pt)
                vt = nl.load(v[h // group, ki * T : ki * T + ks, :], dtype=nl.bfloat16)
                op = nl.ndarray((qs, D), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=op, stationary=ptb, moving=vt)
                nisa.tensor_tensor(dst=acc, data1=acc, data2=op, op=nl.add)
                m = mn
            o = nl.ndarray((qs, D), dtype=q.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=o, data=acc, op0=nl.multiply, operand0=nl.reciprocal(l))
            nl.store(out[h, qi * T : qi * T + qs, :], value=o)
    return out


@pytest.mark.parametrize(("S", "D", "H", "G"), [(128, 64, 1, 1), (200, 32, 4, 2), (300, 128, 2, 2)])
@pytest.mark.parametrize("causal", [True, False])
def test_flash(S, D, H, G, causal):
    q, k, v = R(H, D, S), R(H // G, D, S, seed=1), R(H // G, S, D, seed=2)
    got = sim(flash, q, k, v, causal=causal, group=G)
    want = []
    for h in range(H):
        s = q[h].T @ k[h // G] / math.sqrt(D)
        if causal:
            s = np.where(np.tril(np.ones((S, S), bool)), s, -np.inf)
        want.append(softmax(s) @ v[h // G])
    close(got, np.stack(want), 1e-2)


# 8. embedding gather / scatter add / oob skip
@nki.jit
def embed(table, ids):
    _V, D = table.shape
    N = ids.shape[0]
    out = nl.ndarray((N, D), dtype=table.dtype, buffer=nl.shared_hbm)
    for i in range(div_ceil(N, 128)):
        n = min(128, N - i * 128)
        idt = nl.ndarray((n, 1), dtype=ids.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=idt, src=ids[i * 128 : i * 128 + n].reshape((n, 1)))
        rows = nl.zeros((n, D), dtype=table.dtype)
        nisa.dma_copy(
            dst=rows,
            src=table.ap(pattern=[[D, n], [1, D]], offset=0, vector_offset=idt, indirect_dim=0),
            oob_mode=oob_mode.skip,
        )
        nisa.dma_copy(dst=out[i * 128 : i * 128 + n], src=rows)
    return out


@pytest.mark.parametrize("it", [np.int32, np.uint32])
@pytest.mark.parametrize("dt", [F32, BF16, np.int8])
def test_embed(it, dt):
    t = (R(50, 24) * 10).astype(dt)
    ids = np.random.default_rng(0).integers(0, 50, 200).astype(it)
    if it is np.int32:
        ids[5] = -1
    ids[7] = 50
    want = np.where(((ids >= 0) & (ids < 50))[:, None], t[np.clip(ids.astype(np.int64), 0, 49)], np.zeros((), dt))
    np.testing.assert_array_equal(sim(embed, t, ids), want)


def test_vector_select_style():
    @nki.jit
    def k(table, ids):
        idt = nl.load(ids)
        o = nl.ndarray((ids.shape[0], table.shape[1]), table.dtype, nl.shared_hbm)
        t = nl.ndarray((ids.shape[0], table.shape[1]), table.dtype)
        nisa.dma_copy(dst=t, src=table.vector_select(0, idt))
        nisa.dma_copy(dst=o, src=t)
        return o

    t, ids = R(30, 8), np.random.default_rng(0).integers(0, 30, (20, 1)).astype(np.int32)
    np.testing.assert_array_equal(sim(k, t, ids), t[ids[:, 0]])


def test_scatter_rows_and_rmw():
    @nki.jit
    def k(dst, src, idx):
        s, i = nl.load(src), nl.load(idx)
        P, D = src.shape
        v = dst.ap(pattern=[[D, P], [1, D]], vector_offset=i)
        nisa.dma_compute(dst=v, srcs=[s, v], reduce_op=nl.add, scales=[1.0, 1.0], unique_indices=True)
        return dst

    d, s = R(40, 8), R(16, 8, seed=3)
    idx = np.random.default_rng(1).permutation(40)[:16].astype(np.int32).reshape(16, 1)
    want = d.copy()
    want[idx[:, 0]] += s
    np.testing.assert_allclose(sim(k, d.copy(), s, idx), want, rtol=1e-6)


# 9. scalar_offset from tile & register
def test_dynamic_offsets():
    @nki.jit
    def k(cache, row, pos):
        p = nl.load(pos)
        r = nl.load(row)
        reg = nisa.register_alloc()
        nisa.register_load(reg, p)
        nisa.dma_copy(
            dst=cache.ap(pattern=[[cache.shape[1], 1], [1, cache.shape[1]]], scalar_offset=p, indirect_dim=0), src=r
        )
        t = nl.ndarray((1, cache.shape[1]), cache.dtype)
        nisa.dma_copy(dst=t, src=cache.select(0, reg).expand_dim(0))
        nisa.tensor_scalar(t, t, nl.multiply, 2.0)
        nisa.dma_copy(dst=cache[nl.ds(reg, 1), :], src=t)
        return cache

    c, r = R(20, 6), R(1, 6)
    want = c.copy()
    want[13] = 2 * r[0]
    np.testing.assert_array_equal(sim(k, c.copy(), r, np.array([[13]], np.int32)), want)


def test_fori_and_while():
    @nki.jit
    def k(x, n):
        t = nl.load(x)
        reg = nisa.register_alloc()
        nisa.register_load(reg, nl.load(n))

        def body(i):
            nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)

        nl.fori_loop(0, reg, body)
        cnt = nl.load(n)
        r2 = nisa.register_alloc()
        nisa.register_load(r2, cnt)

        def wb(r):
            nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=10.0)
            nisa.tensor_scalar(dst=cnt, data=cnt, op0=nl.subtract, operand0=1)
            nxt = nisa.register_alloc()
            nisa.register_load(nxt, cnt)
            return nxt

        nl.while_loop(r2, wb)
        o = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(o, t)
        return o

    x = R(3, 4)
    np.testing.assert_allclose(sim(k, x, np.array([[5]], np.int32)), x + 55, rtol=1e-5)
    np.testing.assert_allclose(sim(k, x, np.array([[0]], np.int32)), x, rtol=1e-5)


def test_dynamic_range_old_while():
    @nki.jit
    def k(x, n):
        t = nl.load(x)
        nt_ = nl.load(n)
        reg = nisa.register_alloc()
        nisa.register_load(reg, nt_)
        for i in nl.dynamic_range(0, reg, 1):
            nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
        c = nisa.register_alloc()
        nisa.register_load(c, nt_)
        while c:
            nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=10.0)
            nisa.tensor_scalar(dst=nt_, data=nt_, op0=nl.subtract, operand0=1)
            nisa.register_load(c, nt_)
        o = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(o, t)
        return o

    x = R(3, 4)
    np.testing.assert_allclose(sim(k, x, np.array([[3]], np.int32)), x + 33, rtol=1e-5)


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


# 18. transposes
@pytest.mark.parametrize("dt", [F32, BF16, F16])
@pytest.mark.parametrize("eng", ["tensor", "vector", "dma", "matmul", "nl"])
def test_transposes(dt, eng):
    @nki.jit
    def k(x):
        P, F = x.shape
        o = nl.ndarray((F, P), x.dtype, buffer=nl.shared_hbm)
        d = nl.ndarray((F, P), x.dtype)
        if eng == "dma":
            nisa.dma_transpose(dst=d, src=x)
        else:
            t = nl.load(x)
            if eng == "vector":
                nisa.nc_transpose(dst=d, data=t, engine=nisa.engine.vector)
            elif eng == "nl":
                nisa.tensor_copy(d, nl.transpose(t))
            else:
                p = nl.ndarray((F, P), x.dtype, nl.psum)
                if eng == "tensor":
                    nisa.nc_transpose(p, t)
                else:
                    idn = nl.shared_identity_matrix(P, dtype=x.dtype)
                    nisa.nc_matmul(dst=p, stationary=t, moving=idn, is_moving_onezero=True, is_transpose=True)
                nisa.tensor_copy(d, p)
        nl.store(o, d)
        return o

    x = R(32, 32, dt=dt) if eng == "vector" else R(128, 64, dt=dt)
    if eng not in {"vector", "dma"}:
        x[0, 0] = np.inf
    np.testing.assert_array_equal(sim(k, x), x.T)


# 19. partitions: broadcasts
def test_partition_broadcast_styles():
    @nki.jit
    def k(v, x):
        N = v.shape[0]
        a = nl.ndarray((128, N), nl.float32)
        nisa.dma_copy(a, v.reshape((1, N)).broadcast(0, 128))
        b = nl.ndarray((128, N), nl.float32)
        nisa.dma_copy(b, v.ap([[0, 128], [1, N]]))
        r = nl.ndarray((1, N), nl.float32)
        nisa.dma_copy(r, v)
        ones = nl.ones((1, 128), dtype=nl.float32)
        ps = nl.ndarray((128, N), nl.float32, nl.psum)
        nisa.nc_matmul(ps, ones, r)
        c = nl.ndarray((128, N), nl.float32)
        nisa.tensor_copy(c, ps)
        d = nl.broadcast_to(r, (128, N))
        e = nl.ndarray((128, N), nl.float32)
        for q in range(4):
            nisa.nc_stream_shuffle(src=r, dst=e[q * 32 : (q + 1) * 32], shuffle_mask=[0] * 32)
        tot = nl.ndarray((128, N), nl.float32)
        nisa.tensor_tensor(tot, a, b, nl.add)
        for q in (c, d, e):
            nisa.tensor_tensor(tot, tot, q, nl.add)
        o = nl.ndarray((128, N), nl.float32, buffer=nl.shared_hbm)
        nl.store(o, tot)
        return o

    v = R(100)
    np.testing.assert_allclose(sim(k, v, v), np.broadcast_to(5 * v, (128, 100)), rtol=1e-6)


# 20. LNC2
def test_lnc2_sendrecv_allreduce():
    @nki.jit
    def k(x, w):
        _ndim, n, me = get_verified_program_sharding_info("k", (0, 1), 2)
        K, M = x.shape
        N = w.shape[1]
        kk = K // n
        xt = nl.load(x[nl.ds(me * kk, kk)])
        wt = nl.load(w[nl.ds(me * kk, kk)])
        ps = nl.ndarray((M, N), nl.float32, nl.psum)
        nisa.nc_matmul(ps, xt, wt)
        mine = nl.ndarray((M, N), nl.float32)
        nisa.tensor_copy(mine, ps)
        o = nl.ndarray((M, N), nl.float32, buffer=nl.shared_hbm, name="out")
        if n > 1:
            other = nl.ndarray((M, N), nl.float32)
            nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
            nisa.tensor_tensor(mine, mine, other, nl.add)
            h = M // 2
            lo = me * h
            nisa.dma_copy(dst=o[lo : lo + h], src=mine[lo : lo + h])
            nisa.core_barrier(o, (0, 1))
        else:
            nisa.dma_copy(dst=o, src=mine)
        return o

    x, w = R(128, 64), R(128, 100)
    for t in ("trn2", "trn3"):
        close(sim(k, x, w, target=t), x.T @ w)
        close(sim(k[2], x, w, target=t), x.T @ w)


def test_lnc2_shared_scratch():
    @nki.jit
    def k(x):
        n, me = nl.num_programs(axes=0), nl.program_id(axis=0)
        P, F = x.shape
        scratch = nl.ndarray((2, P, F), nl.float32, buffer=nl.shared_hbm)
        t = nl.load(x)
        nisa.tensor_scalar(t, t, nl.multiply, float(me + 1))
        nisa.dma_copy(scratch[me], t)
        nisa.core_barrier(scratch, cores=(0, 1))
        u = nl.load(scratch[1 - me])
        o = nl.ndarray((2, P, F), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(o[me], u)
        return o

    x = R(4, 5)
    np.testing.assert_array_equal(sim(k[2], x), np.stack([2 * x, x]))


# 21. collectives
def test_collectives():
    def ar(x):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
        nisa.dma_copy(src, x)
        dst = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        ncc.all_reduce(srcs=[src], dsts=[dst], replica_group=ReplicaGroup([[0, 1, 2, 3]]), op=nl.add)
        return dst

    xs = [R(4, 6, seed=i) for i in range(4)]
    for r in nki_ranks(ar, xs):
        close(r, sum(xs))


def nki_ranks(k, xs, **kw):
    from vibeserve.nki import simulate_ranks

    return simulate_ranks(k, ranks=len(xs), **kw)([(x,) for x in xs])


# 22. AdamW in-place
def test_adamw_inplace():
    @nki.jit
    def k(p, g, m, v, lr, b1, b2, eps, wd, step):
        pt, gt, mt, vt = nl.load(p), nl.load(g), nl.load(m), nl.load(v)
        nisa.tensor_scalar(mt, mt, nl.multiply, b1)
        nisa.scalar_tensor_tensor(dst=mt, data=gt, op0=nl.multiply, operand0=1 - b1, op1=nl.add, operand1=mt)
        g2 = nl.square(gt)
        nisa.tensor_scalar(vt, vt, nl.multiply, b2)
        nisa.scalar_tensor_tensor(vt, g2, nl.multiply, 1 - b2, nl.add, vt)
        den = nl.sqrt(nl.multiply(vt, 1.0 / (1 - b2**step)))
        den = nl.reciprocal(nl.add(den, eps))
        upd = nl.multiply(nl.multiply(mt, lr / (1 - b1**step)), den)
        nisa.tensor_scalar(pt, pt, nl.multiply, 1 - lr * wd)
        nisa.tensor_tensor(pt, pt, upd, nl.subtract)
        nl.store(p, pt)
        nl.store(m, mt)
        nl.store(v, vt)
        return p, m, v

    p, g, m = R(64, 50), R(64, 50, seed=1), R(64, 50, seed=2)
    v = np.abs(R(64, 50, seed=3))
    P, M, V = p.copy(), m.copy(), v.copy()
    r = sim(k, p, g, m, v, 1e-2, 0.9, 0.999, 1e-8, 0.1, 3)
    M = 0.9 * M + 0.1 * g
    V = 0.999 * V + 0.001 * g * g
    P = P * (1 - 1e-3) - 1e-2 * (M / (1 - 0.9**3)) / (np.sqrt(V / (1 - 0.999**3)) + 1e-8)
    close(r[0], P)
    close(m, M)
    close(v, V)
    assert r[0] is p


# 23. cross-entropy
def test_xent():
    @nki.jit
    def k(logits, tgt):
        T, V = logits.shape
        lt = nl.load(logits)
        tt = nl.load(tgt)
        mx = nl.max(lt, axis=1, keepdims=True)
        neg = nl.multiply(mx, -1.0)
        e = nl.ndarray((T, V), nl.float32)
        s = nl.ndarray((T, 1), nl.float32)
        nisa.activation(
            dst=e, op=nl.exp, data=lt, bias=neg, reduce_op=nl.add, reduce_res=s, reduce_cmd=reduce_cmd.reset_reduce
        )
        lse = nl.add(nl.log(s), mx)
        io = nl.ndarray((T, V), nl.float32)
        nisa.iota(dst=io, pattern=[[1, V]], offset=0, channel_multiplier=0)
        tf = nl.copy(tt, dtype=nl.float32)
        oh = nl.ndarray((T, V), nl.float32)
        nisa.tensor_scalar(oh, io, nl.equal, tf)
        pick = nl.ndarray((T, V), nl.float32)
        nisa.tensor_tensor(pick, oh, lt, nl.multiply)
        l = nl.sum(pick, axis=[1], keepdims=True)
        o = nl.ndarray((T, 1), nl.float32, buffer=nl.shared_hbm)
        nl.store(o, nl.subtract(lse, l))
        return o

    x = R(100, 333)
    t = np.random.default_rng(0).integers(0, 333, (100, 1)).astype(np.int32)
    close(sim(k, x, t)[:, 0], np.log(np.exp(x).sum(1)) - x[np.arange(100), t[:, 0]])


# 24. fp8 quant per row
@pytest.mark.parametrize(
    ("dt", "mx"), [("float8_e4m3", 240.0), ("float8_e5m2", 57344.0), ("float8_e4m3fn", 448.0), ("int8", 127.0)]
)
def test_quant(dt, mx):
    d = getattr(nl, dt)

    @nki.jit
    def k(x):
        t = nl.load(x)
        a = nl.ndarray((x.shape[0], 1), nl.float32)
        ab = nl.abs(t)
        nisa.tensor_reduce(a, nl.maximum, ab, axis=1)
        nisa.tensor_scalar(a, a, nl.maximum, 1e-12)
        sc = nl.multiply(a, 1.0 / mx)
        inv = nl.reciprocal(sc)
        q = nl.ndarray(x.shape, d)
        nisa.tensor_scalar(dst=q, data=t, op0=nl.multiply, operand0=inv, op1=nl.minimum, operand1=mx)
        o, s = (
            nl.ndarray(x.shape, d, buffer=nl.shared_hbm),
            nl.ndarray((x.shape[0], 1), nl.float32, buffer=nl.shared_hbm),
        )
        nl.store(o, q)
        nl.store(s, sc)
        return o, s

    x = R(50, 64)
    q, s = sim(k, x, target="trn3")
    assert np.isfinite(q.astype(F32)).all()
    close(q.astype(F32) * s, x, {"int8": 0.01}.get(dt, 0.13))


# 25. fp8 matmul, double row
def test_fp8_double_row():
    @nki.jit
    def k(a, b):
        at, bt = nl.load(a), nl.load(b)
        ps = nl.ndarray((a.shape[2], b.shape[2]), nl.float32, nl.psum)
        nisa.nc_matmul(dst=ps, stationary=at, moving=bt, perf_mode=nisa.matmul_perf_mode.double_row)
        o = nl.ndarray(ps.shape, nl.float32, buffer=nl.shared_hbm)
        nl.store(o, nl.copy(ps))
        return o

    a, b = R(64, 2, 32).astype(ml_dtypes.float8_e4m3), R(64, 2, 100).astype(ml_dtypes.float8_e4m3)
    close(sim(k, a, b), np.einsum("kdm,kdn->mn", a.astype(F32), b.astype(F32)))


# 26. mx
def test_quantize_mx_matmul():
    @nki.jit
    def k(a, b):
        at, bt = nl.load(a), nl.load(b)
        K, M4 = a.shape
        N4 = b.shape[1]

        def q(t, F):
            d = nl.ndarray((K, F // 4), nl.float8_e4m3fn_x4)
            s = nl.ndarray((K, F // 4), nl.uint8)
            nisa.quantize_mx(dst=d, src=t, dst_scale=s)
            return d, s

        ad, as_ = q(at, M4)
        bd, bs = q(bt, N4)
        ps = nl.ndarray((M4 // 4, N4 // 4), nl.float32, nl.psum)
        nisa.nc_matmul_mx(ps, ad, bd, as_, bs)
        o = nl.ndarray(ps.shape, nl.float32, buffer=nl.shared_hbm)
        nl.store(o, nl.copy(ps))
        return o

    a, b = R(128, 4 * 32, dt=BF16), R(128, 4 * 48, dt=BF16, seed=4)
    A, B = a.astype(F32).reshape(128, 32, 4), b.astype(F32).reshape(128, 48, 4)
    close(sim(k, a, b, target="trn3"), np.einsum("kmq,knq->mn", A, B), 5e-2)


# 27. mamba
def test_mamba():
    @nki.jit
    def k(delta, u, A, B, C):
        Ch, L = u.shape
        S = A.shape[1]
        dt, ut, At = nl.load(delta), nl.load(u), nl.load(A)
        du = nl.multiply(dt, ut)
        y = nl.zeros((Ch, L), nl.float32)
        for s in nl.affine_range(S):
            da = nl.ndarray((Ch, L), nl.float32)
            nisa.activation(dst=da, op=nl.exp, data=dt, scale=At[:, s : s + 1])
            Bb = nl.ndarray((Ch, L), nl.float32)
            nisa.dma_copy(Bb, B[s : s + 1].broadcast(0, Ch))
            Cb = nl.ndarray((Ch, L), nl.float32)
            nisa.dma_copy(Cb, C[s : s + 1, :].broadcast(dim=0, size=Ch))
            bu = nl.multiply(du, Bb)
            h = nl.ndarray((Ch, L), nl.float32)
            nisa.tensor_tensor_scan(h, da, bu, 0.0, nl.multiply, nl.add)
            nisa.tensor_tensor(h, h, Cb, nl.multiply)
            nisa.tensor_tensor(y, y, h, nl.add)
        o = nl.ndarray((Ch, L), nl.float32, buffer=nl.shared_hbm)
        nl.store(o, y)
        return o

    Ch, L, S = 60, 90, 4
    d, u, A, B, C = np.abs(R(Ch, L)), R(Ch, L, seed=1), -np.abs(R(Ch, S)), R(S, L), R(S, L, seed=2)
    h = np.zeros((Ch, S))
    y = np.zeros((Ch, L))
    for t in range(L):
        h = np.exp(d[:, t, None] * A) * h + (d * u)[:, t, None] * B[:, t]
        y[:, t] = (h * C[:, t]).sum(1)
    close(sim(k, d, u, A, B, C), y, 1e-4)


# 28. rope both layouts
def test_rope():
    @nki.jit
    def k(x, cos, sin):
        S, D = x.shape
        h = D // 2
        t, c, s = nl.load(x), nl.load(cos), nl.load(sin)
        r = nl.ndarray((S, D), nl.float32)
        nisa.tensor_scalar(r[:, 0:h], t[:, h:D], nl.multiply, -1.0)
        nisa.tensor_copy(r[:, h:], t[:, :h])
        a, b = nl.multiply(t, c), nl.multiply(r, s)
        o = nl.ndarray((S, D), x.dtype, buffer=nl.shared_hbm)
        nl.store(o, nl.add(a, b))
        return o

    x, c, s = R(100, 32), R(100, 32, seed=1), R(100, 32, seed=2)
    close(sim(k, x, c, s), x * c + np.concatenate([-x[:, 16:], x[:, :16]], 1) * s)

    @nki.jit
    def inter(x, cos, sin):  # interleaved pairs
        S, D = x.shape
        t, c, s = nl.load(x), nl.load(cos), nl.load(sin)
        o = nl.ndarray((S, D), nl.float32)
        ev, od = t[:, 0:D:2], t[:, 1:D:2]
        a = nl.ndarray((S, D // 2), nl.float32)
        b = nl.ndarray((S, D // 2), nl.float32)
        nisa.tensor_tensor(a, ev, c, nl.multiply)
        nisa.tensor_tensor(b, od, s, nl.multiply)
        nisa.tensor_tensor(o[:, ::2], a, b, nl.subtract)
        nisa.tensor_tensor(a, ev, s, nl.multiply)
        nisa.tensor_tensor(b, od, c, nl.multiply)
        nisa.tensor_tensor(o[:, 1::2], a, b, nl.add)
        r = nl.ndarray((S, D), x.dtype, buffer=nl.shared_hbm)
        nl.store(r, o)
        return r

    c, s = c[:, :16].copy(), s[:, :16].copy()
    w = np.empty_like(x)
    w[:, ::2] = x[:, ::2] * c - x[:, 1::2] * s
    w[:, 1::2] = x[:, ::2] * s + x[:, 1::2] * c
    close(sim(inter, x, c, s), w)


# 29. moe dispatch / swiglu
def test_swiglu():
    @nki.jit
    def k(xT, wg, wu, wd):
        _H, T = xT.shape
        I = wg.shape[1]
        x = nl.load(xT)
        g = nl.ndarray((I, T), nl.float32, nl.psum)
        u = nl.ndarray((I, T), nl.float32, nl.psum)
        nisa.nc_matmul(g, nl.load(wg), x)
        nisa.nc_matmul(u, nl.load(wu), x)
        gs = nl.ndarray((I, T), nl.float32)
        nisa.activation(gs, nl.silu, g)
        h = nl.ndarray((I, T), xT.dtype)
        nisa.tensor_tensor(h, gs, u, nl.multiply)
        o = nl.ndarray((T, wd.shape[1]), nl.float32, nl.psum)
        nisa.nc_matmul(o, h, nl.load(wd))
        r = nl.ndarray(o.shape, xT.dtype, buffer=nl.shared_hbm)
        nl.store(r, nl.copy(o, dtype=xT.dtype))
        return r

    x, wg, wu, wd = R(64, 40), R(64, 100, scale=0.1), R(64, 100, seed=1, scale=0.1), R(100, 70, scale=0.1)
    g = wg.T @ x
    close(sim(k, x, wg, wu, wd), ((g / (1 + np.exp(-g))) * (wu.T @ x)).T @ wd)


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
