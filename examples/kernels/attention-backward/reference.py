"""What the kernel computes, in NumPy."""

import numpy as np


def _weights(q, k, causal, window, scale):
    share = q.shape[1] // k.shape[1]
    scores = np.einsum("bhdi,bhdj->bhij", q, np.repeat(k, share, 1)) * scale
    rows, columns = np.indices(scores.shape[2:])
    allowed = np.ones(rows.shape, bool)
    if causal:
        allowed &= columns <= rows
    if window:
        allowed &= rows - columns < window
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    lse = np.log(np.exp(scores - top).sum(-1, keepdims=True)) + top
    return np.exp(scores - lse), lse[..., 0], share


def prepare(kernel, inputs):
    """The forward pass gives the output and the log-sum-exp."""
    wide = {name: np.asarray(inputs[name], np.float32) for name in ("q", "k", "v")}
    scale = inputs.get("scale") or wide["q"].shape[2] ** -0.5
    weights, lse, share = _weights(wide["q"], wide["k"], inputs.get("causal"), inputs.get("window", 0), scale)
    out = np.einsum("bhij,bhdj->bhdi", weights, np.repeat(wide["v"], share, 1))
    return {**inputs, "out": out.astype(inputs["q"].dtype), "lse": lse.astype(np.float32)}


def attention_backward(q, k, v, out, d_out, causal=False, window=0, scale=0.0):
    """The gradients by their formulas, in float32."""
    q, k, v, out, d_out = (np.asarray(a, np.float32) for a in (q, k, v, out, d_out))
    scale = scale or q.shape[2] ** -0.5
    weights, _, share = _weights(q, k, causal, window, scale)
    dv = np.einsum("bhij,bhdi->bhdj", weights, d_out)
    d_weights = np.einsum("bhdi,bhdj->bhij", d_out, np.repeat(v, share, 1))
    d_scores = weights * (d_weights - (out * d_out).sum(2)[..., None]) * scale
    dq = np.einsum("bhij,bhdj->bhdi", d_scores, np.repeat(k, share, 1))
    dk = np.einsum("bhij,bhdi->bhdj", d_scores, q)
    shape = (k.shape[0], k.shape[1], share, *k.shape[2:])
    return dq, dk.reshape(shape).sum(2), dv.reshape(shape).sum(2)
