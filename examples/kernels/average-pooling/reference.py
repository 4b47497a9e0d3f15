"""What the kernel computes, in NumPy."""

import numpy as np


def average_pooling(x, window=2):
    """The mean of each patch in float32."""
    c, h, w = x.shape
    return np.asarray(x, np.float32).reshape(c, h // window, window, w // window, window).mean((2, 4))
