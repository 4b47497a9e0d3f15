"""RMSNorm and LayerNorm of a tile in SBUF with rows on the partitions, as parts of larger kernels."""

from __future__ import annotations

from typing import Any

from vibeserve.nki.lib.binding import nisa, nl
from vibeserve.nki.lib.checks import kernel_assert

BN_STATS_FMAX = 512


def rms_scale(inverse: Any, x: Any, eps: float, hidden: int = 0) -> None:
    """inverse[p] = 1 / sqrt(mean(x[p]^2) + eps).

    Args:
        inverse: (P, 1) float32 in SBUF.
        x: [P, H] in SBUF or PSUM.
        eps: added to the mean.
        hidden: what the sum is divided by; 0 for H.
    """
    rows, width = x.shape
    squares = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=squares, op=nl.square, data=x, reduce_op=nl.add, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reset_reduce
    )
    margin = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=margin, value=eps)
    nisa.activation(dst=inverse, op=nl.rsqrt, data=total, scale=1.0 / (hidden or width), bias=margin)


def rms_norm_rows(dst: Any, x: Any, gamma: Any = None, eps: float = 1e-6, hidden: int = 0) -> None:
    """dst = x / sqrt(mean(x^2) + eps) * gamma, row by row; see `rms_scale`.

    Args:
        dst: [P, H] in SBUF, any float dtype.
        x: [P, H] in SBUF.
        gamma: [>= P, H] in SBUF, the same row in each partition, or None.
        eps: added to the mean of squares.
        hidden: what the sum of squares is divided by; 0 for H.
    """
    kernel_assert(dst.shape == x.shape, f"rms_norm_rows: {x.shape} to {dst.shape}")
    rows = x.shape[0]
    inverse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    rms_scale(inverse, x, eps, hidden)
    _scaled(dst, x, inverse, gamma)


def layer_norm_rows(dst: Any, x: Any, gamma: Any = None, beta: Any = None, eps: float = 1e-5) -> None:
    """dst = (x - mean) / sqrt(var + eps) * gamma + beta, row by row.

    Args:
        dst: [P, H] in SBUF, any float dtype.
        x: [P, H] in SBUF.
        gamma, beta: [>= P, H] in SBUF, the same row in each partition, or None.
        eps: added to the population variance.
    """
    kernel_assert(dst.shape == x.shape, f"layer_norm_rows: {x.shape} to {dst.shape}")
    rows, width = x.shape
    parts = -(-width // BN_STATS_FMAX)
    stats = nl.ndarray((rows, parts * 6), dtype=nl.float32, buffer=nl.sbuf)
    for part in range(parts):
        start, end = part * BN_STATS_FMAX, min((part + 1) * BN_STATS_FMAX, width)
        nisa.bn_stats(dst=stats[0:rows, part * 6 : part * 6 + 6], data=x[0:rows, start:end])
    moments = nl.ndarray((rows, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.bn_aggr(dst=moments, data=stats)
    inverse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    margin = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=margin, value=eps)
    nisa.activation(dst=inverse, op=nl.rsqrt, data=moments[0:rows, 1:2], bias=margin)
    centred = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=centred, data=x, op0=nl.subtract, operand0=moments[0:rows, 0:1], op1=nl.multiply, operand1=inverse
    )
    if gamma is not None:
        nisa.tensor_tensor(dst=centred, data1=centred, data2=gamma[0:rows, 0:width], op=nl.multiply)
    if beta is not None:
        nisa.tensor_tensor(dst=dst, data1=centred, data2=beta[0:rows, 0:width], op=nl.add)
    else:
        nisa.tensor_copy(dst=dst, src=centred)


def _scaled(dst: Any, x: Any, inverse: Any, gamma: Any) -> None:
    rows, width = x.shape
    if gamma is None:
        nisa.tensor_scalar(dst=dst, data=x, op0=nl.multiply, operand0=inverse)
        return
    nisa.scalar_tensor_tensor(
        dst=dst, data=x, op0=nl.multiply, operand0=inverse, op1=nl.multiply, operand1=gamma[0:rows, 0:width]
    )
