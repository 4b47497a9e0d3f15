"""What the kernel computes, in NumPy."""

import numpy as np


def rmsnorm_partitions(x, gamma, eps=1e-6, hidden=0, strided=False):
    """RMSNorm in float32, then the layout."""
    x = np.asarray(x, np.float32)
    y = x / np.sqrt((x * x).sum(-1, keepdims=True) / (hidden or x.shape[1]) + eps) * np.asarray(gamma, np.float32)
    if strided:
        return y.reshape(x.shape[0], -1, 128).transpose(2, 0, 1)
    return y.reshape(x.shape[0], 128, -1).transpose(1, 0, 2)


def rmsnorm_partitions_split(x, gamma, eps=1e-6):
    """The same values."""
    return rmsnorm_partitions(x, gamma, eps)
