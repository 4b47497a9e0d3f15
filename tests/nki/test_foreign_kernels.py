"""Norms, products, attention, gathers and loops in the styles of many authors, each against NumPy."""

# ruff: noqa: B007, F841 (written as their authors write)

from __future__ import annotations

import math

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from nki.isa.constants import oob_mode
from nkilib.core.utils.allocator import SbufManager
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.stream_shuffle_broadcast import stream_shuffle_broadcast
from nkilib.core.utils.tiled_range import TiledRange
from tests.nki.foreign import BF16, F16, F32, R, close, sim, softmax


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
