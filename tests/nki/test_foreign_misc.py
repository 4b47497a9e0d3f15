"""Indexing, facts of tensors, functions of the language and transfers as other authors write them."""

# ruff: noqa: E711, PLR0124, PT018 (written as their authors write)

from __future__ import annotations

import ml_dtypes
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from tests.nki.foreign_bodies import F32, R, body_ok, out_of

BF16 = ml_dtypes.bfloat16


INDEX = [
    ("x[0]", lambda x: x[0]),
    ("x[0, 0:2]", lambda x: x[0, 0:2]),
    ("x[..., 0:3]", lambda x: x[..., 0:3]),
    ("x[1, ...]", lambda x: x[1, ...]),
    ("x[-1]", lambda x: x[-1]),
    ("x[:, -2:]", lambda x: x[:, -2:]),
    ("x[:, :, 1]", lambda x: x[:, :, 1]),
    ("x[:, ::2]", lambda x: x[:, ::2]),
    ("x[1:3, 1, 2:4]", lambda x: x[1:3, 1, 2:4]),
    ("x[::2]", lambda x: x[::2]),
    ("x[1][2]", lambda x: x[1][2]),
    ("x[1:][0]", lambda x: x[1:][0]),
    ("ds", None),
    ("np int", lambda x: x[np.int64(1)]),
    ("x[2, 1, 3]", lambda x: x[2, 1, 3]),
]


@pytest.mark.parametrize(("name", "f"), INDEX)
def test_hbm_indexing(name, f):
    x = R(4, 3, 5)
    if f is None:
        g, w = (lambda t: t[nl.ds(1, 2), nl.ds(0, 3), nl.ds(2, 2)]), x[1:3, 0:3, 2:4]
    else:
        g, w = f, np.asarray(f(x))

    def k(x):
        v = g(x)
        o = nl.ndarray(v.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=o, src=v)
        return o

    got = body_ok(k, x)
    assert got.reshape(-1).tolist() == w.reshape(-1).tolist()
    assert got.shape == (w.shape or (1,))


SB = [
    lambda t: t[0:2],
    lambda t: t[:, 1],
    lambda t: t[:, 1, :],
    lambda t: t[:, :, 2],
    lambda t: t[0],
    lambda t: t[:, 0:2, 1:4],
    lambda t: t[:, ::2, ::2],
    lambda t: t[..., -1],
]


@pytest.mark.parametrize("i", range(len(SB)))
def test_sbuf_indexing(i):
    x = R(4, 3, 5)
    f = SB[i]

    def k(x):
        t = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(t, x)
        v = f(t)
        c = nl.ndarray(v.shape, x.dtype)
        nisa.tensor_copy(c, v)
        return out_of(c)

    got = body_ok(k, x)
    assert got.reshape(-1).tolist() == np.asarray(f(x)).reshape(-1).tolist()


@pytest.mark.parametrize(
    "bad",
    [
        lambda x: x[4],
        lambda x: x[0:5],
        lambda x: x[:, 3:3],
        lambda x: x[0, 0, 0, 0],
        lambda x: x[::-1],
        lambda x: x[1.5],
        lambda x: x["a"],
        lambda x: x[[0, 1]],
        lambda x: x[np.array([0, 1])],
        lambda x: x[None],
        lambda x: x[True],
        lambda x: x[nl.ds(3, 2)],
    ],
)
def test_bad_indexing(bad):
    with pytest.raises(AssertionError):
        nki.simulate(bad)(R(4, 3, 5))


def test_getitem_register_and_tile_select():
    def k(x, i):
        it = nl.load(i)
        r = nisa.register_alloc()
        nisa.register_load(r, it)
        a = nl.ndarray((1, 5), x.dtype)
        nisa.dma_copy(a, x[r])
        b = nl.ndarray((1, 5), x.dtype)
        nisa.dma_copy(b, x.select(dim=0, index=it))
        c = nl.ndarray((1, 5), x.dtype)
        nisa.dma_copy(c, x.ap([[5, 1], [1, 5]], scalar_offset=it))
        d = nl.ndarray((1, 5), x.dtype)
        nisa.dma_copy(d, x.ap([[5, 1], [1, 5]], offset=5, scalar_offset=r))
        return out_of(a), out_of(b), out_of(c), out_of(d)

    x = R(6, 5)
    for g, w in zip(body_ok(k, x, np.array([[3]], np.int32)), (3, 3, 3, 4), strict=False):
        np.testing.assert_array_equal(g[0], x[w])


