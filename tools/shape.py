"""Says where the code grows out of shape: files over 500 lines, functions over 80. Exits 1 where there are any."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
ROOT = Path(__file__).parents[1]


def findings(path: Path) -> list[str]:
    """What is too long in one file."""
    source = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    found = []
    lines = source.count("\n")
    if lines > MAX_FILE_LINES:
        found.append(f"{name}: {lines} lines (at most {MAX_FILE_LINES}: this is two ideas)")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"{name}:{node.lineno}: {node.name} has {length} lines (at most {MAX_FUNCTION_LINES})")
    return found


def main() -> int:
    """Look at every source file of the package."""
    files = sorted((ROOT / "src").rglob("*.py"))
    found = [line for path in files for line in findings(path)]
    print("\n".join(found) if found else f"shape: {len(files)} files in shape")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
