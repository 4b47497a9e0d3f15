"""What is said to answer a failure elsewhere is there: every test, cheat and decision that the table names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cheats.adversary import ADVERSARY
from tests.cheats.candidates import TRICKS
from tests.cheats.further import FURTHER
from tests.cheats.insider import INSIDER
from tests.cheats.zealous import ZEALOUS
from tests.cheats.zoo import CHEATS

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "decisions" / "judge-lessons.md"
ROWS = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
ANSWERS = [row for row in ROWS if not row.startswith("| Seen")]
KNOWN = {*CHEATS, *FURTHER, *ADVERSARY, *ZEALOUS, *INSIDER, *TRICKS}


def test_the_table_is_there() -> None:
    assert len(ANSWERS) >= 40


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: row[2:42])
def test_what_a_row_names_exists(row: str) -> None:
    seen, answer = (cell.strip() for cell in row.strip("| ").split(" | "))
    assert seen
    assert answer
    for name in re.findall(r"`([\w/.-]+\.py)(?:: (\w+))?`", answer):
        path, test = name
        if path in ("benchmark.py", "checker.py"):
            continue
        file = ROOT / "tests" / path
        assert file.is_file(), path
        assert not test or f"def {test}(" in file.read_text(encoding="utf-8"), name
    for decision in re.findall(r"`([\w-]+\.md)`", answer):
        assert (ROOT / "docs" / "decisions" / decision).is_file(), decision
    if "`cheats`: " in answer:
        names = re.findall(r"[A-Z]\w+", answer.split("`cheats`: ")[1].split(";")[0])
        assert names
        assert set(names) <= KNOWN, set(names) - KNOWN
