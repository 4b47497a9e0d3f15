"""What the kernels compute, in NumPy."""

import numpy as np


def cache_write(cache, rows, start):
    """A slice assignment."""
    cache[int(start[0, 0]) : int(start[0, 0]) + len(rows)] = rows
    return cache


def cache_scatter(cache, rows, slots):
    """Row by row."""
    for row, slot in zip(rows, slots[:, 0], strict=True):
        if slot >= 0:
            cache[slot] = row
    return cache


def prepare(kernel, inputs):
    """Slots differ; every third row has none."""
    if kernel == "cache_scatter":
        slots = np.random.default_rng(5).permutation(len(inputs["cache"]))[: len(inputs["rows"]), None]
        slots[::3] = -1
        inputs = {**inputs, "slots": slots.astype(np.int32)}
    return inputs
