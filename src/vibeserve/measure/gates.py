"""The bundle's checker and benchmark, run as programs beside a running server; what they say becomes a typed result."""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from vibeserve.base.clock import Clock, SystemClock
from vibeserve.base.files import DiskFiles, Files
from vibeserve.base.processes import Command, Process, ProcessError, ProcessRunner, SystemRunner, clean_environment
from vibeserve.base.randomness import derive_seed
from vibeserve.measure.cpus import plan_cpus
from vibeserve.measure.errors import cannot_write, last_line, tail_of
from vibeserve.measure.statistics import t_quantile
from vibeserve.targets.types import Bundle, Metric

_UNKNOWN_FLAG = re.compile(r"unrecognized arguments: (.*)")
# A script to the letter of an older bundle may not know these; it runs without them, and the result says so.
_OPTIONAL = ("--model-dir", "--seed", "--window", "--fresh-seed", "--duration")
# When the seed's prompts are said to be answered from memory: requests of each kind, seconds that a fresh one takes at
# least, how far below it a span counts, the share, and how sure that must be.
_KNOWN_LEAST, _KNOWN_LEAST_S, _KNOWN_FLOOR, _KNOWN_SHARE, _KNOWN_CONFIDENCE = 4, 0.005, 0.02, 0.4, 0.999
# What to ask for instead: an older benchmark sends for a while and awaits the rest, where ours cuts the window off.
_INSTEAD = {"--window": "--duration"}


@dataclass(frozen=True)
class GateResult:
    """A gate's outcome. `ran` False: it came to no conclusion (`detail` says why), so it neither passed nor failed."""

    ok: bool
    ran: bool
    detail: str
    document: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    timed_out: bool = False


@dataclass(frozen=True)
class BenchResult:
    """One benchmark run. `value` is the bundle's metric, or None with `detail` saying why there is none.

    `failed` counts requests that failed: a window with failures has no value, since what it answers is another
    workload. `noisy` says what disturbed the machine meanwhile; it never looks at the value. `without` lists flags that
    an older script does not know, and ran without.
    """

    value: float | None
    document: dict[str, Any]
    failed: int
    noisy: tuple[str, ...] = ()
    detail: str = ""
    exit_code: int | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    timed_out: bool = False
    without: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.value is not None


def run_checker(
    bundle: Bundle,
    url: str,
    model_dir: Path,
    *,
    output: Path,
    seed: int | None = None,
    extra_args: Sequence[str] = (),
    runner: ProcessRunner | None = None,
    clock: Clock | None = None,
    files: Files | None = None,
    group: str = "",
) -> GateResult:
    """Run checker.py against `url`; its JSON is written to `output`, its prints beside it (`.log`).

    Exit 0 with `"passed": true` passes; exit 1 with `"passed": false` fails; everything else did not run: exit 2, any
    other code, no JSON, JSON that contradicts the exit code, or no end within the bundle's time.
    """
    flags = [("--url", url), *_paths(model_dir, output)]
    if seed is not None:
        flags.append(("--seed", str(seed)))
    ran = _run_script(
        bundle.checker_script,
        flags,
        [*bundle.checker_args, *extra_args],
        timeout_s=bundle.checker_timeout_s,
        output=output,
        runner=runner,
        clock=clock,
        files=files,
        group=group,
    )
    ok, concluded, detail = _judge_checker(ran)
    return GateResult(ok, concluded, detail, ran.document, ran.exit_code, ran.wall_s, ran.cpu_s, ran.timed_out)


def run_benchmark(
    bundle: Bundle,
    url: str,
    model_dir: Path,
    *,
    seed: int,
    window_s: float | None = None,
    extra_args: Sequence[str] = (),
    output: Path,
    timeout_s: float | None = None,
    runner: ProcessRunner | None = None,
    clock: Clock | None = None,
    files: Files | None = None,
    group: str = "",
) -> BenchResult:
    """Run benchmark.py against `url`: `window_s` seconds of load with the prompts of `seed`, fresh ones included.

    The window is asked for by `--window`; of a benchmark that does not know it, by `--duration`.
    The value is the bundle's metric: a top-level finite number of that name in the JSON.
    """
    flags = [("--url", url), *_paths(model_dir, output), ("--seed", str(seed))]
    flags.append(("--fresh-seed", str(derive_seed(seed, "fresh") % 2**31)))
    if window_s is not None:
        flags.append(("--window", f"{window_s:g}"))
    ran = _run_script(
        bundle.benchmark_script,
        flags,
        [*bundle.benchmark_args, *extra_args],
        timeout_s=bundle.benchmark_timeout_s if timeout_s is None else timeout_s,
        output=output,
        runner=runner,
        clock=clock,
        files=files,
        group=group,
    )
    value, failed, detail = _judge_benchmark(ran, bundle.metric)
    return BenchResult(
        value,
        ran.document,
        failed,
        detail=detail,
        exit_code=ran.exit_code,
        wall_s=ran.wall_s,
        cpu_s=ran.cpu_s,
        timed_out=ran.timed_out,
        without=ran.dropped,
    )


