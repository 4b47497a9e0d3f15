"""What the kernel tests share: run a body on tiles, and expect a rejection."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import KernelError, simulate


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say for themselves what the environment asks of the simulator."""
    for name in list(os.environ):
        if name.startswith(("NKI_", "NEURON_")):
            monkeypatch.delenv(name)


def load(x: Any) -> Any:
    """An HBM argument as a tile: [P, free...]."""
    if not hasattr(x, "buffer"):
        return x
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def store(tile: Any) -> Any:
    """A tile as a kernel output."""
    if tile.buffer is nl.psum:
        copied = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(copied, tile)
        tile = copied
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.fixture(scope="session")
def evaluate() -> Callable[..., Any]:
    """Run body(*tiles) in a kernel: arrays are loaded into SBUF before, the tiles that it returns are stored after."""

    def run(body: Callable[..., Any], *arrays: Any, target: str = "trn2", **options: Any) -> Any:
        def kernel(xs: tuple[Any, ...]) -> Any:
            result = body(*[load(x) for x in xs])
            return tuple(store(t) for t in result) if isinstance(result, tuple) else store(result)

        return simulate(kernel, target=target, **options)(arrays)

    return run


@pytest.fixture(scope="session")
def rejected() -> Callable[..., KernelError]:
    """Run body(*tiles) in a kernel and expect a KernelError with this code, at a line of the calling test."""

    def run(code: str, body: Callable[..., Any], *arrays: Any, target: str = "trn2", **options: Any) -> KernelError:
        def kernel(xs: tuple[Any, ...]) -> None:
            body(*[load(x) for x in xs])

        with pytest.raises(KernelError) as caught:
            simulate(kernel, target=target, **options)(arrays or (np.zeros(1, np.float32),))
        assert caught.value.code == code, str(caught.value)
        return caught.value

    return run


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
