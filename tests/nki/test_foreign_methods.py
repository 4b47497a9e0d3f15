"""Views, gathers, loops, masks and small linear algebra in the styles of other authors, each against NumPy."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from nki.isa.constants import dge_mode, oob_mode
from tests.nki.foreign import BF16, R, hbm, near, pm, sb, sim

P = 128


f32 = nl.float32


def groupnorm(x, gamma, beta, groups, eps=1e-05):
    N, C = x.shape
    cg = C // groups
    o = hbm(x.shape, x.dtype)
    t = nl.load(x).reshape((N, groups, cg))
    g = sb((N, C))
    b = sb((N, C))
    nisa.dma_copy(g, gamma.reshape((1, C)).broadcast(0, N))
    nisa.dma_copy(b, beta.ap([[0, N], [1, C]]))
    y = sb((N, groups, cg))
    for i in range(groups):
        st = sb((N, 6))
        nisa.bn_stats(st, t[:, i, :])
        mv = sb((N, 2))
        nisa.bn_aggr(mv, st)
        rs = sb((N, 1))
        nisa.activation(rs, nl.rsqrt, mv[:, 1:2], bias=nl.full((N, 1), eps, dtype=f32, buffer=nl.sbuf))
        nisa.tensor_scalar(y[:, i, :], t[:, i, :], nl.subtract, mv[:, 0:1], op1=nl.multiply, operand1=rs)
    f = y.reshape((N, C))
    nisa.tensor_tensor(f, f, g, nl.multiply)
    nisa.tensor_tensor(f, f, b, nl.add)
    nl.store(o, f)
    return o


def test_groupnorm():
    x, g, b = (R(60, 48), R(48, seed=1), R(48, seed=2))
    v = x.reshape(60, 4, 12)
    w = ((v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-05)).reshape(60, 48) * g + b
    near(sim(groupnorm, x, g, b, 4), w, 0.001)


def conv2d(x, w, stride=1):
    C, H, W = x.shape
    _, KH, KW, O = w.shape
    OH, OW = ((H - KH) // stride + 1, (W - KW) // stride + 1)
    o = hbm((O, OH, OW))
    tx = sb((C, H, W))
    nisa.dma_copy(tx, x)
    tw = sb((C, KH * KW * O))
    nisa.dma_copy(tw, w.reshape((C, KH * KW * O)))
    acc = pm((O, OH, OW))
    for kh in range(KH):
        for kw in range(KW):
            win = tx.ap(pattern=[[H * W, C], [W * stride, OH], [stride, OW]], offset=kh * W + kw)
            nisa.nc_matmul(acc, tw[:, (kh * KW + kw) * O : (kh * KW + kw + 1) * O], win)
    r = sb((O, OH, OW))
    nisa.tensor_copy(r, acc)
    nisa.dma_copy(o, r)
    return o


@pytest.mark.parametrize("st", [1, 2])
def test_conv2d(st):
    from scipy.signal import correlate

    x, w = (R(16, 14, 14), R(16, 3, 3, 8, seed=1))
    ref = np.stack([sum(correlate(x[c], w[c, :, :, o], "valid") for c in range(16)) for o in range(8)])[:, ::st, ::st]
    near(sim(conv2d, x, w, stride=st), ref, 0.001)


def prefix(x):
    R, C = x.shape
    t = nl.load(x)
    it = sb((R, R), nl.int32)
    nisa.iota(it, [[1, R]], offset=0, channel_multiplier=-1)
    tri = sb((R, R))
    nisa.tensor_scalar(tri, it, nl.greater_equal, 0)
    p = pm((R, C))
    nisa.nc_matmul(p, tri, t)
    o = hbm((R, C))
    nl.store(o, nl.copy(p))
    return o


def test_prefix():
    x = R(100, 60)
    near(sim(prefix, x), np.cumsum(x, 0), 0.001)


def hist(idx, n):
    T = idx.shape[0]
    t = sb((T, 1), nl.int32)
    nisa.dma_copy(t, idx.reshape((T, 1)))
    it = sb((T, n), nl.int32)
    nisa.iota(dst=it, pattern=[[1, n]], offset=0, channel_multiplier=0)
    tf = sb((T, 1))
    nisa.tensor_copy(tf, t)
    oh = sb((T, n), nl.bfloat16)
    nisa.tensor_scalar(dst=oh, data=it, op0=nl.equal, operand0=tf)
    one = nl.ones((T, 1), dtype=nl.bfloat16, buffer=nl.sbuf)
    p = pm((1, n))
    nisa.nc_matmul(p, one, oh)
    r = sb((1, n), nl.int32)
    nisa.tensor_copy(r, p)
    o = hbm((n,), nl.int32)
    nisa.dma_copy(o.reshape((1, n)), r)
    return o


def test_hist():
    i = np.random.default_rng(0).integers(0, 16, 100).astype(np.int32)
    np.testing.assert_array_equal(sim(hist, i, 16), np.bincount(i, minlength=16))


def topk16(x):
    R, _C = x.shape
    t = nl.load(x)
    v = sb((R, 16))
    ix = sb((R, 16), nl.uint32)
    for r in range(2):
        nisa.max8(v[:, r * 8 : r * 8 + 8], t)
        nisa.nc_find_index8(ix[:, r * 8 : r * 8 + 8], t, v[:, r * 8 : r * 8 + 8])
        nisa.nc_match_replace8(dst=t, data=t, vals=v[:, r * 8 : r * 8 + 8], imm=-1e30)
    a, b = (hbm((R, 16)), hbm((R, 16), nl.uint32))
    nl.store(a, v)
    nl.store(b, ix)
    return (a, b)


def test_topk():
    x = R(70, 200)
    v, i = sim(topk16, x)
    s = np.argsort(-x, 1)[:, :16]
    near(v, np.take_along_axis(x, s, 1))
    np.testing.assert_array_equal(i, s)


def fp8mm(x, w):
    M, K = x.shape
    N = w.shape[1]
    t = nl.load(x)
    am = sb((M, 1))
    ab = sb((M, K))
    nisa.activation(ab, nl.abs, t)
    nisa.tensor_reduce(am, nl.maximum, ab, axis=[1])
    nisa.tensor_scalar(am, am, nl.maximum, 1e-06, op1=nl.multiply, operand1=1 / 240.0)
    inv = sb((M, 1))
    nisa.reciprocal(dst=inv, data=am)
    q = sb((M, K), nl.float8_e4m3)
    nisa.tensor_scalar(q, t, nl.multiply, inv)
    qb = sb((M, K), nl.bfloat16)
    nisa.tensor_copy(qb, q)
    pt = pm((K, M), nl.bfloat16)
    nisa.nc_transpose(pt, qb)
    qT = sb((K, M), nl.bfloat16)
    nisa.tensor_copy(qT, pt)
    tw = sb((K, N), nl.bfloat16)
    nisa.dma_copy(tw, w)
    p = pm((M, N))
    nisa.nc_matmul(p, qT, tw)
    r = sb((M, N))
    nisa.tensor_scalar(r, p, nl.multiply, am)
    o = hbm((M, N))
    nl.store(o, r)
    return o


def test_fp8():
    x, w = (R(50, 100), R(100, 80, seed=1))
    ref = x @ w
    got = sim(fp8mm, x, w)
    assert np.abs(got - ref).max() < 0.1 * np.abs(ref).max()


def paged(cache, table, scale):
    B, D = (table.shape[0], cache.shape[1])
    ix = sb((B, 1), nl.int32)
    nisa.dma_copy(dst=ix, src=table)
    t = nl.zeros((B, D), dtype=cache.dtype, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=t,
        src=cache.ap(pattern=[[D, B], [1, D]], offset=0, vector_offset=ix, indirect_dim=0),
        oob_mode=oob_mode.skip,
        dge_mode=dge_mode.swdge,
    )
    r = sb((B, D))
    nisa.activation(dst=r, op=nl.copy, data=t, scale=scale)
    o = hbm((B, D))
    nisa.dma_copy(dst=o, src=r)
    return o


def test_paged():
    c = R(40, 32, dt=BF16)
    t = np.array([[3], [-1], [39], [100], [0]], np.int32)
    w = np.where((t >= 0) & (t < 40), c.astype(np.float32)[np.clip(t[:, 0], 0, 39)], 0) * 2
    near(sim(paged, c, t, 2.0), w)


def dynrows(x, n):
    R, C = x.shape
    o = hbm((R, C))
    z = nl.zeros((P, C), dtype=f32, buffer=nl.sbuf)
    for i in range(R // P):
        nl.store(o[i * P : (i + 1) * P], z)
    cnt = nisa.register_alloc()
    t = sb((1, 1), nl.int32)
    nisa.dma_copy(t, n)
    nisa.register_load(cnt, t)
    pos = sb((1, 1), nl.int32)
    nisa.memset(pos, 0)
    buf = sb((P, C))
    for _ in nl.dynamic_range(0, cnt, 1):
        nisa.dma_copy(buf, x.ap([[C, P], [1, C]], scalar_offset=pos, indirect_dim=0))
        nisa.activation(buf, nl.exp, buf)
        nisa.dma_copy(o.ap([[C, P], [1, C]], scalar_offset=pos, indirect_dim=0), buf)
        nisa.tensor_scalar(pos, pos, nl.add, P)
    return o


@pytest.mark.parametrize("n", [0, 1, 3])
def test_dyn(n):
    x = R(384, 16)
    w = np.zeros_like(x)
    w[: n * 128] = np.exp(x[: n * 128])
    near(sim(dynrows, x, np.array([[n]], np.int32)), w)


def dynfori(x, n):
    R, C = x.shape
    o = hbm((R, C))
    acc = nl.zeros((1, C), dtype=f32, buffer=nl.sbuf)
    r = nisa.register_alloc()
    nisa.register_load(r, n.reshape((1, 1)))

    def body(i):
        t = sb((1, C))
        nisa.dma_copy(t, x[nl.ds(i, 1)])
        nisa.tensor_tensor(acc, acc, t, nl.add)
        nisa.dma_copy(o.select(0, i).reshape((1, C)), acc)

    nl.fori_loop(0, r, body)
    return o


def test_fori():
    x = R(6, 9)
    o = nki.simulate(dynfori)(x, np.array([6], np.int32))
    near(o, np.cumsum(x, 0))


def oesort(x):
    R, C = x.shape
    t = nl.load(x)
    a = sb((R, C // 2))
    b = sb((R, C // 2))
    for s in range(C):
        lo, hi = (t[:, 0:C:2], t[:, 1:C:2]) if s % 2 == 0 else (t[:, 1 : C - 1 : 2], t[:, 2:C:2])
        n = lo.shape[1]
        nisa.tensor_tensor(a[:, :n], lo, hi, nl.minimum)
        nisa.tensor_tensor(b[:, :n], lo, hi, op=nl.maximum)
        nisa.tensor_copy(lo, a[:, :n])
        nisa.tensor_copy(hi, b[:, :n], engine=nisa.vector_engine)
    o = hbm((R, C))
    nl.store(o, t)
    return o


def test_sort():
    x = R(20, 16)
    near(sim(oesort, x), np.sort(x, 1))


def jacobi(x, steps: int = 2):
    H, W = x.shape
    cur = hbm((H, W), name="c0")
    t = nl.load(x)
    nl.store(cur, t)
    for s in range(steps):
        up, dn, mid = (sb((H - 2, W)), sb((H - 2, W)), sb((H - 2, W)))
        nisa.dma_copy(up, cur[0 : H - 2])
        nisa.dma_copy(dn, cur[2:H])
        nisa.dma_copy(mid, cur[1 : H - 1])
        r = sb((H - 2, W - 2))
        nisa.tensor_tensor(r, up[:, 1:-1], dn[:, 1:-1], nl.add)
        nisa.tensor_tensor(r, r, mid[:, :-2], nl.add)
        nisa.tensor_tensor(r, r, mid[:, 2:], nl.add)
        nisa.tensor_scalar(mid[:, 1 : W - 1], r, nl.multiply, 0.25)
        nxt = hbm((H, W), name=f"c{s + 1}")
        nisa.dma_copy(nxt, cur)
        nisa.dma_copy(nxt[1 : H - 1], mid)
        cur = nxt
    return cur


def test_jacobi():
    x = R(20, 30)
    w = x.copy()
    for _ in range(2):
        n = w.copy()
        n[1:-1, 1:-1] = 0.25 * (w[:-2, 1:-1] + w[2:, 1:-1] + w[1:-1, :-2] + w[1:-1, 2:])
        w = n
    near(sim(jacobi, x), w)


def views(x):
    B, S, H, D = x.shape
    t = sb((S, B, H, D))
    nisa.dma_copy(t, x.permute((1, 0, 2, 3)))
    v = t.flatten_dims(1, 2).permute((0, 2, 1))
    u = sb((S, D, B * H))
    nisa.tensor_copy(u, v)
    q = u.reshape_dim(2, (B, H)).select(2, 1).slice(1, 0, D, 2)
    o = hbm((S, D // 2, H))
    nisa.dma_copy(o, q)
    return o


def test_views():
    x = R(2, 10, 4, 6)
    near(sim(views, x), x.transpose(1, 3, 0, 2)[:, ::2, 1, :])


def bits(x):
    t = nl.load(x)
    u = t.view(nl.uint32)
    s = sb(x.shape, nl.uint32)
    nisa.tensor_scalar(s, u, nl.bitwise_and, 2147483647)
    o = hbm(x.shape)
    nisa.dma_copy(o, s.view(nl.float32))
    b = hbm((x.shape[0], x.shape[1] * 2), nl.bfloat16)
    nisa.dma_copy(b, t.view(nl.bfloat16))
    return (o, b)


def test_bits():
    x = R(5, 8)
    a, b = sim(bits, x)
    near(a, np.abs(x))
    np.testing.assert_array_equal(b.view(np.uint16), x.view(np.uint16))


def up(x):
    C, H, W = x.shape
    t = sb((C, H, W))
    nisa.dma_copy(t, x)
    o = hbm((C, H * 2, W * 2))
    r = sb((C, H, 2, W, 2))
    for i in range(2):
        nisa.tensor_copy(r[:, :, i, :, :], t.expand_dim(3).broadcast(3, 2))
    nisa.dma_copy(o, r.reshape((C, H * 2, W * 2)))
    return o


def test_up():
    x = R(6, 4, 5)
    near(sim(up, x), x.repeat(2, 1).repeat(2, 2))


def allsum(x):
    R, C = x.shape
    me = nl.program_id(0)
    n = nl.num_programs()
    h = R // n
    t = sb((h, C))
    nisa.dma_copy(t, x[me * h : (me + 1) * h])
    s = sb((1, C))
    p = pm((1, C))
    nisa.nc_matmul(p, nl.ones((h, 1), dtype=f32, buffer=nl.sbuf), t)
    nisa.tensor_copy(s, p)
    o = hbm((1, C))
    if n == 2:
        r = sb((1, C))
        nisa.sendrecv(src=s, dst=r, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        nisa.tensor_tensor(s, s, r, nl.add)
    if me == 0:
        nisa.dma_copy(o, s)
    return o


@pytest.mark.parametrize("lnc", [1, 2])
def test_allsum(lnc):
    x = R(100, 70)
    near(sim(allsum, x, lnc=lnc), x.sum(0, keepdims=True), 0.001)


def lru(a, b):
    C, T = a.shape
    o = hbm((C, T))
    init = nl.zeros((C, 1), dtype=f32, buffer=nl.sbuf)
    for s in range(0, T, 64):
        n = min(64, T - s)
        ta, tb, r = (nl.load(a[:, s : s + n]), nl.load(b[:, s : s + n]), sb((C, n)))
        nisa.tensor_tensor_scan(dst=r, data0=ta, data1=tb, initial=init, op0=nl.multiply, op1=nl.add)
        nisa.dma_copy(o[:, nl.ds(s, n)], r)
        init = r[:, n - 1 : n]
    return o


def test_lru():
    a, b = (R(30, 150) * 0.3, R(30, 150, seed=1))
    h = np.zeros(30)
    w = []
    for t in range(150):
        h = a[:, t] * h + b[:, t]
        w.append(h)
    near(sim(lru, a, b), np.stack(w, 1))


def ns(x, steps=5):
    n = x.shape[0]
    t = nl.load(x)
    a, b, c = (3.4445, -4.775, 2.0315)
    idn = nl.shared_identity_matrix(n, dtype=f32)

    def mm(l, r):
        p = pm((n, n))
        nisa.nc_matmul(p, l, r)
        return nl.copy(p)

    def tr(y):
        p = pm((n, n))
        nisa.nc_matmul(p, y, idn, is_transpose=True)
        return nl.copy(p)

    for _ in range(steps):
        tT = tr(t)
        A = mm(tT, tT)
        A2 = mm(A, A)
        B = sb((n, n))
        nisa.tensor_scalar(B, A, nl.multiply, b)
        nisa.scalar_tensor_tensor(B, A2, nl.multiply, c, nl.add, B)
        Bx = mm(tr(B), t)
        nisa.scalar_tensor_tensor(t, t, nl.multiply, a, nl.add, Bx)
    o = hbm((n, n))
    nl.store(o, t)
    return o


def test_ns():
    x = R(32, 32)
    x /= np.linalg.norm(x)
    w = x.astype(np.float64)
    for _ in range(5):
        A = w @ w.T
        B = -4.775 * A + 2.0315 * A @ A
        w = 3.4445 * w + B @ w
    near(sim(ns, x), w, 0.001)


def t4(x):
    a = sb((x.shape[3], x.shape[1], x.shape[2], x.shape[0]), nl.bfloat16)
    nisa.dma_transpose(dst=a, src=x, axes=(3, 1, 2, 0))
    o = hbm(a.shape, nl.bfloat16)
    nisa.dma_copy(o, a)
    return o


def test_t4():
    x = R(16, 3, 4, 32, dt=BF16)
    np.testing.assert_array_equal(sim(t4, x), x.transpose(3, 1, 2, 0))


def lt(x):
    o = hbm(tuple(reversed(x.shape)), x.dtype)
    nl.store(o, nl.load_transpose2d(x))
    return o


def test_lt():
    x = R(100, 64, dt=BF16)
    np.testing.assert_array_equal(sim(lt, x), x.T)
