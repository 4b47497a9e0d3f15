"""Bundles to read, break and materialise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from vibeserve.base.paths import packaged

CHAT = packaged("examples") / "model-serving" / "smollm2-135m-cpu-chat"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A writable copy of the chat bundle, without its model."""
    return Path(shutil.copytree(CHAT, tmp_path / "copied", ignore=shutil.ignore_patterns("model", "__pycache__")))


@pytest.fixture
def with_sources(copied: Path) -> Callable[..., Path]:
    """The copy, with other sources in its meta.json."""

    def make(*sources: str, **keys: object) -> Path:
        path = copied / "reference" / "meta.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "sources": list(sources), **keys}))
        return copied

    return make
