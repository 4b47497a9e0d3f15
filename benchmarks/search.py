"""What a search of the documentation costs with a large clone added: thousands of files of many sections, in field words."""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.rows import Row

SIZES = (10_000, 30_000)
SECTIONS, WORDS = 4, 60
TURNS = 2
QUESTIONS = (
    "how do I transpose a tile",
    "NCC_EVRF001",
    "nisa.nc_matmul",
    "why is my kernel slow and what limits it",
    "what does the compiler do with loops over tiles in SBUF and PSUM",
    "DMA is too small, what should the free dimension be",
    "continuous batching scheduler",
    "kernel memory compiler tensor engine",
    "how do I profile my kernel on the device and where is the trace",
    "out of memory while loading the model on two cores",
    "the output is NaN for a ragged last tile",
    "quokka buffers",
)


def vocabulary() -> list[str]:
    """Words of the built-in pages, so that the added files are about the same things."""
    from vibeserve import knowledge

    found: set[str] = set()
    for page in knowledge.built_in():
        found.update(word.lower() for word in page.body.split() if word.isalpha() and len(word) > 2)
    return sorted(found)


def write_folder(folder: Path, files: int, seed: int = 0) -> None:
    """`files` reStructuredText files of SECTIONS sections of WORDS words, frequent and rare as in prose (Zipf)."""
    draw, words = random.Random(seed), vocabulary()
    weights = [1 / (rank + 1) for rank in range(len(words))]
    draw.shuffle(words)
    for number in range(files):
        parts = []
        for section in range(SECTIONS):
            title = f"Topic {number} part {section}"
            text = " ".join(draw.choices(words, weights, k=WORDS))
            parts.append(f"{title}\n{'=' * len(title)}\n\n{text}\n")
        (folder / f"page_{number}.rst").write_text("\n".join(parts), encoding="utf-8")


def times_ms(files: int) -> tuple[list[float], float]:
    """(milliseconds of each search, seconds that adding the folder took) with `files` added files."""
    from vibeserve import knowledge

    with tempfile.TemporaryDirectory() as folder:
        docs = Path(folder) / "docs"
        docs.mkdir()
        write_folder(docs, files)
        held = os.environ.get("VIBESERVE_CACHE_DIR")
        os.environ["VIBESERVE_CACHE_DIR"] = str(Path(folder) / "cache")
        try:
            index = knowledge.Index.standard()
            start = time.perf_counter()
            index.add_folder(docs)
            adding_s = time.perf_counter() - start
            index.search(QUESTIONS[0])
            taken = []
            for question in QUESTIONS * TURNS:
                start = time.perf_counter()
                index.search(question, 8)
                taken.append((time.perf_counter() - start) * 1e3)
        finally:
            if held is None:
                del os.environ["VIBESERVE_CACHE_DIR"]
            else:
                os.environ["VIBESERVE_CACHE_DIR"] = held
    return taken, adding_s


def rows() -> list[Row]:
    """The rows of `make bench`."""
    found = []
    for files in SIZES:
        taken, adding_s = times_ms(files)
        note = f"{len(taken)} searches of {len(QUESTIONS)} questions; adding took {adding_s:.0f} s"
        p95 = statistics.quantiles(taken, n=20)[18]
        found.append(
            Row(f"docs search, {files:,} added files, median", 50.0, statistics.median(taken), "ms", "lower", note)
        )
        found.append(Row(f"docs search, {files:,} added files, p95", 50.0, p95, "ms", "lower", note))
    return found