@dataclass(frozen=True)
class _Ran:
    name: str
    exit_code: int | None
    document: dict[str, Any]
    problem: str
    dropped: tuple[str, ...]
    tail: str
    wall_s: float
    cpu_s: float
    timed_out: bool

    def why(self) -> str:
        """Why it came to no conclusion."""
        said = last_line(self.tail)
        if self.timed_out:
            return f"{self.name} did not end in time" + (f" (its last line: {said})" if said else "")
        if self.exit_code == 2:
            return f"{self.name} could not run: {said or 'it said nothing'}"
        return f"{self.name} ended with exit code {self.exit_code}: {said or 'it said nothing'}"


def _paths(model_dir: Path, output: Path) -> list[tuple[str, str]]:
    """The flags that name paths; absolute, since a script runs in its own directory."""
    return [("--model-dir", str(model_dir.absolute())), ("--output-json", str(output.absolute()))]


def _run_script(
    script: Path,
    flags: Sequence[tuple[str, str]],
    args: Sequence[str],
    *,
    timeout_s: float,
    output: Path,
    runner: ProcessRunner | None,
    clock: Clock | None,
    files: Files | None,
    group: str,
) -> _Ran:
    """Run one script of the bundle to its end, or to the end of its time."""
    runner, clock, files = runner or SystemRunner(), clock or SystemClock(), files or DiskFiles()
    output = output.absolute()
    log = output.with_suffix(".log")
    try:
        files.remove(output)
        files.append_text(log, "")
    except OSError as error:
        raise cannot_write(log, error) from None
    begin_s, cpu_s = clock.monotonic_s(), 0.0
    known = list(flags)
    dropped: list[str] = []
    while True:
        # The bundle's arguments first: ours win, and so cannot be set aside by it.
        ours = [word for flag in known for word in flag]
        argv = (sys.executable, str(script), *args, *ours)
        start = log.stat().st_size if log.exists() else 0
        command = Command(argv, script.parent, log, env=clean_environment(), cpus=plan_cpus().client, group=group)
        try:
            process: Process = runner.start(command)
        except ProcessError as error:
            return _Ran(script.name, None, {}, error.message, tuple(dropped), error.message, 0.0, 0.0, False)
        try:
            exit_code = process.wait(max(0.0, timeout_s - (clock.monotonic_s() - begin_s)))
        finally:
            process.end(1.0)
        cpu_s += process.cpu_s()
        tail = tail_of(log) if log.stat().st_size > start else ""
        refused = _refused(exit_code, tail, known)
        if not refused:
            break
        dropped += refused
        known = [(_INSTEAD.get(name, ""), value) if name in refused else (name, value) for name, value in known]
        known = [(name, value) for name, value in known if name]
    document, problem = _read(output)
    wall_s = clock.monotonic_s() - begin_s
    return _Ran(script.name, exit_code, document, problem, tuple(dropped), tail, wall_s, cpu_s, exit_code is None)


def _refused(exit_code: int | None, tail: str, flags: Sequence[tuple[str, str]]) -> list[str]:
    """Our optional flags that the script does not know."""
    if exit_code != 2 or not (match := _UNKNOWN_FLAG.search(tail)):
        return []
    words = match[1].split()
    return [name for name, _ in flags if name in _OPTIONAL and name in words]


