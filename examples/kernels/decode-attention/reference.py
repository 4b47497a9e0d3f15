"""What the kernel computes, in NumPy."""

import numpy as np


def decode_attention(q, k_new, v_new, k_cache, v_cache, position):
    """Append, then attention over the positions up to the new one, in float32."""
    at = int(np.asarray(position).reshape(-1)[0])
    keys, values = np.asarray(k_cache, np.float32), np.asarray(v_cache, np.float32)
    keys[:, :, at] = np.asarray(k_new, np.float32)
    values[:, at, :] = np.asarray(v_new, np.float32)
    groups, depth, _ = keys.shape
    query = np.asarray(q, np.float32).reshape(groups, -1, depth)
    scores = np.einsum("ghd,gds->ghs", query, keys)[:, :, : at + 1] * depth**-0.5
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    out = np.einsum("ghs,gsd->ghd", weights, values[:, : at + 1])
    return out.reshape(-1, depth), keys, values
