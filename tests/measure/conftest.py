"""The smallest bundle (its reference is the fake server), and candidates made of the fake server's faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vibeserve.measure import fake_server
from vibeserve.targets.types import Bundle, Metric, ModelMeta

MINI = Path(__file__).parent / "data" / "mini"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def bundle() -> Bundle:
    """The smallest bundle: throughput, higher is better."""
    return Bundle(
        path=MINI,
        slug="mini",
        reference=MINI / "reference",
        checker=MINI / "accuracy_checker",
        benchmark=MINI / "benchmark",
        objective=None,
        metric=Metric("output_tokens_per_s", "tokens/s", "higher"),
        meta=ModelMeta("fake/fake"),
        checker_timeout_s=30.0,
        benchmark_timeout_s=30.0,
    )


@pytest.fixture
def candidate(tmp_path: Path) -> Callable[..., Path]:
    """A candidate that is the fake server with the given settings; `toml` is added to its candidate.toml."""

    def make(name: str = "candidate", *, toml: str = "ready_timeout_s = 60", **settings: object) -> Path:
        directory = tmp_path / name
        directory.mkdir(parents=True)
        words = ["python", "-P", str(Path(fake_server.__file__))]
        for key, value in settings.items():
            words += [f"--{key.replace('_', '-')}"] + ([] if value is True else [str(value)])
        start = ", ".join(f'"{word}"' for word in words)
        (directory / "candidate.toml").write_text(f"start = [{start}]\n{toml}\n")
        return directory

    return make


@pytest.fixture
def script_bundle(bundle: Bundle, tmp_path: Path) -> Callable[[str], Bundle]:
    """A bundle whose checker and benchmark are both the given program."""

    def make(code: str) -> Bundle:
        for name in ("checker", "benchmark"):
            (tmp_path / f"{name}.py").write_text(code)
        return replace(bundle, checker=tmp_path, benchmark=tmp_path)

    return make
