"""What the kernel computes, in NumPy."""

import numpy as np


def attention_two_pass(q, k, v, scale=1.0):
    """Attention by its formula, in float32."""
    q, k, v = (np.asarray(a, np.float32) for a in (q, k, v))
    scores = scale * (q.T @ k)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True) @ v.T
