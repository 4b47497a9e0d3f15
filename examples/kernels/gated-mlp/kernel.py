"""The gated MLP of Llama-like models: out = (silu(x Wg) * (x Wu)) Wd."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, interleave_copy, kernel_assert, shard_bounds, transpose_tile

P = 128
N = 512


@nki.jit
def gated_mlp(x, w_gate, w_up, w_down):
    """The whole MLP in one kernel, rows split over the cores; the gated product stays in SBUF.

    The hidden dimension lies on the partitions, so that its tiles are the last product's stationary operand as they are.

    Args:
        x: [R, D] in HBM, a 2-byte float (or float32 for small sizes).
        w_gate, w_up: [D, F] in HBM, same dtype.
        w_down: [F, D] in HBM, same dtype. D and F are multiples of 128.

    Returns:
        [R, D] in HBM, dtype of x.
    """
    total, width = x.shape
    hidden = w_gate.shape[1]
    kernel_assert(width % P == 0 and hidden % P == 0, f"width {width} and hidden {hidden} are multiples of {P}")
    assert_shape(w_gate, (width, hidden), "w_gate")
    assert_shape(w_up, (width, hidden), "w_up")
    assert_shape(w_down, (hidden, width), "w_down")
    out = nl.ndarray((total, width), dtype=x.dtype, buffer=nl.shared_hbm)
    first, last = shard_bounds(total)
    for rows in TiledRange(last - first, N):
        start = first + rows.start_offset
        x_t = transposed_rows(x[start : start + rows.size, 0:width])
        gated = nl.ndarray((P, hidden // P, rows.size), dtype=x.dtype, buffer=nl.sbuf)
        for f in TiledRange(hidden, P):
            gate = hidden_tile(x_t, w_gate[0:width, f.start_offset : f.end_offset])
            up = hidden_tile(x_t, w_up[0:width, f.start_offset : f.end_offset])
            active = nl.ndarray((P, rows.size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=active, op=nl.silu, data=gate)
            nisa.tensor_tensor(dst=gated[0:P, f.index, 0 : rows.size], data1=active, data2=up, op=nl.multiply)
        for columns in TiledRange(width, N):
            weight = column_block(w_down[0:hidden, columns.start_offset : columns.end_offset])
            for part in TiledRange(rows.size, P):
                product = nl.ndarray((part.size, columns.size), dtype=nl.float32, buffer=nl.psum)
                for f in range(hidden // P):
                    nisa.nc_matmul(
                        dst=product,
                        stationary=gated[0:P, f, part.start_offset : part.end_offset],
                        moving=weight[0:P, f, 0 : columns.size],
                    )
                result = nl.ndarray((part.size, columns.size), dtype=x.dtype, buffer=nl.sbuf)
                interleave_copy(result, product, index=part.index)
                nisa.dma_copy(
                    dst=out[
                        start + part.start_offset : start + part.end_offset,
                        columns.start_offset : columns.end_offset,
                    ],
                    src=result,
                )
    return out


def column_block(weight):
    """A [K, n] piece of a weight in HBM as [128, K / 128, n] in SBUF."""
    depth, columns = weight.shape
    block = nl.ndarray((P, depth // P, columns), dtype=weight.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=block, src=weight.reshape_dim(0, (depth // P, P)).permute((1, 0, 2)))
    return block


def hidden_tile(x_t, weight):
    """weight^T x^T for 128 hidden columns: [128, rows] in PSUM."""
    tiles, rows = x_t.shape[1], x_t.shape[2]
    block = column_block(weight)
    product = nl.ndarray((P, rows), dtype=nl.float32, buffer=nl.psum)
    for k in range(tiles):
        nisa.nc_matmul(dst=product, stationary=block[0:P, k, 0:P], moving=x_t[0:P, k, 0:rows])
    return product


def transposed_rows(x):
    """x [R, D] in HBM as [128, D / 128, R] in SBUF."""
    rows, width = x.shape
    turned = nl.ndarray((P, width // P, rows), dtype=x.dtype, buffer=nl.sbuf)
    for part in TiledRange(rows, P):
        straight = nl.ndarray((part.size, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=straight, src=x[part.start_offset : part.end_offset, 0:width])
        for k in range(width // P):
            target = turned[0:P, k, part.start_offset : part.end_offset]
            transpose_tile(target, straight[0 : part.size, k * P : (k + 1) * P], index=k)
    return turned
