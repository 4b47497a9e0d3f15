"""Check a bundle without its weights: what it holds, what it says, and whether its two scripts do what they must.

Each check is a function that returns its verdict; a check that cannot be made here says *not run*, never *passed*.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.files import read_json
from vibeserve.targets.bundle import find_bundle, packaged_bundles
from vibeserve.targets.bundle_toml import BundleToml, read_toml
from vibeserve.targets.meta import read_meta
from vibeserve.targets.objective import lines_to_add, metric_from_objective, missing_contents, stated_direction
from vibeserve.targets.probe import constant, echo, probe_server, write_tokenizer
from vibeserve.targets.probe_media import ANSWERS, MEDIA_APIS, media_server, write_clips
from vibeserve.targets.probe_realtime import realtime_server
from vibeserve.targets.strength import cases, rewritten, source_of, weaker
from vibeserve.targets.types import Metric

LAYOUT = (
    "OBJECTIVE.md", "README.md", "requirements.txt",
    "reference/README.md", "reference/meta.json", "reference/reference.py",
    "accuracy_checker/README.md", "accuracy_checker/checker.py",
    "benchmark/README.md", "benchmark/benchmark.py",
)  # fmt: skip
TEN_FLAGS = (
    "--url", "--endpoint", "--rate", "--duration", "--num-requests",
    "--max-tokens", "--temperature", "--prompt-len", "--seed", "--output-json",
)  # fmt: skip
_TEXT_APIS = ("openai-completions", "openai-chat")
_HELP_LIMIT_S = 20.0
_SCRIPT_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, its verdict (None: not run), and what was found."""

    name: str
    ok: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Validation:
    """All checks of one bundle; `ok` where none fails."""

    path: Path
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether no check fails."""
        return all(check.ok is not False for check in self.checks)


@dataclass
class _Subject:
    path: Path
    toml: BundleToml
    metric: Metric | None
    objective: str
    help: dict[str, str]


def validate(path_or_name: str | Path, *, run_scripts: bool = True) -> Validation:
    """Check the bundle at `path_or_name`. `run_scripts=False` leaves out what starts servers.

    Raises InputError only where there is no such bundle; everything else is a check that fails.
    """
    path = find_bundle(path_or_name).resolve()
    subject = _Subject(path, BundleToml(), None, "", {})
    steps: list[tuple[str, Callable[[_Subject], str | None]]] = [
        ("layout", _layout), ("bundle.toml", _bundle_toml), ("meta.json", _meta), ("json and toml", _documents),
        ("py_compile", _compiles), ("paths stay in the bundle", _paths), ("objective", _objective),
        ("metric and direction", _metric), ("checker --help", _checker_help), ("benchmark --help", _benchmark_help),
        ("benchmark flags", _flags), ("checker not weaker than its source", _not_weaker),
    ]  # fmt: skip
    if run_scripts:
        steps += [("metric in a sample output", _sample), ("checker rejects a constant server", _rejects)]
    return Validation(path, tuple(_run(name, step, subject) for name, step in steps))


class _NotRunError(Exception):
    """A check that cannot be made here, and why."""


class _HoldsError(Exception):
    """Not an error: the check holds, and there is something to say of it."""


def _run(name: str, step: Callable[[_Subject], str | None], subject: _Subject) -> Check:
    try:
        problem = step(subject)
    except _NotRunError as reason:
        return Check(name, None, f"not run: {reason}")
    except _HoldsError as remark:
        return Check(name, True, str(remark))
    except InputError as error:
        return Check(name, False, error.message)
    return Check(name, problem is None, problem or "")


def _layout(subject: _Subject) -> str | None:
    missing = [name for name in LAYOUT if not (subject.path / name).is_file()]
    empty = [name for name in LAYOUT if name not in missing and not (subject.path / name).stat().st_size]
    said = [f"missing: {', '.join(missing)}"] if missing else []
    return "; ".join(said + ([f"empty: {', '.join(empty)}"] if empty else [])) or None


def _bundle_toml(subject: _Subject) -> str | None:
    path = subject.path / "bundle.toml"
    if not path.is_file():
        raise _NotRunError("there is none; a bundle to the letter of the seed has no bundle.toml")
    subject.toml = read_toml(path)
    if subject.toml.metric is not None:
        subject.metric = Metric(subject.toml.metric.name, subject.toml.metric.unit, subject.toml.metric.direction)
    return None


def _meta(subject: _Subject) -> str | None:
    meta = read_meta(subject.path / "reference")
    return None if meta.task else f"{subject.path / 'reference' / 'meta.json'}: no 'task'"


def _own_files(path: Path, pattern: str) -> list[Path]:
    """The bundle's own files; the materialised model is not part of it."""
    return [
        file
        for file in sorted(path.rglob(pattern))
        if not {"model", "draft_model", "__pycache__"} & set(file.relative_to(path).parts[:-1])
    ]


