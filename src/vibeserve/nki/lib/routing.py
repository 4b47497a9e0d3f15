"""Mixture of experts: choose k experts a token, and place the tokens of each expert side by side."""

from __future__ import annotations

from typing import Any

from vibeserve.nki.lib.binding import nisa, nl
from vibeserve.nki.lib.checks import kernel_assert

LOWEST = -3.4028235e38


def softmax_rows(dst: Any, x: Any) -> None:
    """dst = softmax of each row of x: [T, E] tiles in SBUF."""
    rows = x.shape[0]
    top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    powers = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=x, axis=1, negate=True)
    nisa.activation(
        dst=powers, op=nl.exp, data=x, bias=top, reduce_op=nl.add, reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )  # fmt: skip
    nisa.reciprocal(dst=total, data=total)
    nisa.tensor_scalar(dst=dst, data=powers, op0=nl.multiply, operand0=total)


def top_experts(values: Any, indices: Any, mask: Any, scores: Any, k: int) -> None:
    """The k largest scores of each row, in falling order, and a 0/1 mask of where they are.

    Args:
        values: (T, 8) float32 in SBUF; the first k columns count.
        indices: (T, 8) uint32 in SBUF.
        mask: [T, E] float32 in SBUF: 1 for a chosen expert.
        scores: [T, E] float32 in SBUF, 8 <= E <= 16384.
        k: at most 8. Equal scores: the lower expert first.
    """
    tokens, experts = scores.shape
    kernel_assert(1 <= k <= 8, f"top_experts: k is {k}, at most 8")
    kernel_assert(8 <= experts <= 16384, f"top_experts: {experts} experts, 8 to 16384")
    nisa.max8(dst=values, src=scores)
    nisa.nc_find_index8(dst=indices, data=scores, vals=values)
    nisa.memset(dst=mask, value=0.0)
    columns = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=columns, pattern=[[1, experts]])
    chosen = nl.ndarray((tokens, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=chosen, src=indices)
    for slot in range(k):
        nisa.scalar_tensor_tensor(
            dst=mask, data=columns, op0=nl.equal, operand0=chosen[0:tokens, slot : slot + 1], op1=nl.add, operand1=mask
        )


def expert_positions(positions: Any, mask: Any) -> None:
    """The place of each token in the list of each expert: positions[t, e] = chosen tokens before t, for e.

    Args:
        positions: [T, E] float32 in SBUF, T <= 128, E <= 512.
        mask: [T, E] float32 in SBUF, 0 or 1.
    """
    tokens, experts = mask.shape
    kernel_assert(tokens <= 128 and experts <= 512, f"expert_positions: {mask.shape}, at most (128, 512)")
    before = nl.ndarray((tokens, tokens), dtype=nl.float32, buffer=nl.sbuf)
    ones = nl.ndarray((tokens, tokens), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    nisa.affine_select(
        dst=before,
        pattern=[[1, tokens]],
        channel_multiplier=-1,
        on_true_tile=ones,
        on_false_value=0.0,
        cmp_op=nl.greater,
    )
    counts = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=counts, stationary=before, moving=mask, is_stationary_onezero=True)
    nisa.tensor_copy(dst=positions, src=counts)


def permutation_rows(rows: Any, positions: Any, mask: Any, capacity: int) -> None:
    """The row of each token in a buffer of E blocks of `capacity` rows, for `dma_copy` with a vector offset.

    Args:
        rows: [T, E] int32 in SBUF: e * capacity + positions[t, e] where chosen and below the capacity, else -1.
        positions, mask: [T, E] float32 in SBUF; see `expert_positions`.
        capacity: rows of an expert's block.
    """
    tokens, experts = mask.shape
    kernel_assert(experts * capacity < 2**24, f"permutation_rows: {experts} x {capacity} rows, below 2^24")
    base = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=base, pattern=[[capacity, experts]], offset=1)
    kept = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=kept, data=positions, op0=nl.less, operand0=float(capacity), op1=nl.multiply, operand1=mask
    )
    nisa.tensor_tensor(dst=base, data1=base, data2=positions, op=nl.add)
    nisa.tensor_tensor(dst=base, data1=base, data2=kept, op=nl.multiply)
    nisa.tensor_scalar(dst=rows, data=base, op0=nl.subtract, operand0=1.0)
