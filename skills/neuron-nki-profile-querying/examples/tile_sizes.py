"""One product with its block sizes as arguments: 128 x 512 waits for memory, 512 x 2048 for the Tensor Engine."""

import nki
import nki.isa as nisa
import nki.language as nl

PEAK_FLOPS_PER_S = 78.6e12  # one core of trn2, bfloat16
BANDWIDTH_BYTES_PER_S = 375e9  # its share of HBM


def intensity(m_block, n_block):
    """FLOPs a byte of HBM, results left out: each left element is read N / n_block times, each right one M / m_block times."""
    return m_block * n_block / (m_block + n_block)


def load(source, rows, columns):
    """A block of a matrix in HBM, in SBUF."""
    tile = nl.ndarray((rows.stop - rows.start, columns.stop - columns.start), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[rows, columns])
    return tile


@nki.jit
def matmul(lhs_t, rhs, m_block=128, n_block=512):
    """lhs_t^T @ rhs, each pair of blocks from operands loaded for it.

    Args:
        lhs_t: [K, M] in HBM, K a multiple of 128, M of m_block.
        rhs: [K, N] in HBM, N a multiple of n_block.
        m_block: rows of a block of the result, a multiple of 128.
        n_block: its columns, a multiple of 512.

    Returns:
        [M, N] in HBM, dtype of lhs_t.
    """
    depth, height, width = lhs_t.shape[0], lhs_t.shape[1], rhs.shape[1]
    out = nl.ndarray((height, width), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(0, height, m_block):
        for n in range(0, width, n_block):
            left, right = [], []
            for k in range(0, depth, 128):
                left.append(load(lhs_t, slice(k, k + 128), slice(m, m + m_block)))
                right.append(load(rhs, slice(k, k + 128), slice(n, n + n_block)))
            for i in range(0, m_block, 128):
                row = nl.ndarray((128, n_block), dtype=out.dtype, buffer=nl.sbuf)
                for j in range(0, n_block, 512):
                    product = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
                    for k in range(len(left)):
                        nisa.nc_matmul(dst=product, stationary=left[k][:, i : i + 128], moving=right[k][:, j : j + 512])
                    nisa.tensor_copy(dst=row[:, j : j + 512], src=product)
                nisa.dma_copy(dst=out[m + i : m + i + 128, n : n + n_block], src=row)
    return out
