"""What the kernel computes, in NumPy."""

import numpy as np


def adamw(param, grad, m, v, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, step=1):
    """One step in float32."""
    p, g, m, v = (np.asarray(a, np.float32) for a in (param, grad, m, v))
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    update = m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + eps)
    return p * (1 - lr * weight_decay) - lr * update, m, v


def prepare(kernel, inputs):
    """The second moment is not negative."""
    return {**inputs, "v": np.abs(inputs["v"])}
