"""Numbers at the corners of the formats, and a kernel around one expression."""

from __future__ import annotations

import nki
import nki.language as nl
import numpy as np

F32 = np.float32


CORNERS = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        3.5,
        -0.5,
        -1.5,
        -2.5,
        1e-45,
        1.4e-45,
        1.17549435e-38,
        1e-40,
        1e-8,
        6e-8,
        5.96e-8,
        2.98e-8,
        65504,
        65519.99,
        65520,
        65536,
        240,
        247.9,
        248,
        248.1,
        256,
        448,
        463.9,
        464,
        464.1,
        480,
        57344,
        61439,
        61440,
        3.38e38,
        3.4028235e38,
        -3.4028235e38,
        np.inf,
        -np.inf,
        np.nan,
        127,
        127.5,
        128,
        255,
        255.5,
        256,
        -128,
        -128.5,
        -129,
        32767,
        32767.5,
        2147483647,
        2147483648,
        -2147483648,
        -2147483649,
        4294967295,
        4294967296,
        16777216,
        16777217,
        1.0009765625,
        1.00048828125,
        1.000488400459,
        1.00390625,
        1.001953125,
        1.0019531250001,
        0.1,
        1 / 3,
    ],
    F32,
)


RAND = np.concatenate(
    [
        (
            np.random.default_rng(0).standard_normal(4000) * 10.0 ** np.random.default_rng(1).integers(-9, 9, 4000)
        ).astype(F32),
        CORNERS,
    ]
)


X = np.resize(RAND, (64, 64)).copy()


def run(body, *arrays, target="trn2", out=None):
    @nki.jit
    def k(*xs):
        tiles = [nl.load(x) for x in xs]
        r = body(*tiles)
        rs = r if isinstance(r, tuple) else (r,)
        outs = []
        for t in rs:
            o = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
            nl.store(o, nl.copy(t) if t.buffer == nl.psum else t)
            outs.append(o)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return nki.simulate(k, target=target)(*arrays)
