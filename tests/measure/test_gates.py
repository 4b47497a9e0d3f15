"""Checker and benchmark as programs: exit codes, JSON, metric, time."""

import errno
import json
import math
import os
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.base.errors import MissingError
from vibeserve.base.files import DiskFiles
from vibeserve.base.scripted import Script, ScriptedRunner
from vibeserve.measure.gates import (
    BenchResult,
    _first_failure,
    _judge_benchmark,
    _judge_checker,
    _number,
    _Ran,
    _read,
    _refused,
    known_faster,
    metric_value,
    run_benchmark,
    run_checker,
)
from vibeserve.measure.launch import launch
from vibeserve.targets.types import Bundle, Metric, ModelMeta

URL = "http://127.0.0.1:9"
NAMES = st.sampled_from(
    [
        "passed",
        "cases",
        "name",
        "ok",
        "detail",
        "failed",
        "requests",
        "errors",
        "output_tokens_per_s",
        "num_failed",
        "x",
    ]
)
TARGET = Bundle(
    path=None,
    slug="none",
    reference=Path("/"),
    checker=Path("/"),
    benchmark=Path("/"),
    objective=None,
    metric=Metric("output_tokens_per_s", "tokens/s", "higher"),
    meta=ModelMeta("none/none"),
)
SCRIPT = """
    import argparse, json, sys, time
    parser = argparse.ArgumentParser()
    for name in ("--url", "--model-dir", "--output-json", "--seed", "--fresh-seed", "--window"):
        parser.add_argument(name)
    args = parser.parse_args()
    def write(value):
        open(args.output_json, "w").write(value if isinstance(value, str) else json.dumps(value))
"""


def program(tail: str, head: str = SCRIPT) -> str:
    return textwrap.dedent(head) + textwrap.dedent(tail)


def test_a_good_server_passes_and_is_measured(bundle, candidate, tmp_path):
    with launch(candidate(), tmp_path, log_dir=tmp_path) as server:
        checked = run_checker(bundle, server.url, tmp_path, output=tmp_path / "out" / "check.json", seed=5)
        assert (checked.ok, checked.ran, checked.detail) == (True, True, "4 of 4 cases passed")
        measured = run_benchmark(bundle, server.url, tmp_path, seed=1, window_s=0.5, output=tmp_path / "bench.json")
        assert measured.ok
        assert measured.value == measured.document["output_tokens_per_s"] > 0
        assert measured.failed == 0
        assert measured.cpu_s > 0


CHECKER_CASES = [
    ("write({'passed': True, 'cases': [{'name': 'a', 'ok': True}]})", True, True, "1 of 1 cases passed"),
    (
        "write({'passed': False, 'cases': [dict(name='a', ok=True), dict(name='b', ok=False, detail='ids')]});sys.exit(1)",
        False,
        True,
        "1 of 2 cases failed: b: ids",
    ),
    ("write({'passed': False})\nsys.exit(0)", False, False, "exit code 0, but wrote passed = False"),
    ("write({'passed': True})\nsys.exit(1)", False, False, "exit code 1, but wrote passed = True"),
    ("print('no model here', file=sys.stderr); sys.exit(2)", False, False, "could not run: no model here"),
    (
        "print('error: no model here\\nhint: bring one', file=sys.stderr); sys.exit(2)",
        False,
        False,
        "could not run: no model here (bring one)",
    ),
    ("sys.exit(0)", False, False, "wrote no JSON"),
    ("write('}{')", False, False, "not JSON"),
    ("write('[1]')", False, False, "JSON that is not an object"),
    ("write('[' * 100000)", False, False, "not JSON"),
    ("write({'passed': 'yes'})", False, False, "no true or false under 'passed'"),
    ("raise SystemExit(7)", False, False, "exit code 7"),
    ("import os; os.kill(os.getpid(), 11)", False, False, "exit code -11"),
]


@pytest.mark.parametrize(("code", "ok", "ran", "said"), CHECKER_CASES)
def test_what_a_checker_may_do(script_bundle, tmp_path, code, ok, ran, said):
    result = run_checker(script_bundle(program(code)), URL, tmp_path, output=tmp_path / "check.json")
    assert (result.ok, result.ran) == (ok, ran)
    assert said in result.detail


def test_a_checker_that_hangs_is_ended(script_bundle, tmp_path):
    hanging = replace(script_bundle(program("print('waiting', flush=True)\ntime.sleep(600)")), checker_timeout_s=1.0)
    result = run_checker(hanging, URL, tmp_path, output=tmp_path / "check.json")
    assert (result.ok, result.ran, result.timed_out) == (False, False, True)
    assert result.detail == "checker.py did not end in time (its last line: waiting)"


