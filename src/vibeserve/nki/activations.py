"""The scalar engine's functions on float32. Textbook formulas; where the device only fits a range, `RANGES` says which."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

f32 = np.float32
_SQRT_2_OVER_PI = f32(math.sqrt(2.0 / math.pi))
_HALF, _ONE, _TWO = f32(0.5), f32(1), f32(2)


def _erf(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return erf(x)  # type: ignore[no-any-return]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x)."""
    return _ONE / (_ONE + np.exp(-x))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(f32(0), x)


def _silu_dx(x: np.ndarray) -> np.ndarray:
    s = sigmoid(x)
    return s * (_ONE + x * (_ONE - s))


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    """(1 + erf(x / sqrt 2)) / 2, also where the 1 would swallow erf."""
    from scipy.special import erfc

    return _HALF * erfc(x * f32(-1 / math.sqrt(2)))  # type: ignore[no-any-return]


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * _normal_cdf(x)


def _gelu_dx(x: np.ndarray) -> np.ndarray:
    density = np.exp(-_HALF * x * x) * f32(1 / math.sqrt(2 * math.pi))
    return _normal_cdf(x) + x * density


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(_TWO * _SQRT_2_OVER_PI * (x + f32(0.044715) * x * x * x))  # (1 + tanh u) / 2 = sigmoid(2 u)


def _gelu_sigmoid_dx(x: np.ndarray) -> np.ndarray:
    s = sigmoid(f32(1.702) * x)
    return s + f32(1.702) * x * s * (_ONE - s)


def _sin(x: np.ndarray) -> np.ndarray:
    """sin within ±pi; beyond, the cubic that the fit goes on with (sin(9.0) is about 27.65)."""
    inside = np.abs(x) <= f32(math.pi)
    if inside.all():
        return np.sin(x)
    excess = np.abs(x) - f32(math.pi)
    beyond = -np.sign(x) * (excess - excess * excess * excess / f32(6))
    return np.where(inside, np.sin(x), beyond)


def _same(x: np.ndarray) -> np.ndarray:
    return np.asarray(x)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "copy": _same,
    "square": np.square,
    "sigmoid": sigmoid,
    "relu": lambda x: np.maximum(x, f32(0)),
    "gelu": _gelu,
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(f32(1.702) * x),
    "gelu_apprx_sigmoid_dx": _gelu_sigmoid_dx,
    "silu": lambda x: x * sigmoid(x),
    "silu_dx": _silu_dx,
    "tanh": np.tanh,
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "erf": _erf,
    "erf_dx": lambda x: f32(2 / math.sqrt(math.pi)) * np.exp(-x * x),
    "exp": np.exp,
    "log": np.log,
    "sin": _sin,
    "arctan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: _ONE / np.sqrt(x),
    "reciprocal": lambda x: _ONE / x,
    "sign": np.sign,
    "abs": np.abs,
}

RANGES: dict[str, tuple[float, float]] = {
    "log": (2.0**-64, 2.0**64),
    "sin": (-math.pi, math.pi),
    "arctan": (-math.pi / 2, math.pi / 2),
    "sqrt": (2.0**-116, 2.0**118),
    "rsqrt": (2.0**-87, 2.0**97),
    "reciprocal": (2.0**-42, 2.0**42),  # of the absolute value
}


def activate(name: str, x: np.ndarray, slope: Any = None) -> np.ndarray:
    """The function called `name` on float32; `slope` is prelu's for negative values."""
    if name == "prelu":
        factor = np.asarray(0.0 if slope is None else slope, np.float32)
        return np.where(x >= 0, x, x * factor)
    return FUNCTIONS[name](x)  # type: ignore[no-any-return]
