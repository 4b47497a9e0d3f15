"""What the kernel computes, in NumPy."""

import numpy as np


def cumsum(x):
    """The running sum along the last axis, in float64."""
    return np.cumsum(np.asarray(x, np.float64), axis=-1)