def test_an_old_result_is_never_taken_for_a_new_one(script_bundle, tmp_path):
    (tmp_path / "check.json").write_text('{"passed": true}')
    result = run_checker(script_bundle(program("sys.exit(0)")), URL, tmp_path, output=tmp_path / "check.json")
    assert not result.ok


def test_paths_from_here_hold_in_the_scripts_own_directory(script_bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    code = "import os\nassert os.path.isdir(args.model_dir)\nwrite({'passed': True, 'output_tokens_per_s': 1.0})"
    bundle = script_bundle(program(code))
    checked = run_checker(bundle, URL, Path("model"), output=Path("check.json"))
    measured = run_benchmark(bundle, URL, Path("model"), seed=1, output=Path("bench.json"))
    assert (checked.ok, measured.value) == (True, 1.0), (checked.detail, measured.detail)


BENCHMARK_CASES = [
    ({"output_tokens_per_s": 12.5, "failed": 0}, 12.5, ""),
    ({"output_tokens_per_s": 3}, 3.0, ""),
    ({"tokens": 1.0, "other": 2}, None, "no 'output_tokens_per_s' (numbers at the top: other, tokens)"),
    ('{"output_tokens_per_s": NaN}', None, "'output_tokens_per_s' is nan, which is no result"),
    ('{"output_tokens_per_s": Infinity}', None, "is inf"),
    ({"output_tokens_per_s": True}, None, "is True, not a number"),
    ({"output_tokens_per_s": None, "output_tokens_per_s_reason": "no request ended"}, None, "null, not a number: no r"),
    ({"nested": {"output_tokens_per_s": 1.0}}, None, "numbers at the top: none"),
    ({"output_tokens_per_s": 9.0, "failed": 2, "requests": 8, "errors": ["reset"]}, None, "2 of 8 requests failed (fi"),
    ("garbage", None, "not JSON"),
    ({"output_tokens_per_s": 9.0, "num_failed": 2, "num_requests": 8}, None, "2 of 8 requests failed"),
    ({"output_tokens_per_s": 9.0, "failed": 1, "requests": "many"}, None, "1 requests failed"),
    ({"output_tokens_per_s": 9.0, "failed": 1}, None, "1 requests failed"),
    ({"output_tokens_per_s": 9.0, "failed": True}, 9.0, ""),
    ({"output_tokens_per_s": 9.0, "failed": "none"}, 9.0, ""),
    ({"output_tokens_per_s": 9.0, "failed": 1.5}, 9.0, ""),
]


@pytest.mark.parametrize(("written", "value", "said"), BENCHMARK_CASES)
def test_what_a_benchmark_may_write(script_bundle, tmp_path, written, value, said):
    result = run_benchmark(
        script_bundle(program(f"write({written!r})")), URL, tmp_path, seed=3, output=tmp_path / "bench.json"
    )
    assert result.value == value
    assert said in result.detail
    assert result.ok == (value is not None)


def test_flags_that_an_older_script_does_not_know_are_left_out(script_bundle, tmp_path):
    head = SCRIPT.replace('"--model-dir", ', "").replace('"--seed", "--fresh-seed", "--window"', '"--duration"')
    code = program("write({'output_tokens_per_s': 1.0, 'passed': True, 'argv': sys.argv[1:]})", head)
    older = script_bundle(code)
    measured = run_benchmark(older, URL, tmp_path, seed=3, window_s=2, output=tmp_path / "b.json")
    assert measured.value == 1.0
    assert measured.without == ("--model-dir", "--seed", "--fresh-seed", "--window")
    assert "--seed" not in measured.document["argv"]
    assert measured.document["argv"][-2:] == ["--duration", "2"]
    checked = run_checker(older, URL, tmp_path, output=tmp_path / "c.json")
    assert checked.ok
    assert "without --model-dir" in checked.detail


def test_a_script_that_cannot_be_told_the_address_does_not_run(script_bundle, tmp_path):
    code = program("write({'passed': True})", SCRIPT.replace('"--url", ', ""))
    result = run_checker(script_bundle(code), URL, tmp_path, output=tmp_path / "c.json")
    assert (result.ok, result.ran) == (False, False)


def test_the_bundles_arguments_cannot_set_ours_aside(script_bundle, tmp_path):
    code = program("write({'output_tokens_per_s': 1.0, 'url': args.url, 'seed': args.seed})")
    sly = replace(script_bundle(code), benchmark_args=("--url", "http://elsewhere", "--seed", "1"))
    result = run_benchmark(sly, URL, tmp_path, seed=3, output=tmp_path / "b.json")
    assert (result.document["url"], result.document["seed"]) == (URL, "3")


class FullDisk(DiskFiles):
    def append_text(self, path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said(bundle, tmp_path):
    with pytest.raises(MissingError, match="No space left"):
        run_checker(bundle, URL, tmp_path, output=tmp_path / "c.json", files=FullDisk())


FAULTS = [
    ("garbage", "requests failed"),
    ("content-type", "requests failed"),
    ("half-close", "requests failed"),
    ("reset", "requests failed"),
    ("not-http", "requests failed"),
    ("hang", "requests failed"),
    ("error-500", "requests failed"),
    ("early-eos", "requests failed"),
    ("die", "requests failed"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS)
def test_each_fault_of_a_server_ends_in_a_verdict(bundle, candidate, tmp_path, fault, said):
    bundle = replace(bundle, benchmark_args=("--timeout", "1"), checker_args=("--timeout", "1"))
    with launch(candidate(fault=fault, after=3), tmp_path, log_dir=tmp_path) as server:
        measured = run_benchmark(bundle, server.url, tmp_path, seed=1, window_s=1.0, output=tmp_path / "b.json")
        assert measured.value is None
        assert said in measured.detail
        checked = run_checker(bundle, server.url, tmp_path, output=tmp_path / "c.json")
        assert (checked.ok, checked.ran) == (False, True)


def test_wrong_tokens_are_caught(bundle, candidate, tmp_path):
    with launch(candidate(fault="wrong-tokens"), tmp_path, log_dir=tmp_path) as server:
        checked = run_checker(bundle, server.url, tmp_path, output=tmp_path / "c.json")
    assert checked.detail == "4 of 4 cases failed: greedy-0: token ids differ"


def test_metric_by_name_alone():
    assert metric_value({"x": 2}, Metric("x", "s", "lower")) == (2.0, "")
    value, problem = metric_value(json.loads('{"x": -Infinity}'), Metric("x", "s", "lower"))
    assert value is None
    assert "-inf" in problem


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(NAMES, JSON, max_size=5), st.integers(-15, 5))
def test_whatever_a_script_writes_is_a_result(document, exit_code):
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.json"
        written = {output: json.dumps(document)}
        runner = ScriptedRunner(lambda command: Script(exit_code=exit_code, files=written))
        arguments = {"output": output, "runner": runner, "clock": runner.clock}
        checked = run_checker(TARGET, URL, Path(folder), **arguments)
        assert checked.ok == (exit_code == 0 and document.get("passed") is True)
        assert checked.detail
        measured = run_benchmark(TARGET, URL, Path(folder), seed=1, **arguments)
        if measured.value is not None:
            assert exit_code == 0
            assert math.isfinite(measured.value)
        else:
            assert measured.detail


def test_time_is_up_on_a_logical_clock(tmp_path):
    runner = ScriptedRunner(lambda command: Script(runs_for_s=None, deaf=True))
    result = run_checker(TARGET, URL, tmp_path, output=tmp_path / "c.json", runner=runner, clock=runner.clock)
    assert result.timed_out
    assert TARGET.checker_timeout_s <= runner.clock.monotonic_s() <= TARGET.checker_timeout_s + 2


@pytest.mark.parametrize(
    ("value", "is_one"),
    [(1, True), (0.5, True), (True, False), (math.nan, False), (math.inf, False), ("1", False), (None, False)],
)
def test_what_is_a_number(value, is_one):
    assert _number(value) is is_one


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, ""),
        ({"errors": "text"}, ""),
        ({"errors": []}, ""),
        ({"errors": ["reset"]}, " (first: reset)"),
        ({"failure_examples": [], "errors": {}, "failures": {"reset": 3}}, " (first: ('reset', 3))"),
        ({"failure_examples": ["one"], "errors": ["two"]}, " (first: one)"),
        ({"errors": ["x" * 300]}, f" (first: {'x' * 200})"),
    ],
)
def test_the_first_failure(document, said):
    assert _first_failure(document) == said


