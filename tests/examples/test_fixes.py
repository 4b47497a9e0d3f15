"""Code edits: who mends passes, who repeats the input or answers something else fails; and text bundles share their scripts."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.examples.servers import Ask, honest, serving

from vibeserve.base.paths import packaged
from vibeserve.targets.probe import probe_server

SERVING = packaged("examples") / "model-serving"
EDIT = SERVING / "qwen3-32b-code-edit"
PLAIN = (
    "smollm2-135m-cpu-chat",
    "smollm2-135m-cpu-prefix-caching",
    "smollm2-135m-cpu-chat-slo",
    "smollm2-135m-cpu-long-context",
    "Llama-3-8B",
    "Llama-3-8B-trn2",
    "olmo-hybrid-prefix-caching",
)


def _load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fixes() -> ModuleType:
    """fixes.py, which both scripts import by this name."""
    return _load(EDIT / "benchmark" / "fixes.py", "fixes")


@pytest.fixture(scope="module")
def bench(fixes: ModuleType) -> ModuleType:
    """benchmark.py of the code-edit bundle."""
    return _load(EDIT / "benchmark" / "benchmark.py", "edit_benchmark")


@pytest.fixture(scope="module")
def checker(fixes: ModuleType) -> ModuleType:
    """checker.py of the code-edit bundle."""
    return _load(EDIT / "accuracy_checker" / "checker.py", "edit_checker")


@pytest.fixture
def known(fixes, monkeypatch):
    """What was asked → the task, so that a server of this test can mend it."""
    asked = {}
    make = fixes.make

    def remember(generator, suffix=""):
        fix = make(generator, suffix)
        asked[fix.ask] = fix
        return fix

    monkeypatch.setattr(fixes, "make", remember)
    return asked


def _task(known, prompt):
    return next(fix for ask, fix in known.items() if ask in prompt)


ANSWERS = {
    "mends": lambda fix: f"```python\n{fix.mended}```",
    "repeats the input": lambda fix: f"```python\n{fix.broken}```",
    "repeats it with another name": lambda fix: fix.broken.replace("total", "sum_of_all"),
    "changes something else": lambda fix: fix.broken.replace("(", "( ", 1).replace("print", "print_all"),
    "adds a line": lambda fix: f"```python\n{fix.broken}\n# mended: {fix.name}\n```",
    "half of the program": lambda fix: fix.mended[: len(fix.mended) // 2],
    "a mended program for all": lambda fix: "def total(items):\n    return sum(items)\n",
}


def test_every_mistake_is_a_mistake_and_only_the_mended_program_is_a_fix(fixes):
    for number in range(300):
        fix = fixes.make(random.Random(number))
        assert fix.broken != fix.mended
        assert fix.name in fix.mended
        assert 0.9 < fixes.nearness(fix.broken, fix.mended) < 1
        compile(fix.broken, "broken", "exec")
        for name, answer in ANSWERS.items():
            assert fixes.is_fix(fix, answer(fix)) is (name == "mends"), name
        assert fixes.is_fix(fix, f"<think>hm ```no```</think>\nHere:\n```python\n{fix.mended}")
    for program in fixes._PROGRAMS:
        assert all(program.text.count(right) == 1 for right, _ in program.mistakes)


@pytest.mark.parametrize("name", ANSWERS)
def test_the_benchmark_gives_no_figure_for_answers_that_mend_nothing(name, bench, known, tiny, tmp_path, monkeypatch):
    async def behave(ask: Ask) -> None:
        await honest(ask, size=16, text=ANSWERS[name](_task(known, ask.prompt))[: ask.count])

    output = tmp_path / "o.json"
    with serving(behave) as url:
        words = f"benchmark.py --url {url} --model-dir {tiny} --output-json {output} --calibrate 0 --num-requests 8"
        monkeypatch.setattr(sys, "argv", words.split())
        code = bench.main()
    document = json.loads(output.read_text())
    assert document["completed"] == 8
    if name == "mends":
        assert code == 0
        assert document["output_tokens_per_s"] > 0
        assert document["plausibility"]["fixes"]["fixed"] == 1.0
        assert document["workload"]["predicted_share"] == 1.0
        assert document["workload"]["features"] == ["chat", "predicted-outputs"]
        assert document["workload"]["output_tokens"] < 512
    else:
        assert code == 1
        assert document["output_tokens_per_s"] is None
        assert document["plausibility"]["fixes"]["fixed"] == 0.0


@pytest.mark.parametrize("name", ANSWERS)
def test_the_checker_fails_who_mends_nothing(name, checker, known):
    args = argparse.Namespace(num_fixes=6, seed=7, ask_suffix="/no_think", fix_tokens=512)
    report = checker.Report()
    with probe_server(lambda prompt, _: ANSWERS[name](_task(known, prompt))) as url:
        wire = checker.Wire(url, 30)
        asked = checker.ask_fixes(wire, args, [checker.FIXED[6]])
    assert all(fix.ask.endswith("/no_think") for _, fix, _ in asked)
    checker.judge_fixes(asked, 0.5, report)
    cases = {case["name"]: case["ok"] for case in report.cases}
    assert cases == {"fix/answers": True, "fix/nearer-than-the-input": name == "mends"}


def _pieces(path: Path) -> dict[str, str]:
    """Top-level functions, classes' methods and the rest of a script, by name."""
    text = path.read_text()
    found = {}
    for node in ast.parse(text).body:
        for part in node.body if isinstance(node, ast.ClassDef) else [node]:
            name = getattr(part, "name", None)
            if name:
                owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                found[owner + name] = ast.dump(part)
    return found


def test_text_bundles_share_their_scripts_but_for_the_defaults_of_flags():
    chat, code = SERVING / PLAIN[0], SERVING / "smollm2-135m-cpu-code-edit"
    for script in ("reference/reference.py", "accuracy_checker/checker.py", "benchmark/benchmark.py"):
        for other in PLAIN[1:]:
            a, b = _pieces(chat / script), _pieces(SERVING / other / script)
            assert {n for n in a.keys() | b.keys() if a.get(n) != b.get(n)} <= {"parser", "main"}, (other, script)
    for other in (code, EDIT):
        a, b = _pieces(chat / "reference/reference.py"), _pieces(other / "reference/reference.py")
        assert {n for n in a.keys() | b.keys() if a.get(n) != b.get(n)} <= {"main"}


def test_the_code_edit_bundles_differ_in_what_they_ask_only():
    own = {
        "accuracy_checker/checker.py": {"parser", "run", "ask_fixes", "judge_fixes"},
        "benchmark/benchmark.py": {"parser", "figures", "plausibility", "Prompts.__init__", "Prompts._make", "Prompts._fix"},
    }  # fmt: skip
    for script, names in own.items():
        a, b = _pieces(SERVING / "smollm2-135m-cpu-code-edit" / script), _pieces(EDIT / script)
        assert {n for n in a.keys() | b.keys() if a.get(n) != b.get(n)} == names, script
    both = [(EDIT / place / "fixes.py").read_bytes() for place in ("accuracy_checker", "benchmark")]
    assert both[0] == both[1]
