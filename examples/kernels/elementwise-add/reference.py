"""What the kernels compute, in NumPy."""

import numpy as np


def add(a, b):
    """The sum, rounded once."""
    return (np.asarray(a, np.float32) + np.asarray(b, np.float32)).astype(a.dtype)


add_in_place = add