def ran(exit_code: int | None, document: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """What is known of a script that has ended so."""
    values = {"problem": "", "dropped": (), "tail": "", "wall_s": 1.0, "cpu_s": 1.0, "timed_out": exit_code is None}
    return {"name": "x.py", "exit_code": exit_code, "document": document or {}, **values, **more}


WRONG = {"name": "b", "ok": False, "detail": "ids"}
RIGHT = {"name": "a", "ok": True}


@pytest.mark.parametrize(
    ("ended", "judged"),
    [
        (ran(0, {"passed": True, "cases": [RIGHT, RIGHT]}), (True, True, "2 of 2 cases passed")),
        (ran(0, {"passed": True, "cases": [RIGHT, WRONG, {}, 5]}), (True, True, "1 of 3 cases passed")),
        (ran(0, {"passed": True}), (True, True, "0 of 0 cases passed")),
        (
            ran(0, {"passed": True}, dropped=("--seed", "--window")),
            (True, True, "0 of 0 cases passed (without --seed, --window, which it does not know)"),
        ),
        (ran(1, {"passed": False, "cases": [RIGHT, WRONG]}), (False, True, "1 of 2 cases failed: b: ids")),
        (
            ran(1, {"passed": False, "cases": "none"}, tail="no case\n", dropped=("--seed",)),
            (False, True, "0 of 0 cases failed: no case (without --seed, which it does not know)"),
        ),
        (ran(1, {"passed": True}), (False, False, "x.py ended with exit code 1, but wrote passed = True")),
        (ran(0, {"passed": False}), (False, False, "x.py ended with exit code 0, but wrote passed = False")),
        (ran(0, {"passed": 1}), (False, False, "x.py wrote no true or false under 'passed'")),
        (
            ran(1, {"passed": False}, problem="wrote no JSON", tail="gone\n"),
            (False, False, "x.py ended with exit code 1 and wrote no JSON: gone"),
        ),
        (ran(2, {"passed": False}, tail="no model\n"), (False, False, "x.py could not run: no model")),
        (ran(2, {"passed": False}), (False, False, "x.py could not run: it said nothing")),
        (ran(3, {"passed": False}, tail="odd\n"), (False, False, "x.py ended with exit code 3: odd")),
        (ran(-9, {"passed": True}), (False, False, "x.py ended with exit code -9: it said nothing")),
        (
            ran(None, {"passed": True}, tail="waits\n"),
            (False, False, "x.py did not end in time (its last line: waits)"),
        ),
        (ran(None), (False, False, "x.py did not end in time")),
    ],
)
def test_how_a_checkers_end_is_judged(ended, judged):
    assert _judge_checker(_Ran(**ended)) == judged


GOOD = {"output_tokens_per_s": 9.0}


@pytest.mark.parametrize(
    ("ended", "judged"),
    [
        (ran(0, GOOD), (9.0, 0, "")),
        (ran(0, {**GOOD, "failed": 0, "num_failed": 3}), (9.0, 0, "")),
        (ran(0, {**GOOD, "failed": True}), (9.0, 0, "")),
        (ran(0, {**GOOD, "failed": "none"}), (9.0, 0, "")),
        (ran(0, {}), (None, 0, "x.py: its JSON has no 'output_tokens_per_s' (numbers at the top: none)")),
        (ran(0, {**GOOD, "failed": 2}, problem="wrote no JSON", tail="gone\n"), (None, 2, "x.py wrote no JSON: gone")),
        (ran(0, {**GOOD, "failed": 2}), (None, 2, "2 requests failed")),
        (
            ran(1, {**GOOD, "failed": 2, "requests": 8, "errors": ["reset"]}),
            (None, 2, "2 of 8 requests failed (first: reset)"),
        ),
        (ran(1, GOOD, tail="too few\n"), (None, 0, "x.py ended with exit code 1: too few")),
        (
            ran(1, {"output_tokens_per_s": None}, tail="too few\n"),
            (None, 0, "x.py: 'output_tokens_per_s' is null, not a number"),
        ),
        (ran(2, GOOD, tail="no model\n"), (None, 0, "x.py could not run: no model")),
        (ran(3, {**GOOD, "failed": 1}), (None, 1, "x.py ended with exit code 3: it said nothing")),
        (ran(None, {**GOOD, "failed": 1}), (None, 1, "x.py did not end in time")),
    ],
)
def test_how_a_benchmarks_end_is_judged(ended, judged):
    assert _judge_benchmark(_Ran(**ended), TARGET.metric) == judged


@pytest.mark.parametrize(("value", "is_one"), [(9.0, True), (0.0, True), (None, False)])
def test_a_value_is_a_result(value, is_one):
    assert BenchResult(value, {}, 0).ok is is_one


def test_what_was_made_before_has_no_value():
    requests = [spans(0.1, fresh=True)] * 4 + [spans(0.01, fresh=False)] * 4
    value, failed, why = _judge_benchmark(_Ran(**ran(0, {**GOOD, "per_request": requests})), TARGET.metric)
    assert (value, failed) == (None, 0)
    assert why == "x.py: answers to the seed's prompts took 10% of the time of fresh ones: they were made before"


@pytest.mark.parametrize(
    ("document", "value", "why"),
    [
        (
            {"other": 1, "more": 0.5, "text": "9", "flag": True, "none": None, "list": [1]},
            None,
            "its JSON has no 'output_tokens_per_s' (numbers at the top: more, other)",
        ),
        ({"output_tokens_per_s": 3}, 3.0, ""),
        ({"output_tokens_per_s": False}, None, "'output_tokens_per_s' is False, not a number"),
        ({"output_tokens_per_s": "9"}, None, "'output_tokens_per_s' is '9', not a number"),
        (
            {"output_tokens_per_s": None, "output_tokens_per_s_reason": "no request ended"},
            None,
            "'output_tokens_per_s' is null, not a number: no request ended",
        ),
        ({"output_tokens_per_s": math.inf}, None, "'output_tokens_per_s' is inf, which is no result"),
    ],
)
def test_the_metric_in_a_document(document, value, why):
    assert metric_value(document, TARGET.metric) == (value, why)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (None, ({}, "wrote no JSON")),
        ("}{", ({}, "wrote something that is not JSON (JSONDecodeError)")),
        ("[1]", ({}, "wrote JSON that is not an object")),
        ('{"a": [1]}', ({"a": [1]}, "")),
    ],
)
def test_what_is_read(tmp_path, written, found):
    if written is not None:
        (tmp_path / "out.json").write_text(written)
    assert _read(tmp_path / "out.json") == found


