"""What the kernel computes, in NumPy."""

import numpy as np


def gated_mlp(x, w_gate, w_up, w_down):
    """(silu(x Wg) * (x Wu)) Wd in float32."""
    x, w_gate, w_up, w_down = (np.asarray(a, np.float32) for a in (x, w_gate, w_up, w_down))
    gate = x @ w_gate
    return (gate / (1 + np.exp(-gate)) * (x @ w_up)) @ w_down
