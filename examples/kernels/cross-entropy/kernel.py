"""Cross entropy of logits, chunk by chunk over the vocabulary."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert, shard_bounds

P = 128
CHUNK = 2048


@nki.jit
def cross_entropy(logits, targets):
    """loss = lse - logits[target], lse = log of the sum of exponentials, with a running maximum and sum.

    The target's logit is read from HBM by an indirect load, one element a position.

    Args:
        logits: [T, V] in HBM, float; 128 V below 2^24.
        targets: (T, 1) int32 in HBM, below V.

    Returns:
        loss and lse, [T, 1] float32 in HBM. Positions are split over the cores.
    """
    positions, vocabulary = logits.shape
    kernel_assert(P * vocabulary < 2**24, f"a vocabulary of {vocabulary}, at most {2**24 // P - 1}")
    assert_shape(targets, (positions, 1), "targets")
    loss = nl.ndarray((positions, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    lse = nl.ndarray((positions, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    first, last = shard_bounds(positions)
    for tile in TiledRange(last - first, P):
        span = slice(first + tile.start_offset, first + tile.end_offset)
        top = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        for part in TiledRange(vocabulary, CHUNK):
            values = nl.ndarray((tile.size, part.size), dtype=logits.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=values, src=logits[span, part.start_offset : part.end_offset])
            fold_chunk(values, top, total, part.index == 0)
        result = nl.ndarray((tile.size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=result, op=nl.log, data=total)
        nisa.tensor_tensor(dst=result, data1=result, data2=top, op=nl.add)
        nisa.dma_copy(dst=lse[span, 0:1], src=result)
        chosen = target_logits(logits[span, 0:vocabulary], targets[span, 0:1])
        nisa.tensor_tensor(dst=result, data1=result, data2=chosen, op=nl.subtract)
        nisa.dma_copy(dst=loss[span, 0:1], src=result)
    return loss, lse


def fold_chunk(values, top, total, first):
    """Fold a chunk of logits into the running maximum and the sum of exponentials relative to it."""
    rows = values.shape[0]
    new_top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=new_top, op=nl.maximum, data=values, axis=1)
    if not first:
        nisa.tensor_tensor(dst=new_top, data1=new_top, data2=top, op=nl.maximum)
    negative = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=negative, data=new_top, op0=nl.multiply, operand0=-1.0)
    powers = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.sbuf)
    fresh = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=powers,
        op=nl.exp,
        data=values,
        bias=negative,
        reduce_op=nl.add,
        reduce_res=fresh,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    if first:
        nisa.tensor_copy(dst=total, src=fresh)
    else:
        shrink = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=shrink, op=nl.exp, data=top, bias=negative)
        nisa.scalar_tensor_tensor(dst=total, data=total, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=fresh)
    nisa.tensor_copy(dst=top, src=new_top)


def target_logits(logits, targets):
    """logits[p, targets[p]] as a (P, 1) float32 tile: element p V + target of the flat rows."""
    rows, vocabulary = logits.shape
    index = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=targets)
    base = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=base, pattern=[[1, 1]], channel_multiplier=vocabulary)
    nisa.tensor_tensor(dst=index, data1=index, data2=base, op=nl.add)
    chosen = nl.ndarray((rows, 1), dtype=logits.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=chosen, src=logits.reshape((rows * vocabulary, 1)).vector_select(0, index))
    wide = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=chosen)
    return wide
