"""The scalar engine's functions, scale and bias, and accumulators."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import erf, expit

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl

SQRT2 = math.sqrt(2)
FORMULAS = {
    "copy": lambda x: x, "square": lambda x: x * x, "sigmoid": expit, "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / SQRT2)),
    "gelu_dx": lambda x: 0.5 * (1 + erf(x / SQRT2)) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * expit(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: expit(1.702 * x) * (1 + 1.702 * x * (1 - expit(1.702 * x))),
    "silu": lambda x: x * expit(x), "silu_dx": lambda x: expit(x) * (1 + x * (1 - expit(x))), "tanh": np.tanh,
    "softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))), "erf": erf, "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "exp": np.exp, "log": lambda x: np.log(np.abs(x)), "sin": np.sin, "arctan": np.arctan, "sqrt": lambda x: np.sqrt(np.abs(x)),
    "rsqrt": lambda x: 1 / np.sqrt(np.abs(x)), "reciprocal": lambda x: 1 / x, "sign": np.sign, "abs": np.abs,
}  # fmt: skip
POSITIVE = {"log", "sqrt", "rsqrt"}


def new(shape, dtype="float32"):
    return nl.ndarray(shape, dtype=getattr(nl, dtype), buffer=nl.sbuf)


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_each_function(evaluate, rng, name):
    a = rng.uniform(-3, 3, (16, 33)).astype(np.float32)
    a = np.abs(a) + 0.01 if name in POSITIVE else a

    def body(x):
        out = new(x.shape)
        nisa.activation(dst=out, op=getattr(nl, name), data=x)
        return out

    np.testing.assert_allclose(evaluate(body, a), FORMULAS[name](a.astype(np.float64)), rtol=3e-5, atol=3e-6)


@given(st.integers(1, 128), st.integers(1, 20), st.booleans(), st.booleans(), st.integers(0, 50))
def test_scale_and_bias_come_before_the_function(evaluate, parts, n, tile_scale, tile_bias, seed):
    draw = np.random.default_rng(seed)
    a, s, b = (draw.standard_normal(shape).astype(np.float32) for shape in ((parts, n), (parts, 1), (parts, 1)))

    def body(x, scale, bias):
        out = new(x.shape)
        nisa.activation(out, nl.tanh, x, bias=bias if tile_bias else 0.5, scale=scale if tile_scale else 2)
        return out

    expected = np.tanh(a * (s if tile_scale else np.float32(2)) + (b if tile_bias else np.float32(0.5)))
    np.testing.assert_allclose(evaluate(body, a, s, b), expected, rtol=1e-5, atol=1e-6)


def test_accumulator_commands(evaluate, rng):
    a = rng.standard_normal((8, 5)).astype(np.float32)
    cmd = nisa.reduce_cmd

    def body(x):
        out, first, second, third = new(x.shape), new((8, 1)), new((8, 1)), new((8,))
        nisa.activation(out, nl.exp, x, reduce_op=nl.add, reduce_res=first, reduce_cmd=cmd.reset_reduce)
        nisa.activation(out, nl.exp, x, reduce_op=nl.add, reduce_res=second, reduce_cmd=cmd.reduce)
        nisa.activation_reduce(out, nl.square, x, nl.add, third)
        return first, second, third.reshape((8, 1))

    first, second, third = evaluate(body, a)
    np.testing.assert_allclose(first[:, 0], np.exp(a).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(second, 2 * first, rtol=1e-5)
    np.testing.assert_allclose(third[:, 0], (a * a).sum(axis=1), rtol=1e-5)


def test_exp_of_minus_infinity_is_zero_and_sin_leaves_its_range(evaluate):
    a = np.array([[-np.inf, 0.0, 9.0]], np.float32)

    def body(x):
        power, sine = new(x.shape), new((1, 1))
        nisa.activation(power, nl.exp, x)
        nisa.activation(sine, nl.sin, x[:, 2:3])
        return power, sine

    power, sine = evaluate(body, a)
    np.testing.assert_allclose(power, np.exp(a))
    assert 27.6 < sine[0, 0] < 27.7


def test_activate2_and_exponential_on_trn3(evaluate, rng):
    a = rng.standard_normal((4, 6)).astype(np.float32)

    def body(x):
        out, power, total = new(x.shape), new(x.shape), new((4, 1))
        nisa.activate2(out, nl.prelu, x, 2.0, 1.0, nl.multiply, nl.subtract, relu_param=0.1)
        nisa.exponential(power, x, max_value=1.0, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reset_reduce)
        return out, power, total

    out, power, total = evaluate(body, a, target="trn3")
    staged = a * 2 - 1
    np.testing.assert_allclose(out, np.where(staged >= 0, staged, 0.1 * staged), rtol=1e-5)
    np.testing.assert_allclose(power, np.exp(a - 1), rtol=1e-5)
    np.testing.assert_allclose(total[:, 0], np.exp(a - 1).sum(axis=1), rtol=1e-5)


REJECTED = [
    ("S-ACT-OP", "trn2", lambda x: nisa.activation(x, nl.add, x)),
    ("B2-BIASSHAPE", "trn2", lambda x: nisa.activation(x, nl.exp, x, bias=x)),
    ("S-SCALAROP", "trn2", lambda x: nisa.activation(x, nl.exp, x, scale=x)),
    ("S-DTYPE", "trn2", lambda x: nisa.activation(x, nl.exp, x, scale=nl.zeros((4, 1), dtype=nl.bfloat16))),
    ("S-ACT-BIAS", "trn1", lambda x: nisa.activation(x, nl.exp, x, bias=1.0)),
    ("S-OP", "trn2", lambda x: nisa.activation(x, nl.exp, x, reduce_op=nl.maximum)),
    ("S-GENERATION", "trn2", lambda x: nisa.exponential(x, x)),
    ("S-GENERATION", "trn2", lambda x: nisa.activate2(x, nl.exp, x, 1.0, 1.0, nl.multiply, nl.add)),
    ("S-OP", "trn3", lambda x: nisa.activate2(x, nl.exp, x, 1.0, 1.0, nl.add, nl.add)),
    ("S-REDUCE-CMD", "trn3", lambda x: nisa.exponential(x, x, reduce_init=1.0)),
    ("B1-NUMPY", "trn2", lambda x: nisa.activation(x, np.exp, x)),
    ("S-ELEMENTS", "trn2", lambda x: nisa.activation(x[:, 0:2], nl.exp, x)),
]


@pytest.mark.parametrize(("code", "target", "body"), REJECTED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REJECTED)])
def test_rejected(rejected, code, target, body):
    error = rejected(code, body, np.ones((4, 6), np.float32), target=target)
    if code == "S-GENERATION":
        assert "trn3" in error.rule
