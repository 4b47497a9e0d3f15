"""View algebra against NumPy, on HBM and on chip, reading and writing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import KernelError, simulate


def new(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


def steps(draw, shape, on_chip):
    """A random chain of view steps that NumPy can follow: [(name, arguments)]."""
    chain = []
    first = 1 if on_chip else 0
    shape = list(shape)
    for _ in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(["slice", "permute", "expand_dim", "broadcast", "reshape_dim", "select"]))
        if name == "slice" and len(shape) > first:
            dim = draw(st.integers(first, len(shape) - 1))
            start = draw(st.integers(0, shape[dim] - 1))
            end = draw(st.integers(start + 1, shape[dim]))
            step = draw(st.integers(1, 3))
            chain.append((name, (dim, start, end, step)))
            shape[dim] = -(-(end - start) // step)
        elif name == "permute":
            order = (list(range(first))) + draw(st.permutations(range(first, len(shape))))
            chain.append((name, (tuple(order),)))
            shape = [shape[i] for i in order]
        elif name == "expand_dim" and len(shape) < 5:
            dim = draw(st.integers(first, len(shape)))
            chain.append((name, (dim,)))
            shape.insert(dim, 1)
        elif name == "broadcast" and 1 in shape[first:]:
            dim = first + shape[first:].index(1)
            chain.append((name, (dim, 3)))
            shape[dim] = 3
        elif name == "reshape_dim" and len(shape) < 5:
            dim = draw(st.integers(first, len(shape) - 1))
            factor = draw(st.sampled_from([f for f in (1, 2, 3, 4, 5, 6) if shape[dim] % f == 0]))
            chain.append((name, (dim, (factor, shape[dim] // factor))))
            shape[dim : dim + 1] = [factor, shape[dim] // factor]
        elif name == "select" and len(shape) > first + 1:
            dim = draw(st.integers(first, len(shape) - 1))
            chain.append((name, (dim, draw(st.integers(0, shape[dim] - 1)))))
            del shape[dim]
    return chain


def follow(a, chain):
    for name, args in chain:
        if name == "slice":
            dim, start, end, step = args
            a = a[(slice(None),) * dim + (slice(start, end, step),)]
        elif name == "permute":
            a = a.transpose(args[0])
        elif name == "expand_dim":
            a = np.expand_dims(a, args[0])
        elif name == "broadcast":
            a = np.repeat(a, args[1], axis=args[0])
        elif name == "reshape_dim":
            dim, sizes = args
            a = a.reshape(*a.shape[:dim], *sizes, *a.shape[dim + 1 :])
        else:
            a = a.take(args[1], axis=args[0])
    return a


@given(st.data(), st.sampled_from([(6, 12), (4, 6, 10), (2, 3, 4, 6)]), st.booleans())
def test_chains_of_views(data, shape, on_chip):
    a = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    chain = steps(data.draw, shape, on_chip)
    expected = follow(a, chain)

    def kernel(x):
        source = x
        if on_chip:
            source = new(shape)
            nisa.dma_copy(source, x)
        view = source
        for name, args in chain:
            view = getattr(view, name)(*args)
        assert view.shape == expected.shape
        out = new(expected.shape, buffer=nl.shared_hbm)
        nisa.dma_copy(out, view)
        return out

    np.testing.assert_array_equal(simulate(kernel)(a), expected)


def test_indexing_rules_on_chip_and_in_hbm():
    shapes = {}

    def kernel(x):
        tile = new((4, 3, 5))
        nisa.dma_copy(tile, x)
        shapes.update(
            a=tile[1].shape, b=tile[0, 1].shape, c=tile[0, 1, 2].shape, d=tile[..., 2].shape, e=tile[:, -1, 1:3].shape, f=tile[:, :, ::2].shape,
            g=x[1].shape, h=x[1, 2].shape, i=x[1, 2, 3].shape, j=x[..., 0].shape, k=x[-1:, 0:2][0].shape, m=tile[:, nl.ds(1, 2)].shape,
        )  # fmt: skip
        out = new((3, 5), buffer=nl.shared_hbm)
        nisa.dma_copy(out, x[1:3][1])
        return out

    a = np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    np.testing.assert_array_equal(simulate(kernel)(a), a[2])
    assert shapes == {
        "a": (1, 3, 5), "b": (1, 5), "c": (1, 1), "d": (4, 3), "e": (4, 2), "f": (4, 3, 3),
        "g": (3, 5), "h": (5,), "i": (1,), "j": (4, 3), "k": (2, 5), "m": (4, 2, 5),
    }  # fmt: skip


def test_reshape_splits_and_merges(evaluate, rng):
    a = rng.standard_normal((4, 6, 10)).astype(np.float32)

    def kernel(x):
        out = new((8, 30), buffer=nl.shared_hbm)
        nisa.dma_copy(out, x.reshape((8, 3, 10)).reshape(8, 30))
        half = new((4, 3, 2, 5), buffer=nl.shared_hbm)
        nisa.dma_copy(half, x[:, :, 0:5].reshape((4, 3, 2, 5)))
        named = new((10, 24), buffer=nl.shared_hbm)
        nisa.dma_copy(named, x.rearrange(("p", ("h", "w"), "c"), ("c", ("p", "h", "w")), {"h": 2}))
        return out, half, named

    out, half, named = simulate(kernel)(a)
    np.testing.assert_array_equal(out, a.reshape(8, 30))
    np.testing.assert_array_equal(half, a[:, :, :5].reshape(4, 3, 2, 5))
    np.testing.assert_array_equal(named, a.reshape(24, 10).T)


def test_bits_read_as_another_dtype(evaluate, rng):
    a = rng.standard_normal((4, 6)).astype(np.float32)

    def body(x):
        out = nl.ndarray((4, 24), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.tensor_copy(out, x.view(nl.uint8))
        back = nl.ndarray((4, 6), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(back, out.view(nl.float32))
        last = nl.ndarray((4, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(last, x.ap([[6, 4], [1, 1]], offset=5, dtype=nl.int32))
        return out, back, last

    out, back, last = evaluate(body, a)
    np.testing.assert_array_equal(out, a.view(np.uint8))
    np.testing.assert_array_equal(back, a)
    np.testing.assert_array_equal(last, a.view(np.int32)[:, 5:6])


def test_bits_read_as_another_dtype_in_a_shape_that_is_given(evaluate, rng):
    """A form of published kernels: the last dimension alone need not take the ratio of the sizes."""
    a = rng.integers(0, 255, (4, 3, 2)).astype(np.uint8)

    def body(x):
        out = nl.ndarray((4, 3), dtype=nl.uint16, buffer=nl.sbuf)
        nisa.tensor_copy(out, x.view(nl.uint16, shape=(4, 3)))
        flat = nl.ndarray((4, 6), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.tensor_copy(flat, out.view(dtype=nl.uint8, shape=(4, 6)))
        same = nl.ndarray((4, 6), dtype=nl.int8, buffer=nl.sbuf)
        nisa.tensor_copy(same, x.view(dtype=nl.int8, shape=[4, 6]))
        return out, flat, same

    out, flat, same = evaluate(body, a)
    np.testing.assert_array_equal(out, a.view(np.uint16)[:, :, 0])
    np.testing.assert_array_equal(flat, a.reshape(4, 6))
    np.testing.assert_array_equal(same, a.reshape(4, 6).view(np.int8))
    with pytest.raises(KernelError, match="V5-RESHAPE"):
        evaluate(lambda x: x.view(nl.uint16, (4, 4)), a)


def test_a_five_dimensional_pattern_pools(evaluate, rng):
    a = rng.standard_normal((3, 6, 8)).astype(np.float32)

    def body(x):
        out = new((3, 3, 4))
        windows = x.ap([[48, 3], [16, 3], [2, 4], [8, 2], [1, 2]])
        nisa.tensor_reduce(out, nl.add, windows, axis=[3, 4])
        return out

    np.testing.assert_allclose(evaluate(body, a), a.reshape(3, 3, 2, 4, 2).sum(axis=(2, 4)), rtol=1e-5)


def test_stride_zero_destination_is_a_dump(evaluate, rng):
    a = rng.standard_normal((4, 9)).astype(np.float32)

    def body(x):
        dump, total = new((4, 1)), new((4, 1))
        nisa.activation_reduce(dump.ap([[1, 4], [0, 9]]), nl.square, x, nl.add, total)
        return total

    np.testing.assert_allclose(evaluate(body, a)[:, 0], (a * a).sum(axis=1), rtol=1e-5)


REJECTED = [
    ("NCC_ESMP002", lambda x: x[:, 0:9]),
    ("NCC_ESMP002", lambda x: x[4]),
    ("NCC_ESMP002", lambda x: x.slice(1, 3, 3)),
    ("NCC_ESMP002", lambda x: x.select(1, 8)),
    ("NCC_ESMP002", lambda x: x.ap([[8, 4], [1, 9]])),
    ("S-PCONT", lambda x: x[::2]),
    ("S-PCONT", lambda x: x.permute((1, 0))),
    ("S-PCONT", lambda x: x.reshape((2, 16))),
    ("S-PCONT", lambda x: x.flatten_dims(0, 1)),
    ("S-PCONT", lambda x: x[0:1].broadcast(0, 4)),
    ("S-PCONT", lambda x: x.expand_dim(0)),
    ("S-PCONT", lambda x: x.select(0, nl.zeros((1, 1), dtype=nl.int32))),
    ("S-AP-PSTRIDE", lambda x: x.ap([[4, 4], [1, 4]])),
    ("V5-RESHAPE", lambda x: x.reshape((4, 7))),
    ("V5-RESHAPE", lambda x: x.reshape((4, 2, 4)).permute((0, 2, 1)).flatten_dims(1, 2)),
    ("S-RANK", lambda x: x[0, 0, 0]),
    ("S-VIEW", lambda x: x.broadcast(1, 3)),
    ("S-VIEW", lambda x: x.squeeze_dim(1)),
    ("S-VIEW", lambda x: x[:, ::2].view(nl.uint8)),
    ("B1-DYN-INDEX", lambda x: x[x]),
    ("B1-ARANGE", lambda x: x[:, np.arange(3)]),
    ("NKI-SHAPE", lambda x: nl.ndarray((4, 2.0), dtype=nl.float32)),
    ("NKI-SHAPE", lambda x: nl.ndarray((4, 0), dtype=nl.float32)),
    ("B2-BUFFER-STR", lambda x: nl.ndarray((4, 4), dtype=nl.float32, buffer="sbuf")),
    ("NCC_ESPP004", lambda x: nl.ndarray((4, 4), dtype=np.float64)),
    ("NCC_IBIR229", lambda x: nl.ndarray((4, 60000), dtype=nl.float32)),
    ("NCC_EOOM001", lambda x: nl.ndarray((1 << 20, 1 << 20), dtype=nl.float32, buffer=nl.hbm)),
]


@pytest.mark.parametrize(("code", "body"), REJECTED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REJECTED)])
def test_rejected(rejected, code, body):
    rejected(code, body, np.ones((4, 8), np.float32))
