"""Sobol numbers: for each index, the xor of the direction numbers that its Gray code selects."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import assert_shape, kernel_assert


@nki.jit
def sobol(directions, count=1024):
    """The first `count` points in each dimension.

    Args:
        directions: [D, bits] uint32 in HBM, D at most 128: direction numbers as fractions of 2^32, highest bit first.
        count: points, at most 2^bits.

    Returns:
        [D, count] float32 in HBM, in [0, 1): the highest 24 bits of each number.
    """
    assert_shape(directions, (None, None), "directions")
    dimensions, bits = directions.shape
    kernel_assert(dimensions <= 128, f"{dimensions} dimensions, at most 128")
    kernel_assert(count <= 2**bits, f"{count} points need more than {bits} direction numbers")
    table = nl.ndarray((dimensions, bits), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.dma_copy(dst=table, src=directions)
    index = nl.ndarray((dimensions, count), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.iota(dst=index, pattern=[[1, count]])
    gray = nl.ndarray((dimensions, count), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=gray, data=index, op0=nl.right_shift, operand0=1)
    nisa.tensor_tensor(dst=gray, data1=gray, data2=index, op=nl.bitwise_xor)
    number = nl.ndarray((dimensions, count), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.memset(dst=number, value=0)
    for bit in range((count - 1).bit_length()):
        chosen = nl.ndarray((dimensions, count), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=chosen, data=gray, op0=nl.right_shift, operand0=bit, op1=nl.bitwise_and, operand1=1)
        term = nl.ndarray((dimensions, count), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.memset(dst=term, value=0)
        nisa.tensor_copy_predicated(
            dst=term, src=table[0:dimensions, bit : bit + 1].broadcast(1, count), predicate=chosen
        )
        nisa.tensor_tensor(dst=number, data1=number, data2=term, op=nl.bitwise_xor)
    nisa.tensor_scalar(dst=number, data=number, op0=nl.right_shift, operand0=8)
    points = nl.ndarray((dimensions, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=points, data=number, op0=nl.multiply, operand0=2.0**-24)
    out = nl.ndarray((dimensions, count), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=points)
    return out
