"""What the kernel computes, in NumPy."""

import numpy as np


def conv2d(x, w, bias, padding=0, stride=1):
    """The convolution by sliding windows, in float32."""
    x, w, bias = (np.asarray(a, np.float32) for a in (x, w, bias))
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[:2], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("ncijab,abco->noij", windows, w) + bias[:, None, None]
