"""What the kernels compute, in NumPy."""

import numpy as np


def rope_columns(x, cos, sin):
    """The rotation of [d, S] in float32."""
    x, cos, sin = (np.asarray(a, np.float32) for a in (x, cos, sin))
    top, bottom = np.split(x, 2)
    return np.concatenate([top * cos - bottom * sin, bottom * cos + top * sin])


def _heads(x, cos, sin, backward):
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    if backward:
        crossed = x * sin
        return x * cos + np.concatenate([crossed[..., half:], -crossed[..., :half]], -1)
    return x * cos + np.concatenate([-second, first], -1) * sin


def rope_heads(q, k, cos, sin, backward=False):
    """The rotation of all heads, or its transpose, in float32."""
    q, k, cos = (np.asarray(a, np.float32) for a in (q, k, cos))
    cos, sin = np.split(cos, 2, -1) if sin is None else (cos, np.asarray(sin, np.float32))
    return _heads(q, cos, sin, backward), _heads(k, cos, sin, backward)


def prepare(kernel, inputs):
    """Put the argument None where the case leaves the sines out."""
    return {"sin": None, **inputs} if kernel == "rope_heads" else inputs
