"""What the kernel computes, in NumPy."""

import numpy as np


def dynamic_add(a, b, tiles, out):
    """The sum of the first rows."""
    rows = int(tiles[0, 0]) * 128
    result = np.array(out)
    result[:rows] = (np.asarray(a[:rows], np.float32) + np.asarray(b[:rows], np.float32)).astype(out.dtype)
    return result
