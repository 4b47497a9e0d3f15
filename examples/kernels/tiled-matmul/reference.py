"""What the kernels compute, in NumPy."""

import numpy as np


def matmul_loads_inside(lhs_t, rhs):
    """lhs_t^T @ rhs in float32."""
    return np.asarray(lhs_t, np.float32).T @ np.asarray(rhs, np.float32)


matmul_hoisted = matmul_blocked_free = matmul_blocked_all = matmul_loads_inside
