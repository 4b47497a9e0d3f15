"""Functions of nki.language against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import simulate

UNARY = {
    "abs": np.abs, "square": np.square, "exp": np.exp, "sin": np.sin, "cos": np.cos, "tan": np.tan, "arctan": np.arctan, "tanh": np.tanh,
    "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc, "negative": np.negative, "sign": np.sign, "relu": lambda x: np.maximum(x, 0),
    "reciprocal": lambda x: 1 / x, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary(evaluate, rng, name):
    a = rng.uniform(-6, 6, (5, 7)).astype(np.float32)
    a = np.abs(a) + 0.1 if name in ("log", "sqrt", "rsqrt") else a
    np.testing.assert_allclose(evaluate(getattr(nl, name), a), UNARY[name](a), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "minimum"])
def test_binary_with_tiles_and_numbers(evaluate, rng, name):
    a, b = (rng.standard_normal((5, 7)).astype(np.float32) for _ in range(2))
    f = getattr(np, name)
    op = getattr(nl, name)
    both, right, left = evaluate(lambda x, y: (op(x, y), op(x, 2.0), op(2.0, x)), a, b)
    np.testing.assert_allclose(both, f(a, b), rtol=1e-6)
    np.testing.assert_allclose(right, f(a, np.float32(2)), rtol=1e-6)
    np.testing.assert_allclose(left, f(np.float32(2), a), rtol=1e-6)


def test_comparisons_logic_and_bits(evaluate, rng):
    a, b = rng.integers(0, 4, (3, 8)).astype(np.int32), rng.integers(0, 4, (3, 8)).astype(np.int32)

    def body(x, y):
        return (
            nl.equal(x, y, dtype=nl.uint8), nl.less(x, 2), nl.logical_not(nl.greater(x, 1)), nl.bitwise_and(x, y),
            nl.bitwise_xor(x, 5), nl.invert(x), nl.left_shift(x, 3), nl.right_shift(x, 1), nl.bitwise_or(x, y),
        )  # fmt: skip

    got = evaluate(body, a, b)
    for value, expected in zip(got, (a == b, a < 2, a <= 1, a & b, a ^ 5, ~a, a << 3, a >> 1, a | b), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert got[0].dtype == np.uint8


def test_reductions(evaluate, rng):
    a = rng.standard_normal((4, 3, 5)).astype(np.float32)

    def body(x):
        return (
            nl.sum(x, axis=2, keepdims=True), nl.max(x, axis=[1, 2]), nl.min(x, axis=2), nl.prod(x, axis=2), nl.mean(x, axis=(1, 2), keepdims=True),
            nl.var(x, axis=2), nl.softmax(x, axis=-1),
        )  # fmt: skip

    total, top, low, product, mean, var, soft = evaluate(body, a)
    np.testing.assert_allclose(total, a.sum(axis=2, keepdims=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(top[:, 0], a.max(axis=(1, 2)))
    np.testing.assert_allclose(low, a.min(axis=2))
    np.testing.assert_allclose(product, a.prod(axis=2), rtol=1e-5)
    np.testing.assert_allclose(mean, a.mean(axis=(1, 2), keepdims=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var, a.var(axis=2, keepdims=True), rtol=1e-4, atol=1e-6)
    powers = np.exp(a - a.max(axis=2, keepdims=True))
    np.testing.assert_allclose(soft, powers / powers.sum(axis=2, keepdims=True), rtol=1e-5)


def test_norm_where_broadcast_gather_matmul_transpose(evaluate, rng):
    a, w = rng.standard_normal((8, 16)).astype(np.float32), rng.standard_normal((1, 16)).astype(np.float32)
    index = rng.integers(0, 16, (8, 4)).astype(np.uint32)

    def body(x, g, i):
        return (
            nl.rms_norm(x, g, axis=1, n=16), nl.where(nl.greater(x, 0.0), x, -1.0), nl.broadcast_to(g, (8, 16)), nl.gather_flattened(x, i),
            nl.matmul(x, x, transpose_x=True), nl.transpose(x), nl.matmul(x, nl.copy(nl.transpose(x))), nl.copy(x, dtype=nl.bfloat16),
            nl.expand_dims(x, 1), nl.zeros_like(x), nl.full((8, 2), 3, dtype=nl.int32), nl.ones((8, 1), dtype=nl.float32),
        )  # fmt: skip

    got = evaluate(body, a, w, index)
    expected = (
        a / np.sqrt((a * a).mean(axis=1, keepdims=True) + 1e-6) * w, np.where(a > 0, a, -1), np.repeat(w, 8, axis=0),
        np.take_along_axis(a, index.astype(int), axis=1), a.T @ a, a.T, a @ a.T, a, a[:, None], np.zeros_like(a), np.full((8, 2), 3), np.ones((8, 1)),
    )  # fmt: skip
    for value, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(
            value.astype(np.float32), wanted, rtol=1e-2 if value.dtype.itemsize == 2 else 1e-5, atol=1e-5
        )


def test_random_numbers_follow_their_seed(evaluate):
    def body(seed):
        nl.random_seed(seed)
        first = nl.rand((64, 32), dtype=nl.float32)
        nl.random_seed(seed)
        again = nl.rand((64, 32), dtype=nl.float32)
        bits = nl.ndarray((64, 8), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.rng(bits)
        state, later = (nl.ndarray((4, 6), dtype=nl.uint32, buffer=nl.sbuf) for _ in range(2))
        nisa.rand_get_state(state)
        nisa.rand_set_state(state)
        nisa.rand_get_state(later)
        dropped = nl.dropout(nl.ones((64, 64), dtype=nl.float32), 0.25)
        return first, again, bits, state, later, dropped

    first, again, bits, state, later, dropped = evaluate(body, np.array([[11]], np.int32))
    np.testing.assert_array_equal(first, again)
    assert 0 <= first.min() < 0.01
    assert 0.99 < first.max() < 1
    assert abs(first.mean() - 0.5) < 0.03
    assert np.unique(bits).size > 100
    np.testing.assert_array_equal(state, later)
    assert abs((dropped == 0).mean() - 0.25) < 0.04


def test_rand2_on_trn3(evaluate):
    def body(_):
        out = nl.ndarray((16, 16), dtype=nl.float32, buffer=nl.sbuf)
        nisa.rand2(out, -2.0, 3.0)
        return out

    got = evaluate(body, np.zeros((1, 1), np.float32), target="trn3")
    assert -2 <= got.min() < -1
    assert 2 < got.max() <= 3


def test_loads_and_stores(rng):
    from vibeserve.nki import simulate

    a = rng.standard_normal((4, 6)).astype(np.float32)

    def kernel(x):
        out, turned = (
            nl.ndarray((4, 6), dtype=nl.float32, buffer=nl.shared_hbm),
            nl.ndarray((6, 4), dtype=nl.float32, buffer=nl.shared_hbm),
        )
        for i in nl.affine_range(2):
            tile = nl.load(x[nl.ds(2 * i, 2), :])
            nl.store(out[nl.ds(2 * i, 2), :], value=nl.exp(tile))
        nl.store(turned, nl.load_transpose2d(x))
        const = nl.shared_constant(np.full((4, 6), 2, np.float32))
        with nl.no_reorder():
            both = nl.multiply(nl.load(const), nl.load(x))
        twice = nl.empty_like(x, buffer=nl.shared_hbm)
        nl.store(twice, both)
        nl.device_print("twice", both)
        assert nl.is_hbm(x.buffer)
        assert nl.is_sbuf(both.buffer)
        assert nl.is_on_chip(nl.psum)
        assert not nl.is_psum(nl.sbuf)
        assert nl.equal(both, both)
        return out, turned, twice

    out, turned, twice = simulate(kernel)(a)
    np.testing.assert_allclose(out, np.exp(a), rtol=1e-6)
    np.testing.assert_array_equal(turned, a.T)
    np.testing.assert_allclose(twice, 2 * a)


REJECTED = [
    ("S-NLBCAST", lambda x: nl.add(x, x[:, 0:1])),
    ("S-NLPOW", lambda x: nl.power(x, 2.0)),
    ("NKI-OPERAND", lambda x: nl.add(1.0, 2.0)),
    ("S-SPACE", nl.load),
    ("S-NLSEED", lambda x: nl.random_seed(3)),
    ("S-NLSTORE-PSUM", lambda x: nl.store(nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.hbm), nl.transpose(x))),
    ("B2-REDUCE-AXIS", lambda x: nl.sum(x, axis=0)),
    ("V6-LOOPSTEP", lambda x: nl.fori_loop(0, 4, lambda i: None, 0)),
    ("V6-LOOPSTATE", lambda x: nl.fori_loop(0, 4, lambda i: 1)),
    ("V6-LOOPARITH", lambda x: nl.fori_loop(0, 4, lambda i: i + 1)),
    ("V4-INDVAR", lambda x: nl.fori_loop(0, 4, lambda i: nisa.register_move(i, 0))),
    ("B2-REGMOVE-IMM", lambda x: nisa.register_move(nisa.register_alloc(), x)),
    ("NCC_ISIM074", lambda x: nl.fori_loop(0, nisa.register_alloc(), lambda i: None)),
    ("S-SIZE", lambda x: nisa.register_load(nisa.register_alloc(), x)),
    ("S-SIZE", nisa.set_rng_seed),
    ("S-DTYPE", nisa.rng),
    ("S-SIZE", lambda x: nisa.rand_get_state(nl.ndarray((4, 5), dtype=nl.uint32))),
    ("S-GENERATION", lambda x: nisa.rand2(x, 0.0, 1.0)),
    ("S-DTYPE", lambda x: nisa.dropout(nl.zeros((4, 4), dtype=nl.bfloat16), x, 0.5)),
]


@pytest.mark.parametrize(("code", "body"), REJECTED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REJECTED)])
def test_rejected(rejected, code, body):
    rejected(code, body, np.ones((4, 4), np.float32))


def test_division_is_simulated_and_reported(evaluate, rejected, capsys):
    a = np.array([[7.0, -7.0]], np.float32)
    got = evaluate(lambda x: (nl.divide(x, 2.0), nl.mod(x, 3.0), nl.fmod(x, 3.0)), a)
    np.testing.assert_allclose(np.concatenate(got), [[3.5, -3.5], [1, 2], [1, -1]])
    assert "no hardware instruction" in capsys.readouterr().err
    rejected("S-NLDIV", lambda x: nl.divide(x, 2.0), a, strict=True)


def test_names_that_are_gone_say_what_to_write():
    with pytest.raises(AttributeError, match="use slices"):
        nl.arange  # noqa: B018
    with pytest.raises(AttributeError, match="scalar_offset"):
        nisa.tensor_copy_dynamic_src  # noqa: B018


def test_names_of_no_stub_that_a_published_library_uses():
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=nl.bool, buffer=nl.shared_hbm)
        for row in nl.range(x.shape[0]):
            tile = nl.ndarray((1, x.shape[1]), dtype=nl.bool)
            nisa.tensor_scalar(tile, nl.load(x[row : row + 1]), nl.greater, 0.0)
            nl.store(out[row : row + 1], tile)
        return out

    x = np.array([[1, -1], [0, 2]], np.float32)
    np.testing.assert_array_equal(simulate(kernel)(x), x > 0)
    starred: dict = {}
    exec("from vibeserve.nki.language import *", starred)
    assert not {"range", "bool"} & set(starred)
