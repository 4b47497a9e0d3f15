"""One step of the AdamW optimiser."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert, shard_bounds

P = 128
F = 2048


@nki.jit
def adamw(param, grad, m, v, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, step=1):
    """m' = b1 m + (1 - b1) g; v' = b2 v + (1 - b2) g^2; p' = p (1 - lr wd) - lr m'/c1 / (sqrt(v'/c2) + eps).

    Args:
        param, grad: [R, C] in HBM, float; rows are split over the cores.
        m, v: [R, C] float32 in HBM: the moments; v is not negative.
        lr, beta1, beta2, eps, weight_decay: as above.
        step: counted from 1; c1 = 1 - beta1^step, c2 = 1 - beta2^step.

    Returns:
        param' (dtype of param), m' and v' (float32), each [R, C] in HBM.
    """
    rows, columns = param.shape
    kernel_assert(step >= 1, f"step {step}, counted from 1")
    for name, tensor in (("grad", grad), ("m", m), ("v", v)):
        assert_shape(tensor, (rows, columns), name)
    new_param = nl.ndarray((rows, columns), dtype=param.dtype, buffer=nl.shared_hbm)
    new_m = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    new_v = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    first, last = shard_bounds(rows)
    for tile in TiledRange(last - first, P):
        span = slice(first + tile.start_offset, first + tile.end_offset)
        for part in TiledRange(columns, F):
            place = slice(part.start_offset, part.end_offset)
            tiles = []
            for source in (param, grad, m, v):
                loaded = nl.ndarray((tile.size, part.size), dtype=source.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=loaded, src=source[span, place])
                tiles.append(loaded)
            p, g, first_moment, second_moment = tiles
            move(first_moment, g, beta1)
            squared = nl.ndarray((tile.size, part.size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=squared, op=nl.square, data=g)
            move(second_moment, squared, beta2)
            update = nl.ndarray((tile.size, part.size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=update, op=nl.sqrt, data=second_moment, scale=1.0 / (1.0 - beta2**step))
            nisa.tensor_scalar(dst=update, data=update, op0=nl.add, operand0=eps)
            nisa.reciprocal(dst=update, data=update)
            nisa.tensor_tensor(dst=update, data1=update, data2=first_moment, op=nl.multiply)
            nisa.tensor_scalar(dst=update, data=update, op0=nl.multiply, operand0=-lr / (1.0 - beta1**step))
            nisa.scalar_tensor_tensor(
                dst=p, data=p, op0=nl.multiply, operand0=1.0 - lr * weight_decay, op1=nl.add, operand1=update
            )
            nisa.dma_copy(dst=new_param[span, place], src=p)
            nisa.dma_copy(dst=new_m[span, place], src=first_moment)
            nisa.dma_copy(dst=new_v[span, place], src=second_moment)
    return new_param, new_m, new_v


def move(average, value, beta):
    """average = beta * average + (1 - beta) * value, in place."""
    fresh = nl.ndarray(average.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=fresh, data=value, op0=nl.multiply, operand0=1.0 - beta)
    nisa.scalar_tensor_tensor(dst=average, data=average, op0=nl.multiply, operand0=beta, op1=nl.add, operand1=fresh)
