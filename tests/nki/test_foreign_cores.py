"""Transposes, cores, losses, quantisation and layers in the styles of many authors, each against NumPy."""

# ruff: noqa: F841 (written as their authors write)

from __future__ import annotations

import ml_dtypes
import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from nki.collectives import ReplicaGroup
from nki.isa.constants import reduce_cmd
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from tests.nki.foreign import BF16, F16, F32, R, close, sim


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
