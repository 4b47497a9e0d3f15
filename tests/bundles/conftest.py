"""A tiny model for the bundles' scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.targets.checkpoints import llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a token a byte."""
    return llama(tmp_path_factory.mktemp("tiny"))
