"""What the kernel computes, in NumPy."""

import numpy as np


def causal_mask(scores, q_offset=0, k_offset=0, fill=-3.4028235e38):
    """A select by index."""
    queries, keys = np.indices(scores.shape)
    return np.where(k_offset + keys <= q_offset + queries, scores, np.float32(fill))
