"""LayerNorm: y = (x - mean) / sqrt(var + eps) * gamma + beta."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, broadcast_row, kernel_assert, layer_norm_rows

P = 128


@nki.jit
def layernorm(x, gamma, beta, eps=1e-5):
    """LayerNorm of each row, its moments from the batch-norm instructions.

    Args:
        x: [R, H] in HBM, float.
        gamma, beta: (H,) in HBM, float.
        eps: added to the population variance.

    Returns:
        [R, H] in HBM, dtype of x.
    """
    kernel_assert(len(x.shape) == 2, f"x has {len(x.shape)} dimensions, expected 2")
    rows, width = x.shape
    assert_shape(gamma, (width,), "gamma")
    assert_shape(beta, (width,), "beta")
    out = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    gamma_rows = nl.ndarray((P, width), dtype=gamma.dtype, buffer=nl.sbuf)
    broadcast_row(gamma_rows, gamma)
    beta_rows = nl.ndarray((P, width), dtype=beta.dtype, buffer=nl.sbuf)
    broadcast_row(beta_rows, beta)
    for tile in TiledRange(rows, P):
        values = nl.ndarray((tile.size, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=values, src=x[tile.start_offset : tile.end_offset, 0:width])
        normed = nl.ndarray((tile.size, width), dtype=x.dtype, buffer=nl.sbuf)
        layer_norm_rows(normed, values, gamma_rows, beta_rows, eps=eps)
        nisa.dma_copy(dst=out[tile.start_offset : tile.end_offset, 0:width], src=normed)
    return out


@nki.jit
def layernorm_by_sums(x, gamma, beta, eps=1e-5):
    """LayerNorm of each row, its moments from sums of x and of its squares that the scalar engine makes on the way.

    Args:
        x, gamma, beta, eps: as in `layernorm`; the rows' mean is small against their spread.

    Returns:
        [R, H] in HBM, dtype of x.
    """
    rows, width = x.shape
    assert_shape(gamma, (width,), "gamma")
    assert_shape(beta, (width,), "beta")
    out = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    gamma_rows = nl.ndarray((P, width), dtype=gamma.dtype, buffer=nl.sbuf)
    broadcast_row(gamma_rows, gamma)
    beta_rows = nl.ndarray((P, width), dtype=beta.dtype, buffer=nl.sbuf)
    broadcast_row(beta_rows, beta)
    for tile in TiledRange(rows, P):
        values = nl.ndarray((tile.size, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=values, src=x[tile.start_offset : tile.end_offset, 0:width])
        work = nl.ndarray((tile.size, width), dtype=nl.float32, buffer=nl.sbuf)
        mean = row_mean(values, work, nl.copy)
        square = row_mean(values, work, nl.square)
        inverse = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=inverse, data=mean, op0=nl.multiply, operand0=mean, op1=nl.subtract, operand1=square, reverse1=True
        )
        margin = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=margin, value=eps)
        nisa.activation(dst=inverse, op=nl.rsqrt, data=inverse, bias=margin)
        nisa.tensor_scalar(dst=work, data=values, op0=nl.subtract, operand0=mean, op1=nl.multiply, operand1=inverse)
        nisa.tensor_tensor(dst=work, data1=work, data2=gamma_rows[0 : tile.size, 0:width], op=nl.multiply)
        nisa.tensor_tensor(dst=values, data1=work, data2=beta_rows[0 : tile.size, 0:width], op=nl.add)
        nisa.dma_copy(dst=out[tile.start_offset : tile.end_offset, 0:width], src=values)
    return out


def row_mean(values, work, op):
    """The mean of op(values) over each row, as a (P, 1) float32 tile; `work` takes op(values)."""
    rows, width = values.shape
    mean = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=work, op=op, data=values, reduce_op=nl.add, reduce_res=mean, reduce_cmd=nisa.reduce_cmd.reset_reduce
    )
    nisa.tensor_scalar(dst=mean, data=mean, op0=nl.multiply, operand0=1.0 / width)
    return mean
