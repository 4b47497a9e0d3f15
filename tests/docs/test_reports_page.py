"""The example in docs/reports.md runs, and the page names every block and every chart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from vibeserve.report import Block, svg

PAGE = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    exec(compile(found[1], "docs/reports.md", "exec"), {})
    assert "218.5 µs" in (tmp_path / "bounds.html").read_text(encoding="utf-8").replace("</span>", "").replace(
        ' <span class="unit">', " "
    )
    assert "| compute | 218.5 µs |" in capsys.readouterr().out


@pytest.mark.parametrize("name", [block.__name__ for block in get_args(Block)])
def test_every_block_is_named(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", [name for name in svg.__all__ if name.islower()])
def test_every_chart_is_named(name: str) -> None:
    assert f"`{name}`" in PAGE
