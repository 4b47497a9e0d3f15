"""Rows of any number with masks, written for the first beta: the masks are left to a person."""

import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
from neuronxcc import nki


@nki.jit(platform_target="trn2")
def masked_rows(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    i_p = nl.arange(128)[:, None]
    i_f = nl.arange(64)[None, :]
    for t in nl.affine_range((x.shape[0] + 127) // 128):
        rows = nl.load(x[t * 128 + i_p, i_f], mask=(t * 128 + i_p < x.shape[0]))
        squares = nisa.activation(op=nl.square, data=rows, dtype=np.float32)
        nl.store(out[t * 128 + i_p, i_f], value=squares, mask=(t * 128 + i_p < x.shape[0]))
    return out