def _read(output: Path) -> tuple[dict[str, Any], str]:
    """The JSON object in `output`, and what is wrong with it."""
    try:
        document = json.loads(output.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, "wrote no JSON"
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"wrote something that is not JSON ({type(error).__name__})"
    if not isinstance(document, dict):
        return {}, "wrote JSON that is not an object"
    return document, ""


def _judge_checker(ran: _Ran) -> tuple[bool, bool, str]:
    """(passed, came to a conclusion, why)."""
    if ran.timed_out or ran.exit_code not in (0, 1):
        return False, False, ran.why()
    if ran.problem:
        return False, False, f"{ran.name} ended with exit code {ran.exit_code} and {ran.problem}: {last_line(ran.tail)}"
    passed = ran.document.get("passed")
    if not isinstance(passed, bool):
        return False, False, f"{ran.name} wrote no true or false under 'passed'"
    if passed != (ran.exit_code == 0):
        return False, False, f"{ran.name} ended with exit code {ran.exit_code}, but wrote passed = {passed}"
    cases = ran.document.get("cases")
    cases = [case for case in cases if isinstance(case, dict)] if isinstance(cases, list) else []
    wrong = [case for case in cases if case.get("ok") is not True]
    without = f" (without {', '.join(ran.dropped)}, which it does not know)" if ran.dropped else ""
    if passed:
        return True, True, f"{len(cases) - len(wrong)} of {len(cases)} cases passed{without}"
    first = f": {wrong[0].get('name')}: {wrong[0].get('detail')}" if wrong else f": {last_line(ran.tail)}"
    return False, True, f"{len(wrong)} of {len(cases)} cases failed{first}{without}"


def _judge_benchmark(ran: _Ran, metric: Metric) -> tuple[float | None, int, str]:
    """(the metric's value, failed requests, why there is no value)."""
    failed = ran.document.get("failed", ran.document.get("num_failed", 0))
    failed = failed if isinstance(failed, int) and not isinstance(failed, bool) else 0
    if ran.timed_out or ran.exit_code not in (0, 1):
        return None, failed, ran.why()
    if ran.problem:
        return None, failed, f"{ran.name} {ran.problem}: {last_line(ran.tail)}"
    if failed:
        requests = ran.document.get("requests", ran.document.get("num_requests"))
        of = f" of {requests}" if isinstance(requests, int) else ""
        return None, failed, f"{failed}{of} requests failed{_first_failure(ran.document)}"
    if ran.exit_code == 1:
        _, problem = metric_value(ran.document, metric)
        return None, failed, f"{ran.name}: {problem}" if problem else ran.why()
    value, problem = metric_value(ran.document, metric)
    if value is not None and (problem := known_faster(ran.document)):
        value = None
    return value, failed, f"{ran.name}: {problem}" if problem else ""


def known_faster(document: dict[str, Any]) -> str:
    """What speaks for answers that were made before: tokens of the seed's prompts come much faster than of fresh ones.

    From the benchmark's `per_request`: seconds from the first token to the end, of answers that have ended. A cache of
    prefixes saves the prompt, never the tokens. Empty where the upper end of Welch's one-sided interval of the log ratio
    is not below two fifths, or there are too few of either kind.
    """
    spans: dict[bool, list[float]] = {True: [], False: []}
    requests = document.get("per_request")
    for one in requests if isinstance(requests, list) else []:
        if isinstance(one, dict) and one.get("state") == "ok" and isinstance(one.get("fresh"), bool):
            whole, first = one.get("latency_s"), one.get("ttft_s")
            if _number(whole) and _number(first) and whole > first:
                spans[one["fresh"]].append(whole - first)
    fresh, known = spans[True], spans[False]
    if min(len(fresh), len(known)) < _KNOWN_LEAST or statistics.median(fresh) < _KNOWN_LEAST_S:
        return ""
    floor = _KNOWN_FLOOR * statistics.median(fresh)
    logs = [[math.log(max(value, floor)) for value in values] for values in (known, fresh)]
    parts = [statistics.variance(values) / len(values) for values in logs]
    difference = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    # The smaller sample's degrees of freedom: never more confident than Welch's own.
    error = math.sqrt(sum(parts)) * t_quantile(_KNOWN_CONFIDENCE, min(map(len, logs)) - 1)
    if math.exp(difference + error) >= _KNOWN_SHARE:
        return ""
    share = math.exp(difference)
    return f"answers to the seed's prompts took {share:.0%} of the time of fresh ones: they were made before"


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _first_failure(document: dict[str, Any]) -> str:
    for key in ("failure_examples", "errors", "failures"):
        found = document.get(key)
        if isinstance(found, list | dict) and found:
            first = next(iter(found.items() if isinstance(found, dict) else found))
            return f" (first: {str(first)[:200]})"
    return ""


def metric_value(document: dict[str, Any], metric: Metric) -> tuple[float | None, str]:
    """The metric in a benchmark's JSON: a top-level finite number by name; otherwise None and what is there instead."""
    if metric.name not in document:
        numbers = sorted(
            key for key, value in document.items() if isinstance(value, int | float) and not isinstance(value, bool)
        )
        return None, f"its JSON has no {metric.name!r} (numbers at the top: {', '.join(numbers) or 'none'})"
    value = document[metric.name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        reason = document.get(f"{metric.name}_reason")
        shown = "null" if value is None else repr(value)
        return None, f"{metric.name!r} is {shown}, not a number" + (f": {reason}" if reason else "")
    if not math.isfinite(value):
        return None, f"{metric.name!r} is {value}, which is no result"
    return float(value), ""