def _documents(subject: _Subject) -> str | None:
    problems = []
    for file in [*_own_files(subject.path, "*.json"), *_own_files(subject.path, "*.toml")]:
        try:
            read_json(file) if file.suffix == ".json" else read_toml(file)
        except (ValueError, OSError) as error:
            problems.append(f"{file.relative_to(subject.path)}: {error}")
    return "; ".join(problems) or None


def _compiles(subject: _Subject) -> str | None:
    problems = []
    for file in _own_files(subject.path, "*.py"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(file.read_bytes(), str(file), "exec")
        except (SyntaxError, ValueError) as error:
            problems.append(f"{file.relative_to(subject.path)}: {error}")
    return "; ".join(problems) or None


def _paths(subject: _Subject) -> str | None:
    problems = []
    for link in sorted(subject.path.rglob("*")):
        if (
            link.is_symlink()
            and link.name not in ("model", "draft_model")
            and not link.resolve().is_relative_to(subject.path)
        ):
            problems.append(f"{link.relative_to(subject.path)} is a link to {link.resolve()}")
    for file in _own_files(subject.path, "*.py"):
        depth = len(file.relative_to(subject.path).parts)
        for line, text in _strings(file):
            leaves = text.startswith("../" * depth) or re.match(r"(/(home|Users|root|mnt|data|tmp)/|~/)", text)
            if leaves:
                problems.append(f"{file.relative_to(subject.path)}:{line}: {text!r}")
    for table in (subject.toml.checker, subject.toml.benchmark):
        problems += [
            f"bundle.toml: argument {arg!r}"
            for arg in table.args
            if re.match(r"(\.\./){2,}|/(home|Users|root|mnt)/", arg)
        ]
    return f"leave the bundle: {'; '.join(problems)}" if problems else None


def _strings(file: Path) -> list[tuple[int, str]]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return []
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value
    ]


def _objective(subject: _Subject) -> str | None:
    path = subject.path / "OBJECTIVE.md"
    if not path.is_file():
        return "OBJECTIVE.md is missing"
    subject.objective = path.read_text(encoding="utf-8", errors="replace")
    missing = missing_contents(subject.objective)
    return "; ".join(f"no {content.name}: {content.hint}" for content in missing) or None


def _metric(subject: _Subject) -> str | None:
    said = metric_from_objective(subject.objective)
    if subject.metric is None:
        subject.metric = said
        return None if said else f"neither bundle.toml nor OBJECTIVE.md says the metric: {lines_to_add()}"
    name, direction = subject.metric.name, subject.metric.direction
    stated = stated_direction(subject.objective, name)
    if stated is None:
        other = f" (it names `{said.name}`)" if said and said.name != name else ""
        return f"OBJECTIVE.md does not name `{name}` with one direction{other}: add 'Primary metric: `{name}`, {direction} is better.'"
    return None if stated == direction else f"bundle.toml says {direction} is better for {name}, OBJECTIVE.md {stated}"


def _script(
    subject: _Subject, script: Path, arguments: list[str], limit_s: float, isolated: bool = False
) -> subprocess.CompletedProcess[str]:
    # -S leaves out site-packages; the script's own folder stays importable, unlike with -I.
    flags = ["-B", "-S", "-E", "-s"] if isolated else ["-B"]
    try:
        return subprocess.run(
            [sys.executable, *flags, str(script), *arguments],
            cwd=script.parent, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{script.relative_to(subject.path)} {' '.join(arguments[:1])}: not done within {limit_s:g} s"
        ) from None


def _help(subject: _Subject, name: str) -> str | None:
    script = subject.path / name
    if not script.is_file():
        return f"{name} is missing"
    done = _script(subject, script, ["--help"], _HELP_LIMIT_S, isolated=True)
    subject.help[name] = done.stdout
    if done.returncode != 0:
        return f"exit code {done.returncode} without third-party packages: {_last_line(done.stderr)}"
    return None if "usage" in done.stdout.lower() else "prints no usage"


def _checker_help(subject: _Subject) -> str | None:
    return _help(subject, "accuracy_checker/checker.py")


def _benchmark_help(subject: _Subject) -> str | None:
    return _help(subject, "benchmark/benchmark.py")


def _has_flag(text: str, flag: str) -> bool:
    """Whether a help text defines `flag`: in its list of options, not only somewhere in its prose."""
    return re.search(rf"(?m)^\s+(-[\w-]+(,| [A-Z_.]+,)\s*)*{re.escape(flag)}(?![\w-])", text) is not None


def _flags(subject: _Subject) -> str | None:
    text = subject.help.get("benchmark/benchmark.py", "")
    missing = [flag for flag in TEN_FLAGS if not _has_flag(text, flag)]
    return f"the benchmark lacks {', '.join(missing)}" if missing else None


