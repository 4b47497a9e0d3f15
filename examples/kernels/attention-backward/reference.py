"""What the kernel computes, in NumPy."""

import numpy as np


def _weights(q, k, causal, window, scale, bounds=None, sink=None):
    share = q.shape[1] // k.shape[1]
    scores = np.einsum("bhdi,bhdj->bhij", q, np.repeat(k, share, 1)) * scale
    rows, columns = np.indices(scores.shape[2:])
    allowed = np.ones(rows.shape, bool)
    if causal:
        allowed &= columns <= rows
    if window:
        allowed &= rows - columns < window
    allowed = np.broadcast_to(allowed, (len(q), 1, *allowed.shape))
    if bounds is not None:
        low, high = bounds[:, None, :, 0:1], bounds[:, None, :, 1:2]
        allowed = allowed & (columns >= low) & (columns < high)
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    total = np.exp(scores - top).sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink[None, :, None, None] - top)
    lse = np.log(total) + top
    return np.exp(scores - lse), lse[..., 0], share


def prepare(kernel, inputs):
    """Bounds of three packed sequences, where they are asked for; the forward pass gives output and log-sum-exp."""
    if inputs.get("bounds") is not None:
        batch, length = inputs["bounds"].shape[:2]
        edges = np.array([0, length // 3, length // 2, length])
        part = np.searchsorted(edges, np.arange(length), side="right")
        bounds = np.stack([edges[part - 1], edges[part]], -1).astype(np.float32)
        inputs["bounds"] = np.repeat(bounds[None], batch, 0)
    wide = {name: np.asarray(inputs[name], np.float32) for name in ("q", "k", "v")}
    scale = inputs.get("scale") or wide["q"].shape[2] ** -0.5
    extra = (inputs.get("bounds"), inputs.get("sink"))
    weights, lse, share = _weights(wide["q"], wide["k"], inputs.get("causal"), inputs.get("window", 0), scale, *extra)
    out = np.einsum("bhij,bhdj->bhdi", weights, np.repeat(wide["v"], share, 1))
    return {**inputs, "out": out.astype(inputs["q"].dtype), "lse": lse.astype(np.float32)}


def attention_backward(q, k, v, out, d_out, bounds=None, sink=None, causal=False, window=0, scale=0.0):
    """The gradients by their formulas, in float32."""
    q, k, v, out, d_out = (np.asarray(a, np.float32) for a in (q, k, v, out, d_out))
    scale = scale or q.shape[2] ** -0.5
    weights, lse, share = _weights(q, k, causal, window, scale, bounds, sink)
    dv = np.einsum("bhij,bhdi->bhdj", weights, d_out)
    d_weights = np.einsum("bhdi,bhdj->bhij", d_out, np.repeat(v, share, 1))
    projected = (out * d_out).sum(2)
    d_scores = weights * (d_weights - projected[..., None]) * scale
    dq = np.einsum("bhij,bhdj->bhdi", d_scores, np.repeat(k, share, 1))
    dk = np.einsum("bhij,bhdi->bhdj", d_scores, q)
    shape = (k.shape[0], k.shape[1], share, *k.shape[2:])
    gradients = (dq, dk.reshape(shape).sum(2), dv.reshape(shape).sum(2))
    if sink is None:
        return gradients
    return *gradients, -(np.exp(sink[None, :, None] - lse) * projected).sum(-1)
