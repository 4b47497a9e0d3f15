"""The chat bundle's scripts as modules, and a tiny model to use them with."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.targets.checkpoints import llama

from vibeserve.base.paths import packaged

CHAT = packaged("examples") / "model-serving" / "smollm2-135m-cpu-chat"


def _load(name: str) -> ModuleType:
    path = CHAT / name
    spec = importlib.util.spec_from_file_location(f"chat_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def benchmark() -> ModuleType:
    """benchmark/benchmark.py."""
    return _load("benchmark/benchmark.py")


@pytest.fixture(scope="session")
def checker() -> ModuleType:
    """accuracy_checker/checker.py."""
    return _load("accuracy_checker/checker.py")


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """reference/reference.py."""
    return _load("reference/reference.py")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a token a byte."""
    return llama(tmp_path_factory.mktemp("tiny"))
