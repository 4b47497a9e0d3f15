"""The whole library as the text of one file, to copy beside a kernel: `python -m vibeserve.nki.lib > nki_lib.py`."""

from __future__ import annotations

import ast
from pathlib import Path

ORDER = (
    "checks", "types", "helpers", "tiled_range", "tile_info", "tensor_view", "logging", "allocator", "moving", "layout",
    "norms", "quantization", "routing",
)  # fmt: skip
HEADER = '''"""Helpers for NKI kernels, in one file. Made by `python -m vibeserve.nki.lib`; free to copy and change."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

import nki.isa as nisa
import nki.language as nl
'''


def source() -> str:
    """The library's modules joined into one, which imports nothing but `nki` and the standard library."""
    parts = [HEADER]
    for name in ORDER:
        text = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        lines = text.splitlines()
        tree = ast.parse(text)
        drop: set[int] = set()
        for position, node in enumerate(tree.body):
            docstring = position == 0 and isinstance(node, ast.Expr)
            if docstring or isinstance(node, ast.Import | ast.ImportFrom):
                drop.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        kept = "\n".join(line for number, line in enumerate(lines, 1) if number not in drop).strip()
        parts.append(f"\n# ---- {name}\n\n{kept}\n")
    return "\n".join(parts)
