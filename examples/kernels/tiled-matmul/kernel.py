"""C = A^T B in four stages of optimisation; A comes with its contraction dimension on the rows."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, interleave_copy, kernel_assert

K_TILE = 128
M_TILE = 128
N_TILE = 512
N_BLOCK = 2048
M_BLOCK = 512
K_BLOCK = 1024
HEIGHT = 2048  # rows whose sums fit into SBUF beside the operands; half of it for float32


def check_operands(lhs_t, rhs):
    """Check [K, M] and [K, N]; returns (K, M, N)."""
    kernel_assert(len(lhs_t.shape) == 2 and len(rhs.shape) == 2, "both operands have two dimensions")
    kernel_assert(lhs_t.shape[0] == rhs.shape[0], f"K differs: {lhs_t.shape} and {rhs.shape}")
    return lhs_t.shape[0], lhs_t.shape[1], rhs.shape[1]


def load_tile(source, rows, columns):
    """A tile of a matrix in HBM, in SBUF."""
    tile = nl.ndarray((rows.size, columns.size), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[rows.start_offset : rows.end_offset, columns.start_offset : columns.end_offset])
    return tile


def store_tile(target, rows, columns, product, index=0):
    """A tile of PSUM to a matrix in HBM, cast on the way."""
    tile = nl.ndarray((rows.size, columns.size), dtype=target.dtype, buffer=nl.sbuf)
    interleave_copy(tile, product, index=index)
    nisa.dma_copy(dst=target[rows.start_offset : rows.end_offset, columns.start_offset : columns.end_offset], src=tile)


@nki.jit
def matmul_loads_inside(lhs_t, rhs):
    """Stage 1: both operands are loaded anew for each matmul instruction.

    Args:
        lhs_t: [K, M] in HBM, float.
        rhs: [K, N] in HBM, same dtype.

    Returns:
        lhs_t^T @ rhs, [M, N] in HBM, dtype of lhs_t.
    """
    depth, height, width = check_operands(lhs_t, rhs)
    out = nl.ndarray((height, width), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in TiledRange(height, M_TILE):
        for n in TiledRange(width, N_TILE):
            product = nl.ndarray((m.size, n.size), dtype=nl.float32, buffer=nl.psum)
            for k in TiledRange(depth, K_TILE):
                nisa.nc_matmul(dst=product, stationary=load_tile(lhs_t, k, m), moving=load_tile(rhs, k, n))
            store_tile(out, m, n, product)
    return out


@nki.jit
def matmul_hoisted(lhs_t, rhs):
    """Stage 2: the tiles of lhs_t for a row of C are loaded once, before the loop over its columns.

    Args:
        lhs_t, rhs: as in `matmul_loads_inside`.

    Returns:
        lhs_t^T @ rhs, [M, N] in HBM, dtype of lhs_t.
    """
    depth, height, width = check_operands(lhs_t, rhs)
    out = nl.ndarray((height, width), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in TiledRange(height, M_TILE):
        left = []
        for k in TiledRange(depth, K_TILE):
            left.append(load_tile(lhs_t, k, m))
        for n in TiledRange(width, N_TILE):
            product = nl.ndarray((m.size, n.size), dtype=nl.float32, buffer=nl.psum)
            for k in TiledRange(depth, K_TILE):
                nisa.nc_matmul(dst=product, stationary=left[k.index], moving=load_tile(rhs, k, n))
            store_tile(out, m, n, product)
    return out


@nki.jit
def matmul_blocked_free(lhs_t, rhs):
    """Stage 3: M and N in blocks; within a pair of blocks each operand is loaded once, in wide rows.

    Args:
        lhs_t, rhs: as in `matmul_loads_inside`; K times a block of both operands fits into SBUF.

    Returns:
        lhs_t^T @ rhs, [M, N] in HBM, dtype of lhs_t.
    """
    depth, height, width = check_operands(lhs_t, rhs)
    out = nl.ndarray((height, width), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m_block in TiledRange(height, M_BLOCK):
        left = []
        for k in TiledRange(depth, K_TILE):
            left.append(load_tile(lhs_t, k, m_block))
        for n_block in TiledRange(width, N_BLOCK):
            right = []
            for k in TiledRange(depth, K_TILE):
                right.append(load_tile(rhs, k, n_block))
            for m in TiledRange(m_block.size, M_TILE):
                row = nl.ndarray((m.size, n_block.size), dtype=out.dtype, buffer=nl.sbuf)
                for n in TiledRange(n_block.size, N_TILE):
                    product = nl.ndarray((m.size, n.size), dtype=nl.float32, buffer=nl.psum)
                    for k in range(len(left)):
                        nisa.nc_matmul(
                            dst=product,
                            stationary=left[k][:, m.start_offset : m.end_offset],
                            moving=right[k][:, n.start_offset : n.end_offset],
                        )
                    interleave_copy(row[:, n.start_offset : n.end_offset], product, index=n.index)
                first = m_block.start_offset + m.start_offset
                nisa.dma_copy(dst=out[first : first + m.size, n_block.start_offset : n_block.end_offset], src=row)
    return out


@nki.jit
def matmul_blocked_all(lhs_t, rhs):
    """Stage 4: K is blocked too; sums over K blocks are kept in SBUF in float32, so any K fits.

    The last K block adds to the sum on its way to the result, and each row of tiles is stored as soon as it is whole.

    Args:
        lhs_t, rhs: as in `matmul_loads_inside`, of any size.

    Returns:
        lhs_t^T @ rhs, [M, N] in HBM, dtype of lhs_t.
    """
    depth, height, width = check_operands(lhs_t, rhs)
    out = nl.ndarray((height, width), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for part in TiledRange(height, HEIGHT // 2 if lhs_t.dtype == nl.float32 else HEIGHT):
        for n_block in TiledRange(width, N_BLOCK):
            sums = [None] * len(TiledRange(part, M_TILE))
            for k_block in TiledRange(depth, K_BLOCK):
                right = []
                for k in TiledRange(k_block, K_TILE):
                    right.append(load_tile(rhs, k, n_block))
                for m_block in TiledRange(part, M_BLOCK):
                    left = []
                    for k in TiledRange(k_block, K_TILE):
                        left.append(load_tile(lhs_t, k, m_block))
                    for m in TiledRange(m_block, M_TILE):
                        last = k_block.end_offset == depth
                        dtype = out.dtype if last else nl.float32
                        row = nl.ndarray((m.size, n_block.size), dtype=dtype, buffer=nl.sbuf)
                        at = (m.start_offset - part.start_offset) // M_TILE
                        add_block(row, sums[at], left, right, m.start_offset - m_block.start_offset)
                        sums[at] = row
                        if last:
                            nisa.dma_copy(
                                dst=out[m.start_offset : m.end_offset, n_block.start_offset : n_block.end_offset],
                                src=row,
                            )
    return out


def add_block(row, before, left, right, column):
    """row = before + the product of one K block, for the rows of C from `column` of the left tiles on; `before` is None for
    the first block."""
    rows, width = row.shape
    for n in TiledRange(width, N_TILE):
        product = nl.ndarray((rows, n.size), dtype=nl.float32, buffer=nl.psum)
        for k in range(len(left)):
            nisa.nc_matmul(
                dst=product,
                stationary=left[k][:, column : column + rows],
                moving=right[k][:, n.start_offset : n.end_offset],
            )
        target = row[0:rows, n.start_offset : n.end_offset]
        if before == None:
            interleave_copy(target, product, index=n.index)
        else:
            nisa.tensor_tensor(
                dst=target, data1=product, data2=before[0:rows, n.start_offset : n.end_offset], op=nl.add
            )
