"""One more: a kernel of the first beta that uses the language alone."""

import neuronxcc.nki.language as nl
from neuronxcc import nki


@nki.jit
def add_one(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    i_p = nl.arange(128)[:, None]
    i_f = nl.arange(512)[None, :]
    for t in nl.affine_range(a.shape[0] // 128):
        x = nl.load(a[t * 128 + i_p, i_f])
        y = nl.add(x, 1.0)
        nl.store(out[t * 128 + i_p, i_f], y)
    return out
