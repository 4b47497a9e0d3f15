"""What linting costs: a thousand kernel files, those of the examples under many names."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.rows import Row

FILES = 1000
KERNELS = Path(__file__).parents[1] / "examples" / "kernels"


def thousand_files(folder: Path) -> list[Path]:
    """FILES kernel files: each of the example kernels, over and over, each text its own (none is a copy of another)."""
    sources = sorted(KERNELS.glob("*/kernel.py"))
    made = []
    for number in range(FILES):
        source = sources[number % len(sources)]
        path = folder / f"{source.parent.name.replace('-', '_')}_{number}.py"
        path.write_text(f"{source.read_text(encoding='utf-8')}\n# file {number}\n", encoding="utf-8")
        made.append(path)
    return made


def seconds() -> tuple[float, int]:
    """(seconds for FILES files, findings)."""
    from vibeserve.nki import lint

    with tempfile.TemporaryDirectory() as folder:
        paths = thousand_files(Path(folder))
        lint.lint_paths(paths[:3])  # the rules are read once
        start = time.perf_counter()
        found = lint.lint_paths(paths)
        return time.perf_counter() - start, len(found)


def rows() -> list[Row]:
    """The rows of `make bench`."""
    taken, found = seconds()
    return [Row(f"lint of {FILES:,} kernel files", 20.0, taken, "s", "lower", f"one process; {found:,} hints found")]
