"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _own_directories(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests never touch the user's profiles and runs."""
    for name in ("VIBESERVE_DATA_PATH", "VIBESERVE_RUNS_DIR"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run one command line in this process: (exit code, stdout, stderr)."""
    from vibeserve.cli.main import run

    def call(*args: object) -> tuple[int, str, str]:
        code = run([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def spec_dir() -> Path:
    """The specification's folder; where VIBESERVE_SPEC is unset the test is not run."""
    folder = os.environ.get("VIBESERVE_SPEC")
    if not folder:
        pytest.skip("not run: VIBESERVE_SPEC is unset")
    return Path(folder)
