"""What the kernels compute, in NumPy."""

import numpy as np


def _chosen(scores, k):
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    mask = np.zeros_like(scores)
    np.put_along_axis(mask, order, 1, 1)
    return order, mask


def router_topk(x, w, bias, k=4, sigmoid=False, renormalise=False):
    """Logits, scattered affinities and indices in float32."""
    x, w, bias = (np.asarray(a, np.float32) for a in (x, w, bias))
    logits = x @ w + bias
    powers = np.exp(logits - logits.max(1, keepdims=True))
    shares = 1 / (1 + np.exp(-logits)) if sigmoid else powers / powers.sum(1, keepdims=True)
    order, mask = _chosen(logits, k)
    chosen = shares * mask
    if renormalise:
        chosen = chosen / chosen.sum(1, keepdims=True)
    return logits, chosen, order


def router_topk_into(x, w, bias, k=4, sigmoid=False):
    """The same values."""
    return router_topk(x, w, bias, k, sigmoid)


def dispatch(x, scores, k=2, capacity=32):
    """Rows by expert, and the row of each token."""
    tokens, experts = scores.shape
    order, _ = _chosen(np.asarray(scores), k)
    out = np.zeros((experts * capacity, x.shape[1]), np.float32)
    where = np.full((tokens, experts), -1)
    used = [0] * experts
    for token in range(tokens):
        for expert in order[token]:
            if used[expert] < capacity:
                where[token, expert] = expert * capacity + used[expert]
                out[where[token, expert]] = np.asarray(x[token], np.float32)
            used[expert] += 1
    return out, where