def _not_weaker(subject: _Subject) -> str | None:
    if subject.path in packaged_bundles().values():
        return None  # an example, from which others are started
    try:
        source = source_of(subject.path)
    except InputError as error:
        raise _NotRunError(error.message) from None
    if source is None:
        raise _NotRunError("README.md names no example that it was started from")
    try:
        lost = weaker(source, subject.path)
    except (SyntaxError, OSError) as error:
        raise _NotRunError(f"the checker cannot be read: {error}") from None
    if lost:
        return f"what {source.name} checks and this one does not: {'; '.join(lost)}"
    count = len(cases(source / "accuracy_checker" / "checker.py"))
    other = rewritten(source, subject.path)
    raise _HoldsError(
        f"all {count} kinds of cases of {source.name} are here, no bound is looser; "
        + (
            f"written otherwise, to be judged by a reader: {', '.join(other)}"
            if other
            else "the same code decides them"
        )
    )


@contextmanager
def _trial(subject: _Subject, name: str, *, varied: bool) -> Iterator[list[str]]:
    """A small server for the bundle's API; gives the arguments with which its script is tried against it."""
    help_text, generic = subject.help.get(name, ""), (subject.path / name).with_name("contract.py").is_file()
    api = subject.toml.serving.api
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if generic:
            # What `http` is says the contract: tried where the sample server knows its path.
            contract = (subject.path / name).with_name("contract.py").read_text(encoding="utf-8", errors="replace")
            endpoint = re.search(r'(?m)^ENDPOINT = "([^"]+)"', contract)
            by_path = ("http",) if endpoint is not None and endpoint[1] in ANSWERS else ()
            known = (*MEDIA_APIS, "openai-realtime", *by_path)
            if api not in known or importlib.util.find_spec("aiohttp") is None:
                raise _NotRunError(f"there is no sample server for {api}" if api not in known else "needs aiohttp")
            serve = realtime_server if api == "openai-realtime" else media_server
            arguments = ["--url", stack.enter_context(serve(varied=varied))]
            if _has_flag(help_text, "--audio-dir"):
                write_clips(Path(folder) / "clips")
                arguments += ["--audio-dir", str(Path(folder) / "clips"), "--clip-s", "0.5"]
                arguments += ["--way", "file"] if _has_flag(help_text, "--way") else []
            small = {"--size": "64x64", "--steps": "1", "--side": "32", "--frames": "2"}
            for flag, value in small.items():
                arguments += [flag, value] if _has_flag(help_text, flag) else []
        else:
            if api not in _TEXT_APIS:
                raise _NotRunError(f"there is no sample server for {api}")
            lacking = [module for module in ("tokenizers", "jinja2") if importlib.util.find_spec(module) is None]
            if lacking:
                raise _NotRunError(f"needs {', '.join(lacking)} (pip install 'vibeserve[engine]')")
            arguments = ["--url", stack.enter_context(probe_server(echo if varied else constant))]
            write_tokenizer(Path(folder) / "model")
        if _has_flag(help_text, "--model-dir"):
            arguments += ["--model-dir", str(Path(folder) / "model")]
        yield arguments


def _sample(subject: _Subject) -> str | None:
    if subject.metric is None:
        raise _NotRunError("no metric is declared")
    name = "benchmark/benchmark.py"
    if any(not _has_flag(subject.help.get(name, ""), flag) for flag in TEN_FLAGS):
        raise _NotRunError("the benchmark lacks flags that it needs")
    streamed = "stream" in subject.toml.benchmark.args and subject.toml.serving.api != "openai-chat"
    if streamed and re.search(r"ttft|finalize", subject.metric.name):
        raise _NotRunError(f"there is no sample server that streams: {subject.metric.name} cannot be tried")
    with tempfile.TemporaryDirectory() as folder, _trial(subject, name, varied=True) as trial:
        output = Path(folder) / "output.json"
        arguments = [
            *subject.toml.benchmark.args, "--num-requests", "6", "--rate", "50", "--duration", "5", "--max-tokens", "48",
            "--prompt-len", "480" if "--audio-dir" not in trial and "--size" not in trial else "12", "--seed", "1",
            "--output-json", str(output), *trial,
        ]  # fmt: skip
        done = _script(subject, subject.path / name, arguments, _SCRIPT_LIMIT_S)
        if not output.is_file():
            return f"no output (exit code {done.returncode}): {_last_line(done.stderr)}"
        try:
            document: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        except ValueError as error:
            return f"its output is not JSON: {error}"
    value = document.get(subject.metric.name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        reason = document.get(f"{subject.metric.name}_reason")
        return f"'{subject.metric.name}' is {value!r} at the top level of its output" + (
            f": {reason}" if reason else ""
        )
    return None


def _rejects(subject: _Subject) -> str | None:
    name = "accuracy_checker/checker.py"
    if not _has_flag(subject.help.get(name, ""), "--url"):
        raise _NotRunError("the checker has no --url: it does not ask a server")
    with _trial(subject, name, varied=False) as trial:
        done = _script(subject, subject.path / name, [*subject.toml.checker.args, *trial], _SCRIPT_LIMIT_S)
    if done.returncode == 0:
        return "it passes a server that answers every prompt alike"
    if done.returncode != 1:
        raise _NotRunError(f"the checker could not run here (exit code {done.returncode}): {_last_line(done.stderr)}")
    return None


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