def test_sbuf_dynamic_free_select():
    def k(x, i):
        t, it = nl.load(x), nl.load(i)
        c = nl.ndarray((x.shape[0], 2), x.dtype)
        nisa.tensor_copy(
            dst=c, src=t.ap(pattern=[[x.shape[1], x.shape[0]], [1, 2]], offset=0, scalar_offset=it, indirect_dim=1)
        )
        d = nl.ndarray(x.shape, x.dtype)
        nisa.memset(d, 0.0)
        nisa.tensor_copy(dst=d.ap([[x.shape[1], x.shape[0]], [1, 2]], scalar_offset=it, indirect_dim=1), src=c)
        return out_of(c), out_of(d)

    x = R(8, 10)
    c, d = body_ok(k, x, np.array([[4]], np.int32))
    np.testing.assert_array_equal(c, x[:, 4:6])
    w = np.zeros_like(x)
    w[:, 4:6] = x[:, 4:6]
    np.testing.assert_array_equal(d, w)


def test_tensor_facts():
    def k(x):
        t = nl.ndarray((128, 64), nl.float32, nl.sbuf, name="tile")
        assert t.shape == (128, 64)
        assert t.strides == (64, 1)
        assert t.offset == 0
        assert t.ndim == 2
        assert t.size == 8192
        assert t.name == "tile"
        assert t.dtype == nl.float32
        assert t.buffer == nl.sbuf
        assert len(t.shape) == 2
        assert tuple(t[32:64, 3].shape) in ((32, 1),)
        assert t[32:64].offset == 32 * 64
        assert t.is_contiguous()
        assert not t[:, ::2].is_contiguous()
        assert not t.is_indirect()
        assert t[:, 0:8].get_pattern() == [[64, 128], [1, 8]]
        assert t.reshape((128, 8, 8)).shape == (128, 8, 8)
        assert t.reshape(shape=(128, 8, 8)).shape == (128, 8, 8)
        assert t.reshape_dim(dim=1, shape=(2, -1)).shape == (128, 2, 32)
        assert t.expand_dim(dim=1).shape == (128, 1, 64)
        assert t.expand_dim(1).broadcast(dim=1, size=4).shape == (
            128,
            4,
            64,
        )
        assert t.view(nl.bfloat16).shape == (128, 128)
        assert t.view(dtype=nl.uint8).shape == (128, 256)
        assert t.permute(dims=(0, 1)).shape == (128, 64)
        assert t.slice(dim=1, start=2, end=10, step=3).shape == (128, 3)
        assert t.select(dim=1, index=3).shape == (128,) or t.select(dim=1, index=3).shape == (128, 1)
        assert (t == None) is False and (t != None) is True and t is not None
        assert t == t
        assert t != nl.ndarray((1, 1), nl.float32)
        assert hash(t) is not None
        assert t in [t]
        d = {"t": t}
        assert d["t"] is t
        assert isinstance(t, nl.NkiTensor)
        assert hasattr(t, "shape")
        assert not hasattr(t, "nope")
        assert getattr(t, "nope", 3) == 3
        return out_of(nl.load(x))

    body_ok(k, R(2, 2))


