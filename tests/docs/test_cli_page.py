"""docs/cli.md names every verb and shows its help as it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from vibeserve.cli.verbs import VERBS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "tools" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_documented(verb: str) -> None:
    assert f"\n### vibeserve {verb}\n\n{VERBS[verb].help}\n" in PAGE


def test_the_help_is_current(generator: ModuleType) -> None:
    assert generator.with_verbs(PAGE) == PAGE, "run 'make docs'"


def test_every_verb_is_built(generator: ModuleType) -> None:
    missing = [verb for verb in VERBS if "is not built yet" in generator.help_of(verb)]
    assert missing == []
