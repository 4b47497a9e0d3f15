"""The counter-based random generator Philox-4x32-10, on an engine that multiplies in float32.

A 32-bit word is kept as four tiles of bytes. Products of bytes, and sums of four of them, stay below 2^24, where float32
is exact; xor, shift and mask are bit operations.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import assert_shape, kernel_assert

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


@nki.jit
def philox(counter, key0=0, key1=0):
    """Ten rounds over each counter.

    Args:
        counter: [4, P, F] uint32 in HBM, P at most 128: the words of the counters.
        key0, key1: the words of the key, 0 to 2^32 - 1.

    Returns:
        [4, P, F] uint32 in HBM: four random words for each counter.
    """
    assert_shape(counter, (4, None, None), "counter")
    _, partitions, columns = counter.shape
    kernel_assert(partitions <= 128, f"{partitions} partitions, at most 128")
    out = nl.ndarray(counter.shape, dtype=nl.uint32, buffer=nl.shared_hbm)
    words = []
    for index in range(4):
        word = nl.ndarray((partitions, columns), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.dma_copy(dst=word, src=counter[index])
        words.append(split(word))
    for step in range(ROUNDS):
        low0, high0 = multiply(words[0], M0)
        low1, high1 = multiply(words[2], M1)
        first = mixed(high1, words[1], (key0 + step * W0) % 2**32)
        third = mixed(high0, words[3], (key1 + step * W1) % 2**32)
        words = [first, low1, third, low0]
    for index in range(4):
        nisa.dma_copy(dst=out[index], src=joined(words[index]))
    return out


def new(like):
    """A tile of uint32 of the same shape."""
    return nl.ndarray(like.shape, dtype=nl.uint32, buffer=nl.sbuf)


def split(word):
    """The four bytes of a word, lowest first."""
    parts = []
    for place in range(4):
        part = new(word)
        nisa.tensor_scalar(
            dst=part, data=word, op0=nl.right_shift, operand0=8 * place, op1=nl.bitwise_and, operand1=255
        )
        parts.append(part)
    return parts


def joined(parts):
    """The word of four bytes."""
    word = new(parts[0])
    nisa.tensor_copy(dst=word, src=parts[0])
    for place in range(1, 4):
        shifted = new(word)
        nisa.tensor_scalar(dst=shifted, data=parts[place], op0=nl.left_shift, operand0=8 * place)
        nisa.tensor_tensor(dst=word, data1=word, data2=shifted, op=nl.bitwise_or)
    return word


def multiply(parts, factor):
    """The product of a word and a constant: (bytes of the low word, bytes of the high word)."""
    result = []
    carry = None
    for place in range(8):
        total = nl.ndarray(parts[0].shape, dtype=nl.float32, buffer=nl.sbuf)
        if carry == None:
            nisa.memset(dst=total, value=0.0)
        else:
            nisa.tensor_copy(dst=total, src=carry)
        for i in range(max(0, place - 3), min(3, place) + 1):
            digit = float(factor // 256 ** (place - i) % 256)
            nisa.scalar_tensor_tensor(
                dst=total, data=parts[i], op0=nl.multiply, operand0=digit, op1=nl.add, operand1=total
            )
        whole = new(parts[0])
        nisa.tensor_copy(dst=whole, src=total)
        part = new(whole)
        nisa.tensor_scalar(dst=part, data=whole, op0=nl.bitwise_and, operand0=255)
        result.append(part)
        carry = new(whole)
        nisa.tensor_scalar(dst=carry, data=whole, op0=nl.right_shift, operand0=8)
    return result[0:4], result[4:8]


def mixed(left, right, key):
    """left xor right xor key, byte by byte."""
    parts = []
    for place in range(4):
        part = new(left[place])
        nisa.tensor_tensor(dst=part, data1=left[place], data2=right[place], op=nl.bitwise_xor)
        nisa.tensor_scalar(dst=part, data=part, op0=nl.bitwise_xor, operand0=key // 256**place % 256)
        parts.append(part)
    return parts
