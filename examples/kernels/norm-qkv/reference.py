"""What the kernel computes, in NumPy."""

import numpy as np


def norm_qkv(x, gamma, weight, bias, attention=None, mlp=None, norm="rms", heads=0, eps=1e-6):
    """Residuals, norm and projection in float32."""
    x, gamma, weight, bias = (np.asarray(a, np.float32) for a in (x, gamma, weight, bias))
    for residual in (attention, mlp):
        if residual is not None:
            x = x + np.asarray(residual, np.float32)
    if norm == "rms":
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gamma
    elif norm == "layer":
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * gamma
    out = x @ weight + bias
    if heads:
        out = out.reshape(*out.shape[:2], heads, -1).transpose(2, 0, 1, 3)
    return out
