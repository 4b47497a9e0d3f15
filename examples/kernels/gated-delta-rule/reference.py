"""What the kernel computes, in NumPy."""

import numpy as np


def gated_delta_rule(q, k, v, g, beta, state):
    """The rule, token by token, in float64."""
    q, k, v, g, beta, s = (np.asarray(a, np.float64) for a in (q, k, v, g, beta, state))
    out = np.empty_like(v)
    for t in range(len(q)):
        s = s * np.exp(g[t])
        s = s + np.outer(k[t], (v[t] - s.T @ k[t]) * beta[t])
        out[t] = s.T @ q[t]
    return out, s


def gated_delta_step(q, k, v, g, beta, state):
    """The rule once for each head."""
    pairs = [gated_delta_rule(*(a[h : h + 1] for a in (q, k, v, g, beta)), state[h]) for h in range(len(q))]
    return np.concatenate([out for out, _ in pairs]), np.stack([s for _, s in pairs])


def prepare(kernel, inputs):
    """Keys of length one, decays below zero, rates between 0 and 1, as in a model."""
    k = inputs["k"] / np.linalg.norm(inputs["k"], axis=1, keepdims=True)
    return {**inputs, "k": k, "g": -np.abs(inputs["g"]), "beta": 1 / (1 + np.exp(-inputs["beta"]))}
