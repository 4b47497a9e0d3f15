"""Whether a checker checks less than the one that it was copied from: cases that are gone, bounds that are looser.

Read from the scripts' source, without running them: the names of the cases that a checker reports, the defaults of its flags, the
bounds of contract.py, and what bundle.toml declares and passes. A case that is still reported but no longer decided by the same
code is no proof of weakness: such functions are listed, for a reader to judge; the trial against a server that answers always
alike is there for the worst of these.
"""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.targets.bundle import packaged_bundles
from vibeserve.targets.bundle_toml import BundleToml, read_toml

# Functions of a checker whose arguments hold the name of a case.
_REPORTING = ("add", "exact", "judge_equal", "judge_same")
_AT_LEAST = re.compile(r"^(min|num)-|^(CASES|MIN_DISTANCE)$")
_AT_MOST = re.compile(r"^max-(distance|repeat|loss)|^MAX_(DISTANCE|REPEAT)")
_STARTED_FROM = re.compile(r"Started\s+from\s+the\s+example\s+`([^`]+)`")


def source_of(bundle: Path) -> Path | None:
    """The bundle that this one says it was started from; None where it says none.

    Raises InputError where it names one that is not here.
    """
    readme = bundle / "README.md"
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    named = _STARTED_FROM.search(text)
    if named is None:
        return None
    own, packaged = bundle.parent / named.group(1), packaged_bundles().get(named.group(1))
    for place in (own, packaged):
        if place is not None and (place / "accuracy_checker" / "checker.py").is_file() and place.resolve() != bundle:
            return place
    raise InputError(f"the example {named.group(1)!r}, from which it was started, is not here")


def weaker(source: Path, copy: Path) -> list[str]:
    """What the checker of `source` checks and the one of `copy` does not, in words; empty where it is no weaker."""
    mine, theirs = (folder / "accuracy_checker" / "checker.py" for folder in (copy, source))
    said = [f"no case {name!r}" for name in sorted(cases(theirs) - cases(mine))]
    have, wanted = _bounds(copy), _bounds(source)
    for name, value in wanted.items():
        if name not in have:
            said += [] if _of_contract(name) and _contract(source) != _contract(copy) else [f"no {name}"]
        elif _of_contract(name) and _contract(source) != _contract(copy):
            continue  # other distances, other bounds
        elif (have[name] < value and _AT_LEAST.search(name)) or (have[name] > value and _AT_MOST.search(name)):
            said.append(f"{name} is {have[name]:g}, {value:g} in the source")
    exact = _toml(copy).accuracy.dtypes == ["float32"]
    for name in (
        ("near_tie_margin", "min_top1") if exact else ()
    ):  # other arithmetic has near ties of its own: declared, and shown
        mine_is, theirs_is = (getattr(_toml(folder).accuracy, name) for folder in (copy, source))
        if mine_is > theirs_is if name == "near_tie_margin" else mine_is < theirs_is:
            said.append(f"{name} is {mine_is:g}, {theirs_is:g} in the source")
    return said


def rewritten(source: Path, copy: Path) -> list[str]:
    """Functions of the source's checker that the copy has with other code, or not at all; `parser` holds defaults and is left out."""
    mine, theirs = (_functions(folder / "accuracy_checker" / "checker.py") for folder in (copy, source))
    return sorted(name for name, code in theirs.items() if name != "parser" and mine.get(name) != code)


def _functions(script: Path) -> dict[str, str]:
    """Functions and methods of a script by name, as trees: comments and line ends make no difference."""
    found = {}
    for node in ast.parse(script.read_bytes()).body:
        for part in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                found[owner + part.name] = ast.dump(part)
    return found


def _toml(bundle: Path) -> BundleToml:
    return read_toml(bundle / "bundle.toml") if (bundle / "bundle.toml").is_file() else BundleToml()


def _of_contract(name: str) -> bool:
    return name.isupper() or name in ("max-distance", "max-repeat", "min-distance", "num-cases")


def _contract(bundle: Path) -> str:
    """What a contract's distances are of; empty where there is no contract.py."""
    path = bundle / "accuracy_checker" / "contract.py"
    found = re.search(r"(?m)^DISTANCE = (.+)$", path.read_text(encoding="utf-8")) if path.is_file() else None
    return found.group(1) if found else ""


def cases(checker: Path) -> set[str]:
    """The first parts of the names of the cases that a checker reports: `together-equals-alone`, `stop` …"""
    found = set()
    for node in ast.walk(ast.parse(checker.read_bytes())):
        named: list[Any] = []
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            named = node.args[:3] if called in _REPORTING else []
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "name":
            named = [node.value]
        texts = [part.values[0] if isinstance(part, ast.JoinedStr) and part.values else part for part in named]
        first = next((t.value for t in texts if isinstance(t, ast.Constant) and isinstance(t.value, str)), "")
        found |= set(re.findall(r"^[a-z][a-z-]*(?=/|$|-$)", first))
    return found


def _bounds(bundle: Path) -> dict[str, float]:
    """Names and values of everything that makes a checker stricter or looser; the arguments that bundle.toml passes win."""
    folder = bundle / "accuracy_checker"
    found: dict[str, float] = {}
    for script in (folder / "contract.py", folder / "checker.py"):
        if script.is_file():
            found |= _numbers(script, found)
    arguments = _toml(bundle).checker.args
    for flag, value in itertools.pairwise(arguments):
        name = flag.removeprefix("--")
        if flag.startswith("--") and name in found and re.fullmatch(r"-?\d+(\.\d+)?", value):
            found[name] = float(value)
    return found


def _numbers(script: Path, known: dict[str, float]) -> dict[str, float]:
    """Defaults of flags, and constants in capitals, that bound what passes; `known` are the constants of contract.py."""
    found: dict[str, float] = {}
    for node in ast.walk(ast.parse(script.read_bytes())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument" and node.args:
            name = getattr(node.args[0], "value", "")
            default = next((k.value for k in node.keywords if k.arg == "default"), None)
            name = name.removeprefix("--") if isinstance(name, str) else ""
            if _bounding(name) and isinstance(default, ast.Constant):
                found |= _entry(name, default.value)
            elif _bounding(name) and isinstance(default, ast.Attribute):
                found |= _entry(name, known.get(default.attr))
        elif isinstance(node, ast.Assign):
            names = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for target, value in zip(names, values, strict=False):
                if isinstance(target, ast.Name) and _bounding(target.id) and isinstance(value, ast.Constant):
                    found |= _entry(target.id, value.value)
    return found


def _bounding(name: str) -> bool:
    return bool(_AT_LEAST.search(name) or _AT_MOST.search(name))


def _entry(name: str, value: Any) -> dict[str, float]:
    return {name: float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else {}
