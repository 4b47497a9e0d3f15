"""What the kernel computes, in NumPy."""

import ml_dtypes
import numpy as np


def values(codes, scales):
    """Elements of four fp8 values and their exponents as [K, 4, F] float32."""
    k, f = codes.shape
    lanes = np.ascontiguousarray(codes).view(np.uint8).reshape(k, f, 4).view(ml_dtypes.float8_e4m3fn)
    powers = np.ldexp(np.float32(1), np.asarray(scales).view(np.uint8).astype(int) - 127)
    return lanes.astype(np.float32) * np.repeat(powers, 8, 0)[:, :, None]


def mx_matmul(left, left_scale, right, right_scale):
    """The product of the values."""
    return np.einsum("kmq,knq->mn", values(left, left_scale), values(right, right_scale))


def prepare(kernel, inputs):
    """Codes of ordinary numbers, and exponents near one."""
    generator = np.random.default_rng(3)
    for name in ("left", "right"):
        shape = inputs[name].shape
        numbers = generator.standard_normal((*shape, 4)).astype(ml_dtypes.float8_e4m3fn)
        inputs[name] = numbers.view(np.uint32).reshape(shape)
        inputs[f"{name}_scale"] = generator.integers(120, 134, inputs[f"{name}_scale"].shape).astype(np.uint8)
    return inputs
