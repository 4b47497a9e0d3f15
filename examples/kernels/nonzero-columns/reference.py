"""What the kernel computes, in NumPy."""

import numpy as np


def nonzero_columns(x):
    """flatnonzero, column by column."""
    indices = np.full((x.shape[1], x.shape[0]), -1)
    counts = np.zeros((x.shape[1], 1), int)
    for column in range(x.shape[1]):
        found = np.flatnonzero(x[:, column])
        indices[column, : len(found)] = found
        counts[column] = len(found)
    return indices, counts


def prepare(kernel, inputs):
    """Most elements are zero."""
    return {**inputs, "x": inputs["x"] * (inputs["x"] > 1)}
