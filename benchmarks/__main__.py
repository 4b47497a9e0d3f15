"""Run the benchmarks: each module here with a `rows() -> list[Row]` is one. Exits 1 where a target is missed.

python -m benchmarks                 every one
python -m benchmarks profiles nki    those
python -m benchmarks --json          one JSON document
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.rows import Row


def names() -> list[str]:
    """Every benchmark that there is."""
    found = []
    for item in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not item.name.startswith("_") and item.name != "rows":
            found.append(item.name)
    return found


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description="Benchmarks of this project.")
    parser.add_argument("names", nargs="*", help="which (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in names()]
    if unknown:
        print(f"error: no benchmark '{unknown[0]}'; there are {', '.join(names())}", file=sys.stderr)
        return 2
    found: dict[str, list[Row]] = {}
    for name in options.names or names():
        module = importlib.import_module(f"benchmarks.{name}")
        if not hasattr(module, "rows"):
            continue
        print(f"# {name}", file=sys.stderr, flush=True)
        found[name] = module.rows()
        if not options.json:
            show(name, found[name])
    if options.json:
        print(
            json.dumps(
                {name: [{**asdict(row), "verdict": row.verdict} for row in rows] for name, rows in found.items()}
            )
        )
    return 1 if any(row.passed is False for rows in found.values() for row in rows) else 0


def show(name: str, rows: list[Row]) -> None:
    """Print one benchmark's table."""
    width = max(len(row.name) for row in rows)
    for row in rows:
        target = "" if row.target is None else f"{'≤' if row.better == 'lower' else '≥'} {row.target:g}"
        actual = "—" if row.actual is None else f"{row.actual:.4g}"
        print(f"{name:10} {row.name:{width}} {actual:>10} {row.unit:8} {target:>12} {row.verdict:7} {row.note}")


if __name__ == "__main__":
    sys.exit(main())