def test_mean_var_norm_prod_all():
    def k(x):
        t = nl.load(x)
        return tuple(
            out_of(v)
            for v in (
                nl.mean(t, axis=1, keepdims=True),
                nl.var(t, axis=1),
                nl.prod(t, axis=1, keepdims=True),
                nl.min(t, axis=-1, keepdims=True),
                nl.all(nl.greater(t, -10.0), axis=1),
                nl.sum(t, [1], keepdims=True),
            )
        )

    x = R(5, 7)
    m, v, p, mn, al, s = body_ok(k, x)
    np.testing.assert_allclose(m[:, 0], x.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(v.reshape(-1), x.var(1), rtol=1e-5)
    np.testing.assert_allclose(p[:, 0], x.prod(1), rtol=1e-5)
    np.testing.assert_array_equal(mn[:, 0], x.min(1))
    assert (al == 1).all()
    np.testing.assert_allclose(s[:, 0], x.sum(1), rtol=1e-5, atol=1e-6)


def test_reductions_without_keepdims():
    def k(x):
        t = nl.load(x)
        a = nl.sum(t, axis=2)
        b = nl.max(t, axis=(1, 2))
        c = nl.sum(t, axis=[1, 2], keepdims=True)
        return out_of(a), out_of(b), out_of(c), a.shape, b.shape, c.shape

    x = R(4, 3, 6)
    a, b, _c, sa, sb, sc = body_ok(k, x)
    assert sa == (4, 3)
    assert sc == (4, 1, 1)
    assert sb in ((4, 1), (4,))
    np.testing.assert_allclose(a, x.sum(2), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(b.reshape(-1), x.max((1, 2)))


def test_rms_norm_softmax_dropout_where():
    def k(x, w):
        t, g = nl.load(x), nl.load(w.reshape((1, x.shape[1])))
        return (
            out_of(nl.rms_norm(t, g, axis=1, n=x.shape[1], epsilon=1e-5)),
            out_of(nl.softmax(t, axis=1)),
            out_of(nl.dropout(t, 0.0)),
            out_of(nl.dropout(t, 1.0)),
        )

    x, w = R(6, 32), R(32)
    a, b, c, d = body_ok(k, x, w)
    np.testing.assert_allclose(a, x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * w, rtol=2e-5, atol=1e-6)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(b, e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(c, x)
    assert (d == 0).all()


def test_scalar_operands_kinds():
    def k(x, s):
        t = nl.load(x)
        st = nl.load(s)
        r = nl.ndarray(x.shape, nl.float32)
        for v in (2, 2.0, np.float32(2), np.int32(2), True, st, st[:, 0:1]):
            nisa.tensor_scalar(dst=r, data=t, op0=nl.multiply, operand0=v)
        nisa.tensor_scalar(r, t, nl.multiply, st, False, nl.add, 1.0, False)
        return out_of(r)

    x, s = R(4, 5), R(4, 1)
    np.testing.assert_allclose(body_ok(k, x, s), x * s + 1, rtol=1e-6)


def test_memset_kinds():
    def k(x):
        outs = []
        for dt, v in (
            (nl.float32, 0),
            (nl.float32, 1.5),
            (nl.bfloat16, 0),
            (nl.bfloat16, -1.0),
            (nl.int32, 7),
            (nl.uint8, 255),
            (nl.float16, float("-inf")),
            (nl.float32, -3.4028235e38),
            (nl.float8_e4m3, 1.0),
            (nl.int8, -3),
            (nl.uint32, 0xFFFFFFFF),
            (nl.uint16, 65535),
        ):
            t = nl.ndarray((2, 3), dt)
            nisa.memset(dst=t, value=v)
            outs.append(out_of(t))
        return tuple(outs)

    r = body_ok(k, R(1, 1))
    assert [float(o[0, 0]) for o in r] == [
        0,
        1.5,
        0,
        -1,
        7,
        255,
        -np.inf,
        float(np.float32(-3.4028235e38)),
        1,
        -3,
        0xFFFFFFFF,
        65535,
    ]


def test_dma_count_order_matching():
    def k(x):
        a = nl.ndarray((12, 2), x.dtype)
        nisa.dma_copy(dst=a, src=x)  # (4, 6) -> (12, 2)
        b = nl.ndarray((1, 24), x.dtype)
        nisa.dma_copy(dst=b, src=a)
        o = nl.ndarray((24,), x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=o, src=b)
        c = nl.ndarray((24, 1), nl.bfloat16)
        nisa.dma_copy(dst=c, src=o)
        o2 = nl.ndarray((24,), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=o2, src=c)
        return o, o2

    x = R(4, 6)
    a, b = body_ok(k, x)
    np.testing.assert_array_equal(a, x.reshape(-1))
    np.testing.assert_array_equal(b, x.astype(BF16).astype(F32).reshape(-1))
