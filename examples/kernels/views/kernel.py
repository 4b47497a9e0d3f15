"""Views of tensors: the same bytes under other shapes, orders and dtypes, and an index that is known at run time."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TensorView, assert_shape, kernel_assert


@nki.jit
def interleaved_heads(x, heads):
    """Every second column of each head, with head and column swapped: a chain of split, slice and permute in SBUF.

    Args:
        x: [P, heads * C] in HBM, P at most 128, C even.
        heads: parts of a row.

    Returns:
        [P, C / 2, heads] in HBM: out[p, c, h] = x[p, h * C + 2 c].
    """
    partitions, columns = x.shape
    kernel_assert(columns % (2 * heads) == 0, f"{columns} columns in {heads} heads of an even width")
    tile = nl.ndarray((partitions, columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    width = columns // heads
    view = TensorView(tile).reshape_dim(1, (heads, width)).slice(2, 0, width, 2).permute((0, 2, 1))
    turned = nl.ndarray((partitions, width // 2, heads), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=turned, src=view.get_view())
    out = nl.ndarray((partitions, width // 2, heads), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=turned)
    return out


@nki.jit
def outer_sum(column, row):
    """column[p, a] + row[p, b] for all a and b, by broadcasts of size-1 dimensions.

    Args:
        column: [P, A] in HBM, P at most 128.
        row: [P, B] in HBM, same dtype.

    Returns:
        [P, A, B] in HBM.
    """
    partitions, height = column.shape
    width = row.shape[1]
    assert_shape(row, (partitions, width), "row")
    left = nl.ndarray((partitions, height), dtype=column.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=column)
    right = nl.ndarray((partitions, width), dtype=row.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=right, src=row)
    total = nl.ndarray((partitions, height, width), dtype=column.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=total,
        data1=TensorView(left).expand_dim(2).broadcast(2, width).get_view(),
        data2=TensorView(right).expand_dim(1).broadcast(1, height).get_view(),
        op=nl.add,
    )
    out = nl.ndarray((partitions, height, width), dtype=column.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=total)
    return out


@nki.jit
def select_expert(weights, index):
    """One matrix of several, chosen by an index that lies in memory.

    Args:
        weights: [E, P, F] in HBM, P at most 128.
        index: (1, 1) int32 in HBM, below E.

    Returns:
        weights[index], [P, F] in HBM.
    """
    _, partitions, columns = weights.shape
    assert_shape(index, (1, 1), "index")
    chosen = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=chosen, src=index)
    tile = nl.ndarray((partitions, columns), dtype=weights.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=TensorView(weights).select(0, chosen).get_view())
    out = nl.ndarray((partitions, columns), dtype=weights.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def bytes_of(x):
    """The four bytes of each float32, lowest first: a view under another dtype, no conversion.

    Args:
        x: [P, F] float32 in HBM, P at most 128.

    Returns:
        [P, 4 F] uint8 in HBM.
    """
    kernel_assert(x.dtype == nl.float32, f"x is {x.dtype}, expected float32")
    partitions, columns = x.shape
    tile = nl.ndarray((partitions, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray((partitions, 4 * columns), dtype=nl.uint8, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile.view(nl.uint8))
    return out
