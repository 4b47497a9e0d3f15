"""What the kernel computes, in NumPy; and the host's part: a CSR matrix expanded."""

import numpy as np
from scipy.sparse import csr_matrix


def expand(matrix):
    """A CSR matrix as (its dense transpose, the columns of non-zero 128 x 128 tiles by row of tiles)."""
    dense = matrix.toarray().astype(np.float32)
    rows, columns = dense.shape
    filled = (dense.reshape(rows // 128, 128, columns // 128, 128) != 0).any((1, 3))
    return np.ascontiguousarray(dense.T), tuple(tuple(int(k) for k in np.flatnonzero(row)) for row in filled)


def prepare(kernel, inputs):
    """Thin the matrix out, and leave the tiles away that `tiles` does not name."""
    a_t = inputs["a_t"] * (np.abs(inputs["a_t"]) > 2)
    keep = np.zeros((a_t.shape[1] // 128, a_t.shape[0] // 128), bool)
    for row, columns in enumerate(inputs["tiles"]):
        keep[row, list(columns)] = True
    a = a_t.T * np.repeat(np.repeat(keep, 128, 0), 128, 1)
    a_t, tiles = expand(csr_matrix(a))
    return {**inputs, "a_t": a_t, "tiles": tiles}


def csr_matmul(a_t, b):
    """A @ B by the sparse product."""
    return np.asarray(csr_matrix(a_t.T) @ b, np.float32)
