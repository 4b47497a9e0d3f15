"""docs/kernels.md is what the tool makes of the examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_page_is_current() -> None:
    out = subprocess.run(
        [sys.executable, ROOT / "tools" / "kernel_docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (out.returncode, out.stderr) == (0, "")


def test_page_names_every_example() -> None:
    text = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    for folder in (ROOT / "examples" / "kernels").iterdir():
        if (folder / "kernel.py").is_file():
            assert f"examples/kernels/{folder.name}/README.md" in text
