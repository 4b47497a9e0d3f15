"""What kernels of other authors are tested with: numbers, tolerances, and a strict run."""

from __future__ import annotations

import ml_dtypes
import nki
import nki.language as nl
import numpy as np

F32, BF16, F16 = np.float32, ml_dtypes.bfloat16, np.float16
TOL = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}


def R(*s, seed=0, dt=F32, scale=1.0):
    return (np.random.default_rng(seed + sum(s)).standard_normal(s) * scale).astype(dt)


def close(got, want, tol=None):
    g, w = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    assert g.shape == w.shape, (g.shape, w.shape)
    tol = TOL[str(np.asarray(got).dtype)] if tol is None else tol
    s = max(np.abs(w).max(), 1e-6)
    e = np.abs(g - w).max() / s
    assert e <= tol, e


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sim(k, *a, target=None, lnc=None, strict=True, **kw):
    s = nki.simulate(k, target=target, lnc=lnc, strict=strict)
    r = s(*a, **kw)
    return r


def near(got, want, tol=1e-4):
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=tol, atol=tol)


def sb(shape, dtype=nl.float32, **options):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf, **options)


def pm(shape, dtype=nl.float32, **options):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.psum, **options)


def hbm(shape, dtype=nl.float32, **options):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, **options)
