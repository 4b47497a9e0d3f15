"""What the engine's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from vibeserve.engine.native import compiler

BACKENDS = ["torch", "compiled"]


@pytest.fixture(scope="session")
def model_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the small checkpoints are written, once a session."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each back end in turn; the compiled one is not run where there is no compiler."""
    if request.param == "compiled" and compiler() is None:
        pytest.skip("not run: no C++ compiler on this machine")
    return str(request.param)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