@pytest.mark.parametrize(
    ("exit_code", "tail", "refused"),
    [
        (2, "x.py: error: unrecognized arguments: --url u --window 4 --seed 3", ["--seed", "--window"]),
        (2, "x.py: error: unrecognized arguments: --url u", []),
        (2, "x.py: error: no model --seed 3", []),
        (1, "x.py: error: unrecognized arguments: --seed 3", []),
        (None, "x.py: error: unrecognized arguments: --seed 3", []),
    ],
)
def test_which_flags_are_refused(exit_code, tail, refused):
    flags = [("--url", "u"), ("--model-dir", "m"), ("--seed", "3"), ("--window", "4")]
    assert _refused(exit_code, tail, flags) == refused


def spans(span_s: float, *, fresh: bool, first_s: float = 0.5) -> dict[str, Any]:
    """A request whose answer took so long from its first token on."""
    return {"fresh": fresh, "state": "ok", "ttft_s": first_s, "latency_s": first_s + span_s}


@pytest.mark.parametrize(
    ("fresh_s", "known_s", "told"),
    [
        # Four that spread by a tenth either way: three degrees of freedom leave a factor of 1.80 above their mean.
        ([0.1] * 4, [0.1 * math.exp(-1.6 + d) for d in (0.1, -0.1, 0.1, -0.1)], True),
        ([0.1] * 4, [0.1 * math.exp(-1.4 + d) for d in (0.1, -0.1, 0.1, -0.1)], False),
        # Fresh ones that spread count as much.
        ([0.1 * math.exp(d) for d in (0.1, -0.1, 0.1, -0.1)], [0.1 * math.exp(-1.6)] * 4, True),
        ([0.1 * math.exp(d) for d in (0.1, -0.1, 0.1, -0.1)], [0.1 * math.exp(-1.4)] * 4, False),
        # Of different numbers the smaller one counts.
        ([0.1] * 9, [0.1 * math.exp(-1.4 + d) for d in (0.1, -0.1, 0.1, -0.1)], False),
        ([0.1] * 4, [0.0] * 4, False),  # all at once: there is no span to compare
        ([0.005] * 4, [0.0005] * 4, True),  # just long enough to be timed
    ],
)
def test_how_sure_it_must_be_that_answers_were_made_before(fresh_s, known_s, told):
    of_each = ((fresh_s, True), (known_s, False))
    requests = [spans(span_s, fresh=fresh, first_s=0.0) for values, fresh in of_each for span_s in values]
    assert (known_faster({"per_request": requests}) != "") is told


@pytest.mark.parametrize("per_request", [None, "text", [None], [5], [{"state": "ok", "fresh": 1}]])
def test_where_there_is_nothing_to_compare(per_request):
    assert known_faster({"per_request": per_request}) == ""


@pytest.mark.parametrize("wrong", [{"state": "cut off"}, {"latency_s": math.nan}, {"ttft_s": None}, {"latency_s": 0.5}])
def test_only_whole_answers_of_either_kind_count(wrong):
    for fresh in (True, False):
        requests = [spans(0.1, fresh=True) for _ in range(4)] + [spans(0.01, fresh=False) for _ in range(4)]
        assert known_faster({"per_request": requests}) != ""
        requests[0 if fresh else 4] |= wrong
        assert known_faster({"per_request": requests}) == ""
