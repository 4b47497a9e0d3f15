"""What the kernels compute, in NumPy."""

import numpy as np


def layernorm(x, gamma, beta, eps=1e-5):
    """LayerNorm of each row in float32."""
    x, gamma, beta = (np.asarray(a, np.float32) for a in (x, gamma, beta))
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + eps) * gamma + beta


layernorm_by_sums = layernorm
