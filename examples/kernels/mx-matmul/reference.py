"""What the kernel computes, in NumPy."""

import ml_dtypes
import numpy as np


def values(codes, scales):
    """Elements of four fp8 (or fp4) values and their exponents as [K, F, 4] float32."""
    k, f = codes.shape
    if codes.dtype == np.uint16:
        nibbles = (codes[:, :, None] >> np.arange(0, 16, 4, dtype=np.uint16)) & 15
        lanes = nibbles.astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    else:
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
        if inputs[name].dtype == np.uint32:
            inputs[name] = numbers.view(np.uint32).reshape(shape)
        else:
            inputs[name] = generator.integers(0, 1 << 16, shape).astype(np.uint16)
        inputs[f"{name}_scale"] = generator.integers(120, 134, inputs[f"{name}_scale"].shape).astype(np.uint8)
    return inputs
