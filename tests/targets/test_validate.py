"""`vibeserve validate`: a good bundle passes, and each fault is found by the check that is there for it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from vibeserve.targets import Validation, packaged_bundles, validate
from vibeserve.targets.objective import missing_contents


def _verdicts(result: Validation) -> dict[str, bool | None]:
    return {check.name: check.ok for check in result.checks}


@pytest.mark.parametrize(
    "name",
    [
        n if n == "smollm2-135m-cpu-chat" else pytest.param(n, marks=pytest.mark.slow)
        for n in sorted(packaged_bundles())
    ],
)
def test_every_packaged_bundle_is_valid(name):
    result = validate(name)
    assert result.ok, [check for check in result.checks if check.ok is False]
    assert all(check.detail for check in result.checks if check.ok is None)
    if name == "smollm2-135m-cpu-chat":
        assert set(_verdicts(result).values()) == {True}


@pytest.mark.parametrize("name", sorted(packaged_bundles()))
def test_every_packaged_bundle_is_complete(name):
    result = validate(name, run_scripts=False)
    assert result.ok, [check for check in result.checks if check.ok is False]


def _edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def apply(bundle: Path) -> None:
        text = (bundle / name).read_text()
        assert old in text
        (bundle / name).write_text(text.replace(old, new))

    return apply


def _cut(name: str) -> Callable[[Path], None]:
    return lambda bundle: (bundle / name).unlink()


def _append(name: str, text: str) -> Callable[[Path], None]:
    return lambda bundle: (bundle / name).write_text((bundle / name).read_text() + text)


def _outside_link(bundle: Path) -> None:
    (bundle.parent / "secret.txt").write_text("x")
    (bundle / "benchmark" / "data.txt").symlink_to(bundle.parent / "secret.txt")


def _drop_section(heading: str) -> Callable[[Path], None]:
    def apply(bundle: Path) -> None:
        path = bundle / "OBJECTIVE.md"
        path.write_text(re.sub(rf"(?ms)^(- \*\*|## ){heading}.*?(?=^(- \*\*|## )|\Z)", "", path.read_text()))

    return apply


FAULTS = [
    (_cut("accuracy_checker/README.md"), "layout", "accuracy_checker/README.md"),
    (_append("bundle.toml", "\n[metrics]\n"), "bundle.toml", "unknown key 'metrics'"),
    (_edit("reference/meta.json", '"task": "text-generation",', ""), "meta.json", "task"),
    (_append("reference/meta.json", "}"), "json and toml", "reference/meta.json"),
    (_append("benchmark/benchmark.py", "\ndef broken(:\n"), "py_compile", "benchmark/benchmark.py"),
    (_outside_link, "paths stay in the bundle", "benchmark/data.txt"),
    (_append("accuracy_checker/checker.py", "\nDATA = '../../other/reference/model'\n"), "paths stay in the bundle", "checker.py:"),
    (_append("benchmark/benchmark.py", "\nDATA = '/home/me/data.json'\n"), "paths stay in the bundle", "/home/me"),
    (_drop_section("API"), "objective", "API shape"),
    (_drop_section("Not allowed"), "objective", "disallowed shortcuts"),
    (_edit("OBJECTIVE.md", "higher is better", "lower is better"), "metric and direction", "OBJECTIVE.md lower"),
    (_edit("bundle.toml", '"output_tokens_per_s"', '"request_throughput"'), "metric and direction", "request_throughput"),
    (_edit("accuracy_checker/checker.py", "import argparse\n", "import argparse\nimport torch\n"), "checker --help", "torch"),
    (_edit("benchmark/benchmark.py", "import argparse\n", "import argparse\nimport numpy\n"), "benchmark --help", "numpy"),
    (_edit("benchmark/benchmark.py", '"--duration"', '"--seconds", dest="duration"'), "benchmark flags", "--duration"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "check", "words"), FAULTS, ids=[f"{i}-{c}" for i, (_, c, _) in enumerate(FAULTS)])
def test_each_fault_is_found(copied, fault, check, words):
    fault(copied)
    result = validate(copied, run_scripts=False)
    assert not result.ok
    found = next(c for c in result.checks if c.name == check)
    assert found.ok is False
    assert words in found.detail


def test_a_metric_that_the_output_lacks(copied):
    for name in ("bundle.toml", "OBJECTIVE.md"):
        _edit(name, "output_tokens_per_s", "tokens_per_joule")(copied)
    result = validate(copied)
    found = next(c for c in result.checks if c.name == "metric in a sample output")
    assert found.ok is False
    assert "tokens_per_joule" in found.detail


def test_a_checker_that_passes_everything(copied):
    (copied / "accuracy_checker" / "checker.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--url')\np.add_argument('--model-dir')\np.parse_args()\n"
    )
    found = next(c for c in validate(copied).checks if c.name == "checker rejects a constant server")
    assert found.ok is False
    assert "alike" in found.detail


WEAKENED = {
    "a case is gone": ("accuracy_checker/checker.py", 'judge_equal("together-equals-alone", asked.alone, asked.together, report)', "pass", "together-equals-alone"),
    "a flag is gone": ("accuracy_checker/checker.py", '"--num-fresh"', '"--fresh", dest="num_fresh"', "no num-fresh"),
    "fewer fresh prompts": ("accuracy_checker/checker.py", "default=6, help", "default=1, help", "num-fresh is 1, 6 in the source"),
    "a margin that fp32 does not need": ("bundle.toml", "near_tie_margin = 0.0", "near_tie_margin = 0.5", "near_tie_margin is 0.5"),
    "a share below all": ("bundle.toml", "min_top1 = 1.0", "min_top1 = 0.9", "min_top1 is 0.9"),
}  # fmt: skip


@pytest.mark.parametrize("name", WEAKENED)
def test_a_checker_that_is_weaker_than_its_source(copied, name):
    file, old, new, words = WEAKENED[name]
    _append("README.md", "\nStarted from the example\n`smollm2-135m-cpu-chat`.\n")(copied)
    check = "checker not weaker than its source"
    assert _verdicts(validate(copied, run_scripts=False))[check] is True
    _edit(file, old, new)(copied)
    found = next(c for c in validate(copied, run_scripts=False).checks if c.name == check)
    assert found.ok is False
    assert words in found.detail


def test_functions_of_the_checker_that_are_written_otherwise_are_listed(copied):
    _append("README.md", "\nStarted from the example\n`smollm2-135m-cpu-chat`.\n")(copied)
    check = "checker not weaker than its source"
    said = next(c for c in validate(copied, run_scripts=False).checks if c.name == check)
    assert said.ok is True
    assert "the same code decides them" in said.detail
    _edit("accuracy_checker/checker.py", "    return whole == sent or", "    return True or whole == sent or")(copied)
    said = next(c for c in validate(copied, run_scripts=False).checks if c.name == check)
    assert said.ok is True
    assert "to be judged by a reader: same_text" in said.detail


def test_a_contract_with_looser_bounds_is_weaker(copied):
    image = packaged_bundles()["terrain-diffusion-cpu-image"]
    shutil.copytree(image, copied / "image", ignore=shutil.ignore_patterns("model", "__pycache__"))
    image = copied / "image"
    _append("README.md", "\nStarted from the example `terrain-diffusion-cpu-image`.\n")(image)
    check = "checker not weaker than its source"
    assert _verdicts(validate(image, run_scripts=False))[check] is True
    _edit("accuracy_checker/contract.py", "MIN_DISTANCE = 2.0, 2.0, 4.0", "MIN_DISTANCE = 9.0, 2.0, 4.0")(image)
    _edit("bundle.toml", "[checker]\ntimeout_s = 1200\nargs = []", '[checker]\nargs = ["--num-cases", "2"]')(image)
    found = next(c for c in validate(image, run_scripts=False).checks if c.name == check)
    assert "MAX_DISTANCE is 9, 2 in the source" in found.detail
    assert "num-cases is 2, 4 in the source" in found.detail


def test_without_a_source_that_is_here_nothing_is_claimed(copied):
    check = "checker not weaker than its source"
    assert _verdicts(validate(copied, run_scripts=False))[check] is None
    _append("README.md", "\nStarted from the example `somebody-elses`.\n")(copied)
    found = next(c for c in validate(copied, run_scripts=False).checks if c.name == check)
    assert found.ok is None
    assert "somebody-elses" in found.detail


def test_what_cannot_be_tried_says_not_run_and_does_not_pass(copied):
    _edit("bundle.toml", '"openai-chat"', '"openai-images"')(copied)
    verdicts = _verdicts(validate(copied))
    assert verdicts["metric in a sample output"] is None
    assert verdicts["checker rejects a constant server"] is None


def test_a_bundle_to_the_letter_of_the_seed(copied):
    (copied / "bundle.toml").unlink()
    shutil.rmtree(copied / "reference" / "model", ignore_errors=True)
    result = validate(copied)
    assert result.ok, result.checks
    assert _verdicts(result)["bundle.toml"] is None
    assert _verdicts(result)["metric in a sample output"] is True


def test_the_second_bundle_copied_with_another_metric(copied):
    _edit("bundle.toml", 'name = "output_tokens_per_s"\nunit = "tokens/s"\ndirection = "higher"',
          'name = "p95_latency_s"\nunit = "s"\ndirection = "lower"')(copied)  # fmt: skip
    _edit("OBJECTIVE.md", "`output_tokens_per_s`, higher is better", "`p95_latency_s`, lower is better")(copied)
    assert validate(copied).ok


def test_the_verb(copied, cli):
    code, out, _ = cli("validate", copied, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["ok"] is True
    assert {"name", "ok", "detail"} <= set(document["checks"][0])
    _append("bundle.toml", "\nxyz = 1\n")(copied)
    (copied / "accuracy_checker" / "checker.py").unlink()
    (copied / "benchmark" / "benchmark.py").unlink()
    code, out, _ = cli("validate", copied)
    assert code == 1
    assert "FAIL" in out
    assert "xyz" in out
    code, _, err = cli("validate", copied / "nothing")
    assert code == 2
    assert "error:" in err


@pytest.mark.parametrize("name", sorted(packaged_bundles()))
@pytest.mark.parametrize(
    ("line", "content"),
    [
        ("Model and modality", "model and modality"), ("Hardware", "hardware"), ("Primary metric", "primary metric with direction"),
        ("API", "API shape"), ("Accuracy", "accuracy requirement"),
    ],
)  # fmt: skip
def test_an_objective_without_one_of_its_contents_is_found(name, line, content):
    text = (packaged_bundles()[name] / "OBJECTIVE.md").read_text()
    without = re.sub(
        rf"(?ms)^- \*\*{line}\.\*\*.*?(?=^- |^$)", "", text.partition("\n")[2]
    )  # the title names the machine too
    assert len(without) < len(text.partition("\n")[2])
    assert content in [missing.name for missing in missing_contents(without)]
    assert missing_contents(text) == []
