"""The code-edit bundle's file: predictions are edits of what was written, with a word that ties each to its task."""

from __future__ import annotations

import json
import random
import runpy
from pathlib import Path

import pytest

BUNDLE = Path(__file__).parents[2] / "examples" / "model-serving" / "smollm2-135m-cpu-code-edit"


def test_edits_are_small_and_distinct() -> None:
    rows = [json.loads(line) for line in (BUNDLE / "benchmark" / "edits.jsonl").read_text().splitlines()]
    assert len(rows) == len({row["ask"] for row in rows}) >= 20
    for row in rows:
        assert 0 < row["changed"] <= 0.10
        assert row["sentinel"] in row["ask"]


@pytest.mark.parametrize("seed", range(5))
def test_an_edit_changes_lines_and_words(seed: int) -> None:
    edited = runpy.run_path(str(BUNDLE / "benchmark" / "make_edits.py"))["edited"]
    text = (
        "def total(items):\n    result = 0\n    for item in items:\n        result += item.price\n    return result\n"
    )
    made = edited(text, random.Random(seed))
    assert made != text
    assert made == edited(text, random.Random(seed))
    assert len(made.split("\n")) in (len(text.split("\n")), len(text.split("\n")) + 1)
    assert "# checked" in made or "# " in made


def test_the_checker_edits_and_judges_predictions() -> None:
    checker = runpy.run_path(str(BUNDLE / "accuracy_checker" / "checker.py"))
    generator = random.Random(3)
    assert checker["edited"]("one two three four five", generator) != "one two three four five"
    asked, report = checker["Asked"](), checker["Report"]()
    answer = checker["Answer"]
    usage = {"completion_tokens": 2, "completion_tokens_details": {"accepted_prediction_tokens": 3}}
    asked.alone["a"] = answer(text="right", ids=[1, 2], finish_reason="length")
    asked.predicted = [
        (
            "a",
            "right",
            "right",
            answer(text="right", ids=[1, 2], finish_reason="length", usage={"completion_tokens": 2}),
        ),
        ("a", "another", "echoed", answer(text="echoed", ids=[3], finish_reason="length", usage=usage)),
    ]
    checker["judge_predictions"](asked, report)
    verdicts = {case["name"]: case["ok"] for case in report.cases}
    assert verdicts == {
        "prediction-right/a": True,
        "prediction-usage/a/right": True,
        "prediction-another/a": False,
        "prediction-usage/a/another": False,
    }
