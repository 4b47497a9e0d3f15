"""What other people's harnesses launch."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np

F32 = np.float32


@nki.jit
def k_copy(a):
    t = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=a)
    o = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=o, src=t)
    return o


@nki.jit
def k_scale(a, factor: float = 2.0, bias=0.0):
    """Doc line."""
    t = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=a)
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=bias)
    o = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=o, src=t)
    return o
