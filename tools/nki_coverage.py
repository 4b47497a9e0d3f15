"""Writes docs/nki-coverage.md: every name of the language with its state. `--check` exits 1 where the page is stale."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "nki-coverage.md"
TESTS = ("tests/nki", "tests/nki_lib")
RAISES = {"nki.compiler.kernel_builder.compile_kernel": "raises 'not simulated yet' (it needs the device's compiler)"}


@dataclass(frozen=True)
class Row:
    """One name: whether it is there, and whether a test of tests/nki or tests/nki_lib uses it."""

    module: str
    kind: str
    name: str
    state: str
    tested: bool


def lookup(module: str, name: str) -> Any:
    """The object behind a name, or AttributeError or ImportError."""
    head, *rest = name.split(".")
    if module == "nkilib.core.utils":
        found = importlib.import_module(f"{module}.{head}")
    else:
        found = importlib.import_module(module)
        rest = [head, *rest]
    for part in rest:
        found = getattr(found, part)
    return found


def state(module: str, kind: str, name: str) -> str:
    """simulated, missing, or why it raises."""
    from vibeserve.nki.instruction import REGISTRY, entries

    try:
        found = lookup(module, name)
    except (AttributeError, ImportError):
        return "missing"
    if reason := RAISES.get(f"{module}.{name}"):
        return reason
    if module == "nki.isa" and kind == "functions" and name in REGISTRY and name not in entries():
        return "no operand rules"
    return "simulated" if found is not None else "missing"


def rows() -> list[Row]:
    """Every listed name with its state."""
    import vibeserve.nki.shim  # noqa: F401

    table = tomllib.loads((ROOT / "src/vibeserve/nki/data/symbols.toml").read_text(encoding="utf-8"))
    files = [path for folder in TESTS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".toml")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in files)))
    return [
        Row(module, kind, name, state(module, kind, name), name.split(".")[-1] in words)
        for module, kinds in table.items()
        for kind, names in kinds.items()
        for name in names
    ]


def page(found: list[Row]) -> str:
    """The page as Markdown."""
    there = sum(row.state == "simulated" for row in found)
    tested = sum(row.tested for row in found)
    lines = [
        "# NKI coverage",
        "",
        "Made by `tools/nki_coverage.py` out of `src/vibeserve/nki/data/symbols.toml` and what the package holds; not edited by hand.",
        "",
        f"{there} of {len(found)} names are simulated; {tested} appear in a test of `tests/nki` or `tests/nki_lib`.",
        "",
        "| module | kind | listed | simulated | in tests |",
        "|---|---|---|---|---|",
    ]
    for module, kind in dict.fromkeys((row.module, row.kind) for row in found):
        part = [row for row in found if (row.module, row.kind) == (module, kind)]
        lines.append(
            f"| {module} | {kind.replace('_', ' ')} | {len(part)} | {sum(row.state == 'simulated' for row in part)} | {sum(row.tested for row in part)} |"
        )
    lines += ["", "## Every name", "", "| name | kind | state | in tests |", "|---|---|---|---|"]
    lines += [
        f"| `{row.module}.{row.name}` | {row.kind.replace('_', ' ')} | {row.state} | {'yes' if row.tested else 'no'} |"
        for row in found
    ]
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Write the page, or check it."""
    text = page(rows())
    if "--check" in argv:
        stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text
        print(
            "docs/nki-coverage.md is stale: run tools/nki_coverage.py"
            if stale
            else "docs/nki-coverage.md is up to date"
        )
        return 1 if stale else 0
    PAGE.write_text(text, encoding="utf-8")
    print(text.splitlines()[4])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
