"""The MLP block of V-JEPA 2 ViT-L: out = gelu(x W1 + b1) W2 + b2, fused and unfused, rows split over the cores."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import (
    TiledRange,
    assert_shape,
    interleave_copy,
    kernel_assert,
    shard_bounds,
    stream_shuffle_broadcast,
    transpose_tile,
)

P = 128  # partitions
N = 512  # float32 columns of a PSUM bank
F_BLOCK = 1024  # hidden columns of W1 that are on chip at once


def check_shapes(x, w1, b1, w2, b2):
    """Check what both kernels ask of their inputs; returns (rows, width, hidden)."""
    rows, width = x.shape
    hidden = w1.shape[1]
    kernel_assert(width % P == 0 and hidden % P == 0, f"width {width} and hidden {hidden} are multiples of {P}")
    kernel_assert(hidden // P <= P, f"hidden {hidden} is at most {P * P}")
    assert_shape(w1, (width, hidden), "w1")
    assert_shape(b1, (hidden,), "b1")
    assert_shape(w2, (hidden, width), "w2")
    assert_shape(b2, (width,), "b2")
    return rows, width, hidden


def load_rows_transposed(x, first, last, width):
    """x[first:last]^T as [128, width / 128, rows] in SBUF, by transposes on the tensor engine."""
    turned = nl.ndarray((P, width // P, last - first), dtype=x.dtype, buffer=nl.sbuf)
    for rows in TiledRange(last - first, P):
        straight = nl.ndarray((rows.size, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=straight, src=x[first + rows.start_offset : first + rows.end_offset, 0:width])
        for k in range(width // P):
            target = turned[0:P, k, rows.start_offset : rows.end_offset]
            transpose_tile(target, straight[0 : rows.size, k * P : (k + 1) * P], index=k)
    return turned


def load_weight(w, first, last):
    """w[:, first:last] of a weight in HBM as [128, rows / 128, columns] in SBUF."""
    tiles = w.shape[0] // P
    block = nl.ndarray((P, tiles, last - first), dtype=w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=block, src=w.reshape((tiles, P, w.shape[1])).permute((1, 0, 2))[0:P, 0:tiles, first:last])
    return block


def load_columns(bias):
    """A bias of n * 128 elements as [128, n] float32: element j * 128 + p lies at [p, j]."""
    count = bias.shape[0] // P
    rows = nl.ndarray((count, P), dtype=bias.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=bias.reshape((count, P)))
    columns = nl.ndarray((P, count), dtype=nl.float32, buffer=nl.sbuf)
    transpose_tile(columns, rows)
    return columns


def load_row(bias):
    """A bias as [128, n] with the same row in each partition: one row from HBM, then shuffles."""
    row = nl.ndarray((1, bias.shape[0]), dtype=bias.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=bias.reshape((1, bias.shape[0])))
    rows = nl.ndarray((P, bias.shape[0]), dtype=bias.dtype, buffer=nl.sbuf)
    stream_shuffle_broadcast(row, rows)
    return rows


@nki.jit
def fused_mlp(x, w1, b1, w2, b2):
    """The whole block in one kernel; the GELU's output stays in SBUF.

    The first product makes g^T (hidden on the partitions), so that b1 is the activation's bias and g^T is the second
    product's stationary operand as it lies. Each core reads both weights once, and its own rows.

    Args:
        x: [R, D] in HBM, bfloat16 (or another 2-byte float).
        w1, b1: [D, F] and (F,).
        w2, b2: [F, D] and (D,). D and F are multiples of 128.

    Returns:
        [R, D] in HBM, dtype of x.
    """
    total, width, hidden = check_shapes(x, w1, b1, w2, b2)
    out = nl.ndarray((total, width), dtype=x.dtype, buffer=nl.shared_hbm)
    first, last = shard_bounds(total)
    rows = last - first
    x_t = load_rows_transposed(x, first, last, width)
    b1_columns = load_columns(b1)
    g_t = nl.ndarray((P, hidden // P, rows), dtype=x.dtype, buffer=nl.sbuf)
    for block in TiledRange(hidden, F_BLOCK):
        weight = load_weight(w1, block.start_offset, block.end_offset)
        for tile in TiledRange(block, P):
            f = tile.start_offset // P
            for part in TiledRange(rows, N):
                h_t = nl.ndarray((P, part.size), dtype=nl.float32, buffer=nl.psum)
                for k in range(width // P):
                    nisa.nc_matmul(
                        dst=h_t,
                        stationary=weight[0:P, k, tile.index * P : (tile.index + 1) * P],
                        moving=x_t[0:P, k, part.start_offset : part.end_offset],
                    )
                nisa.activation(
                    dst=g_t[0:P, f, part.start_offset : part.end_offset],
                    op=nl.gelu,
                    data=h_t,
                    bias=b1_columns[0:P, f : f + 1],
                )
    blocks = []
    for block in TiledRange(hidden, F_BLOCK):
        blocks.append(load_weight(w2[block.start_offset : block.end_offset, 0:width], 0, width))
    b2_rows = load_row(b2)
    for tile in TiledRange(rows, P):
        result = nl.ndarray((tile.size, width), dtype=x.dtype, buffer=nl.sbuf)
        for part in TiledRange(width, N):
            y = nl.ndarray((tile.size, part.size), dtype=nl.float32, buffer=nl.psum)
            for f in range(hidden // P):
                nisa.nc_matmul(
                    dst=y,
                    stationary=g_t[0:P, f, tile.start_offset : tile.end_offset],
                    moving=blocks[f * P // F_BLOCK][0:P, f % (F_BLOCK // P), part.start_offset : part.end_offset],
                )
            columns = slice(part.start_offset, part.end_offset)
            nisa.tensor_tensor(
                dst=result[0 : tile.size, columns], data1=y, data2=b2_rows[0 : tile.size, columns], op=nl.add
            )
        nisa.dma_copy(dst=out[first + tile.start_offset : first + tile.end_offset, 0:width], src=result)
    return out


def project(x, weight, out, first, last, bias=None):
    """out[first:last] = x[first:last] @ weight (+ bias), all three in HBM, the rows of x transposed on chip."""
    depth, columns = weight.shape
    tiles = load_weight(weight, 0, columns)
    bias_rows = None
    if bias != None:
        bias_rows = load_row(bias)
    for tile in TiledRange(last - first, P):
        start = first + tile.start_offset
        x_t = load_rows_transposed(x, start, start + tile.size, depth)
        result = nl.ndarray((tile.size, columns), dtype=out.dtype, buffer=nl.sbuf)
        for part in TiledRange(columns, N):
            y = nl.ndarray((tile.size, part.size), dtype=nl.float32, buffer=nl.psum)
            span = slice(part.start_offset, part.end_offset)
            for k in range(depth // P):
                nisa.nc_matmul(dst=y, stationary=x_t[0:P, k, 0 : tile.size], moving=tiles[0:P, k, span])
            if bias_rows == None:
                interleave_copy(result[0 : tile.size, span], y, index=part.index)
            else:
                nisa.tensor_tensor(
                    dst=result[0 : tile.size, span], data1=y, data2=bias_rows[0 : tile.size, span], op=nl.add
                )
        nisa.dma_copy(dst=out[start : start + tile.size, 0:columns], src=result)


def gelu_rows(h, bias, g, first, last):
    """g[first:last] = gelu(h[first:last] + bias), both in HBM."""
    columns = h.shape[1]
    bias_rows = load_row(bias)
    for tile in TiledRange(last - first, P):
        span = slice(first + tile.start_offset, first + tile.end_offset)
        rows = nl.ndarray((tile.size, columns), dtype=h.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=h[span, 0:columns])
        biased = nl.ndarray((tile.size, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=biased, data1=rows, data2=bias_rows[0 : tile.size, 0:columns], op=nl.add)
        nisa.activation(dst=rows, op=nl.gelu, data=biased)
        nisa.dma_copy(dst=g[span, 0:columns], src=rows)


@nki.jit
def unfused_mlp(x, w1, b1, w2, b2):
    """The block as three steps that each go out to HBM, as a compiler without fusion would run it.

    h and g cross the memory four times; x and g are transposed on the tensor engine before their products.

    Args:
        x, w1, b1, w2, b2: as in `fused_mlp`.

    Returns:
        [R, D] in HBM, dtype of x.
    """
    total, width, hidden = check_shapes(x, w1, b1, w2, b2)
    out = nl.ndarray((total, width), dtype=x.dtype, buffer=nl.shared_hbm)
    h = nl.ndarray((total, hidden), dtype=x.dtype, buffer=nl.private_hbm)
    g = nl.ndarray((total, hidden), dtype=x.dtype, buffer=nl.private_hbm)
    first, last = shard_bounds(total)
    project(x, w1, h, first, last)
    gelu_rows(h, b1, g, first, last)
    project(g, w2, out, first, last, bias=b2)
    return out
