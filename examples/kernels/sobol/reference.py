"""What the kernel computes, in NumPy."""

import numpy as np


def sobol(directions, count=1024):
    """The xor, index by index."""
    out = np.zeros((directions.shape[0], count), np.uint32)
    for n in range(count):
        gray = n ^ (n >> 1)
        for bit in range(directions.shape[1]):
            if gray >> bit & 1:
                out[:, n] ^= directions[:, bit]
    return ((out >> 8) * 2.0**-24).astype(np.float32)
