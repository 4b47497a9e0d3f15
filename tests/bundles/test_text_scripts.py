"""Text bundles' checkers: servers without token ids, ids that do not spell their text, and answers that echo the prediction."""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.examples.servers import Ask, honest, serving

from vibeserve.base.paths import packaged

SERVING = packaged("examples") / "model-serving"
EDIT = SERVING / "smollm2-135m-cpu-code-edit"
CHECKERS = [
    path for path in sorted(SERVING.glob("*/accuracy_checker/checker.py")) if "def judge_stops" in path.read_text()
]


def load(path: Path) -> ModuleType:
    """A script as a module; what lies beside it can be imported."""
    name = re.sub(r"\W", "_", f"{path.parents[1].name}_{path.stem}")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


async def whole(ask: Ask, status: str, document: dict[str, Any]) -> None:
    """An answer that is not streamed."""
    data = json.dumps(document).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    ask.writer.write(head.encode() + data)


def test_there_are_nine_text_bundles():
    assert len(CHECKERS) == 9


@pytest.mark.parametrize("path", CHECKERS, ids=lambda path: path.parents[1].name)
def test_a_server_that_refuses_token_ids_is_asked_without_and_it_is_said(path, capsys):
    checker = load(path)
    asked: list[dict[str, Any]] = []

    async def behave(ask: Ask) -> None:
        asked.append(ask.body)
        if "return_token_ids" in ask.body:
            await whole(ask, "400 Bad Request", {"error": {"message": "unknown field return_token_ids"}})
        else:
            choice = {"index": 0, "text": "Paris", "finish_reason": "length"}
            await whole(ask, "200 OK", {"choices": [choice], "usage": {"completion_tokens": 1}})

    with serving(behave) as url:
        wire = checker.Wire(url, 10.0)
        first, second = wire.ask(checker.FIXED[0]), wire.ask(checker.FIXED[1])
    assert (first.error, first.text, first.ids, second.error) == (None, "Paris", None, None)
    assert ["return_token_ids" in body for body in asked] == [True, False, False]
    said = capsys.readouterr().out
    assert "refuses a request with return_token_ids" in said
    assert "compared by their text" in said


@pytest.mark.parametrize("path", CHECKERS, ids=lambda path: path.parents[1].name)
def test_a_400_after_good_answers_is_a_failure_like_any_other(path):
    checker = load(path)

    async def behave(ask: Ask) -> None:
        if ask.number:
            await whole(ask, "400 Bad Request", {"error": {"message": "no"}})
        else:
            await whole(ask, "200 OK", {"choices": [{"index": 0, "text": "x", "token_ids": [1]}]})

    with serving(behave) as url:
        wire = checker.Wire(url, 10.0)
        assert wire.ask(checker.FIXED[0]).error is None
        assert "HTTP 400" in (wire.ask(checker.FIXED[1]).error or "")
    assert wire.ids


@pytest.mark.parametrize("path", CHECKERS, ids=lambda path: path.parents[1].name)
def test_ids_that_do_not_spell_the_stop_are_a_case_that_fails(path):
    checker = load(path)
    asked, report, prompt = checker.Asked(), checker.Report(), checker.FIXED[0]
    asked.alone[prompt.name] = checker.Answer(text="one two three", ids=[1, 2], finish_reason="length")
    asked.stops = [(prompt, "two", False, checker.Answer(text="one ", ids=[1], finish_reason="stop"))]
    checker.judge_stops(SimpleNamespace(text=lambda ids: "other words"), asked, report)
    (case,) = report.cases
    assert case["ok"] is False
    assert "not in the text of its ids" in case["detail"]


def test_an_echoed_prediction_fails_the_checker_and_an_honest_answer_passes():
    checker = load(EDIT / "accuracy_checker" / "checker.py")
    right = (
        "def total(items):\n    result = 0\n    for item in items:\n        result += item.price\n    return result\n"
    )
    sent = checker.edited(right, random.Random(4))
    for text, holds in ((right, True), (sent, False)):
        asked, report = checker.Asked(), checker.Report()
        asked.alone["a"] = checker.Answer(text=right, finish_reason="length", usage={"completion_tokens": 40})
        answer = checker.Answer(text=text, finish_reason="length", usage={"completion_tokens": 40})
        asked.predicted = [("a", "edited", sent, answer)]
        checker.judge_predictions(asked, report)
        assert {c["name"]: c["ok"] for c in report.cases}["nearer-than-the-prediction/a"] is holds


@pytest.mark.parametrize(("echo", "code"), [(True, 1), (False, 0)])
def test_a_benchmark_of_edits_gives_no_figure_for_echoed_predictions(echo, code, tiny, tmp_path, monkeypatch):
    """The answer is the prediction, or the prediction with words put right in its middle."""
    bench = load(EDIT / "benchmark" / "benchmark.py")

    async def behave(ask: Ask) -> None:
        text = ask.body["prediction"]["content"]
        if not echo:
            text = re.sub(r"(?m)^.*# checked.*\n", "", text)
            text = re.sub(r"\b(\w{4,})\b(?=(?:\W+\w+){12}\W*$)", "mended", text)
            words = re.split(r"(\W+)", text)
            for at in range(20, len(words), 40):
                words[at] = f"right{at}"
            text = "".join(words)
        await honest(ask, size=64, text=text[: ask.count])

    output = tmp_path / "o.json"
    edits = EDIT / "benchmark" / "edits.jsonl"
    with serving(behave) as url:
        words = (
            f"b --url {url} --model-dir {tiny} --output-json {output} --calibrate 0 --num-requests 12 --concurrency 2"
        )
        monkeypatch.setattr(sys, "argv", [*words.split(), "--edits", str(edits), "--max-tokens", "400"])
        monkeypatch.setattr(bench, "HERE", EDIT / "benchmark", raising=False)
        assert bench.main() == code
    plausible = json.loads(output.read_text())["plausibility"]
    assert (plausible["echoed_predictions"] > 0.9) is echo
    assert plausible["ok"] is (not echo)


def test_a_suffix_ends_the_questions_of_checker_and_benchmark(tiny):
    chat = SERVING / "smollm2-135m-cpu-chat"
    checker, bench = load(chat / "accuracy_checker" / "checker.py"), load(chat / "benchmark" / "benchmark.py")
    args = argparse.Namespace(seed=3, num_fresh=4, prefix_words=10, model_dir=tiny, ask_suffix="/no_think")
    prompts = checker.suite(args)
    assert all(p.messages[-1][1].endswith(" /no_think") for p in prompts if p.chat)
    assert not any("/no_think" in p.text for p in prompts)
    args = bench.parser().parse_args(["--ask-suffix", "/no_think", "--model-dir", str(tiny)])
    args.fresh_seed = 5
    made = bench.Prompts(bench.Tokens(tiny), True, args, 256, "x").get(0)
    assert made.messages[-1]["content"].endswith(" /no_think")
    assert made.tokens == 256
