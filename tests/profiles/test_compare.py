"""Sources are kept with a profile: costs stand beside their lines, and lines are matched across an edited file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.profiles import made

from vibeserve import nki, profiles
from vibeserve.nki import running
from vibeserve.profiles import pages, sources
from vibeserve.profiles.profile import Profile

KERNEL = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def halve(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=0.5)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""
EDITED = KERNEL.replace(
    "    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=0.5)\n",
    "    # Twice is slower.\n\n"
    "    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=0.5)\n"
    "    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=1.0)\n",
)


def number_of(text: str, part: str) -> int:
    [found] = [number for number, line in enumerate(text.splitlines(), 1) if part in line]
    return found


@pytest.fixture
def two(tmp_path):
    """The profiles before and after an edit of the same file, stored; the file is gone afterwards."""
    path = tmp_path / "kernel.py"
    for name, text in (("before", KERNEL), ("after", EDITED)):
        path.write_text(text)
        kernel, _ = running.load_kernel(f"{path}:halve")
        _, profile = nki.profile(kernel, target="trn2")(np.ones((128, 512), np.float32))
        profiles.save(profile, name, data_path=tmp_path)
    path.unlink()
    return tmp_path


def test_a_line_that_moved_is_the_same_line(two):
    found = profiles.compare(profiles.open("before", two), profiles.open("after", two))
    assert found["lines_matched"] == "by source"
    lines = {(row["line_a"], row["line_b"]): row for row in found["lines"]}
    load, store = "dma_copy(dst=tile", "dma_copy(dst=out"
    old = {part: number_of(KERNEL, part) for part in (load, "operand0=0.5", store)}
    new = {part: number_of(EDITED, part) for part in (*old, "operand0=1.0")}
    assert set(lines) == {(old[part], new[part]) for part in old} | {(None, new["operand0=1.0"])}
    assert lines[None, new["operand0=1.0"]]["state"] == "appeared"
    same = lines[old["operand0=0.5"], new["operand0=0.5"]]
    assert same["state"] == "in both"
    assert same["duration_s"]["a"] == same["duration_s"]["b"] > 0
    assert same["instructions"]["delta"] == 0


def test_the_terminal_says_what_a_new_line_costs(two, cli):
    code, out, err = cli("profile", "compare", "before", "after", "--data-path", two)
    assert code == 0
    [row] = [line for line in out.splitlines() if "appeared" in line]
    assert f"kernel.py:— → {number_of(EDITED, 'operand0=1.0')}" in row
    assert float(row.split()[-2]) > 0
    assert "by their numbers" not in err


def test_the_page_shows_the_source_as_it_was_with_its_costs(two):
    profile = profiles.open("before", two)
    html = pages.html(profile, profiles.analyze(profile))
    for line in ("nisa.dma_copy(dst=tile, src=x)", "def halve(x):"):
        assert line in html
    assert "Twice is slower" not in html


def test_without_sources_lines_are_matched_by_number_and_it_is_said(tmp_path, cli):
    for name in ("a", "b"):
        rows = [made.instruction(start_ts=0, end_ts=100, bir_debug_info_source_location="/gone/kernel.py:7")]
        profiles.save(Profile(name, {"Instruction": made.instructions(rows)}), name, data_path=tmp_path)
    code, out, _ = cli("profile", "compare", "a", "b", "--data-path", tmp_path, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["lines_matched"] == "by number"
    assert [(row["line_a"], row["line_b"]) for row in found["lines"]] == [(7, 7)]
    assert "by their numbers" in cli("profile", "compare", "a", "b", "--data-path", tmp_path)[2]


def test_only_what_a_kernel_can_be_is_read(tmp_path):
    """A profile from elsewhere may name any file."""
    secret, big, latin = tmp_path / "secret.txt", tmp_path / "big.py", tmp_path / "latin.py"
    secret.write_text("secret")
    big.write_text("#" * (2 << 20))
    latin.write_bytes("# é".encode("latin-1"))
    named = [secret, big, latin, tmp_path, tmp_path / "none.py", tmp_path / "folder.py"]
    (tmp_path / "folder.py").mkdir()
    rows = [
        made.instruction(start_ts=number, end_ts=number + 1, bir_debug_info_source_location=f"{path}:1")
        for number, path in enumerate(named)
    ]
    assert sources.found(Profile("hostile", {"Instruction": made.instructions(rows)})) == {}


def test_a_simulated_profile_takes_a_note_into_the_tracking_table(tmp_path, cli):
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL)
    where = [f"{path}:halve", "--input", "x=128x512:float32", "--target", "trn2", "--timing", "--data-path", tmp_path]
    assert cli("nki", "simulate", *where, "--profile", "first", "--note", "one tile")[0] == 0
    assert "one tile" in cli("profile", "summary", "first", "first", "--data-path", tmp_path)[1]
