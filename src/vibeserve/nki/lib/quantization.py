"""Quantisation to fp8 with one float32 scale a row, and back."""

from __future__ import annotations

from typing import Any

from vibeserve.nki.lib.binding import nisa, nl
from vibeserve.nki.lib.checks import kernel_assert
from vibeserve.nki.lib.helpers import get_max_positive_value_for_dtype

SMALLEST_SCALE = 1e-30  # a row of zeros gets this one, so that nothing is divided by zero


def quantize_rows(dst: Any, scales: Any, x: Any) -> None:
    """dst = x / scale, rounded to fp8, with scale = max|x| of the row / the type's largest value.

    Args:
        dst: [P, F] fp8 in SBUF.
        scales: (P, 1) float32 in SBUF; x is about dst * scales.
        x: [P, F] float in SBUF or PSUM.
    """
    kernel_assert(dst.shape == x.shape, f"quantize_rows: {x.shape} to {dst.shape}")
    rows = x.shape[0]
    largest = get_max_positive_value_for_dtype(dst.dtype)
    magnitude = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=magnitude, op=nl.abs, data=x)
    nisa.tensor_reduce(dst=scales, op=nl.maximum, data=magnitude, axis=1)
    nisa.tensor_scalar(
        dst=scales, data=scales, op0=nl.multiply, operand0=1.0 / largest, op1=nl.maximum, operand1=SMALLEST_SCALE
    )
    inverse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=scales)
    scaled = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=scaled, data=x, op0=nl.multiply, operand0=inverse, op1=nl.minimum, operand1=largest)
    nisa.tensor_scalar(dst=dst, data=scaled, op0=nl.maximum, operand0=-largest)


def dequantize_rows(dst: Any, x: Any, scales: Any) -> None:
    """dst = x * scales: fp8 [P, F] with (P, 1) scales to any float dtype."""
    kernel_assert(dst.shape == x.shape, f"dequantize_rows: {x.shape} to {dst.shape}")
    nisa.tensor_scalar(dst=dst, data=x, op0=nl.multiply, operand0=scales)


def quantize_static(dst: Any, x: Any, scale: float) -> None:
    """dst = x / scale, clipped to the range of the fp8 dtype of `dst`, with a scale known beforehand."""
    largest = get_max_positive_value_for_dtype(dst.dtype)
    scaled = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=scaled, data=x, op0=nl.multiply, operand0=1.0 / scale, op1=nl.minimum, operand1=largest)
    nisa.tensor_scalar(dst=dst, data=scaled, op0=nl.maximum, operand0=-largest)
