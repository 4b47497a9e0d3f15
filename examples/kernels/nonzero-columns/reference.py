"""What the kernel computes, in NumPy."""

import numpy as np


def nonzero_columns(x, first=None, count=0):
    """flatnonzero, column by column."""
    start = 0 if first is None else int(first[0, 0])
    x = x[:, start : start + (count or x.shape[1])]
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
