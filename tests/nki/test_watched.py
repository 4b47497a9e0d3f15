"""Every rule is watched: taken out of the data, some row of `rejections.toml` or change of a legal call is refused no longer."""

from __future__ import annotations

import ast
import copy
import inspect
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.nki import test_calls as calls
from tests.nki.test_rejections import TABLE, run

from vibeserve.nki import KernelError, rules, shapes, views
from vibeserve.nki.instruction import REGISTRY, entries
from vibeserve.nki.special import _MODULES

DOCUMENTED = tomllib.loads((Path(__file__).parent / "rules.toml").read_text(encoding="utf-8"))
INTERNAL = {"vector_function", "broadcast_tile"}  # the language's own; no kernel names them


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKI_QUIET", "1")


def refusal(row: dict[str, Any]) -> str:
    """The code that a row's call is refused with; what else happened where it is not."""
    try:
        run(row["call"], row)
    except KernelError as error:
        return error.code
    except Exception as error:
        return type(error).__name__
    return "accepted"


def outcome(name: str, changed: dict[str, Any]) -> str:
    """The same of a legal call in which something is changed."""
    try:
        calls.call(name, **changed)
    except KernelError as error:
        return error.code
    except Exception as error:
        return type(error).__name__
    return "accepted"


Looser = tuple[str, str, dict[str, Any]]


def looser(entry: dict[str, Any]) -> Iterator[Looser]:
    """Each way to leave one rule out of an entry: (which, the parameter that it is about, the entry without it)."""

    def without(name: str, *path: Any, to: Any = None) -> Looser:
        changed = copy.deepcopy(entry)
        inner = changed
        for key in (name, *path)[:-1]:
            inner = inner[key]
        last = (name, *path)[-1]
        if to is None:
            del inner[last]
        else:
            inner[last] = to
        about = path[0] if path else ""
        return ".".join(map(str, (name, *path))), entry[name][about] if isinstance(about, int) else about, changed

    for name, argument in entry.items():
        match name:
            case "since":
                yield without(name)
            case "spaces":
                yield from (without(name, operand, to=["hbm", "sbuf", "psum"]) for operand in argument)
            case "same_partitions" | "same_elements" | "same_dtype":
                yield from (without(name, at) for at in range(1, len(argument)))
            case "column":
                yield from (without(name, at) for at in range(len(argument)))
            case "dtypes" | "enums" | "engine_since" | "bits_on_integers" | "ops":
                yield from (without(name, key) for key in argument)
            case "limits":
                yield from (without(name, operand, bound) for operand, bounds in argument.items() for bound in bounds)
            case "not_both_psum" | "reduce_cmds":
                yield without(name)
            case "special":
                if isinstance(argument, str):
                    yield without(name)
                else:
                    yield from (without(name, at) for at in range(len(argument)))


@pytest.mark.parametrize("name", sorted(set(entries()) - INTERNAL))
def test_each_rule_of_the_data_has_a_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = REGISTRY[name]
    spec.load()
    rows = [row for rows in TABLE.values() for row in rows if f".{name}(" in row["call"]]
    changed = list(calls.changes(name))
    unwatched = []
    for which, about, entry in looser(spec.entry):
        first = sorted(changed, key=lambda change: about not in change[0])
        with monkeypatch.context() as patch:
            patch.setattr(spec, "entry", entry)
            spec.checked.clear()
            if not any(refusal(row) != row["code"] for row in rows) and not any(
                outcome(name, options) not in codes for _, codes, options in first
            ):
                unwatched.append(which)
        spec.checked.clear()
    assert unwatched == [], f"no row of rejections.toml is refused by these rules of {name} alone"


def test_each_refusal_in_the_rules_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    written = {
        (Path(module.__file__ or "").name, node.lineno)
        for module in (*_MODULES, rules)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "call.fail"
    }
    reached = set()
    fail = rules.Call.fail

    def noted(call: Any, *args: Any, **options: Any) -> Any:
        frame = inspect.getframeinfo(sys._getframe(1), context=0)
        node = frame.positions
        reached.add((Path(frame.filename).name, node.lineno if node else frame.lineno))
        fail(call, *args, **options)

    monkeypatch.setattr(rules.Call, "fail", noted)
    for spec in REGISTRY.values():
        spec.checked.clear()
    for rows in TABLE.values():
        for row in rows:
            refusal(row)
    missing = [f"{file}:{line}" for file, line in sorted(written - reached)]
    assert not missing, "\n".join(missing)


def test_each_refusal_of_a_view_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    written = {
        (Path(module.__file__ or "").name, node.lineno)
        for module in (views, shapes)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "fail" and "NKI-PRECISE-FP" not in ast.unparse(node)
    }
    reached = set()
    fail = views.fail

    def noted(*args: Any, **options: Any) -> Any:
        frame = inspect.getframeinfo(sys._getframe(1), context=0)
        reached.add((Path(frame.filename).name, frame.positions.lineno if frame.positions else frame.lineno))
        fail(*args, **options)

    for module in (views, shapes):
        monkeypatch.setattr(module, "fail", noted)
    for row in TABLE["language"] + TABLE["views"] + TABLE["dma_copy"] + TABLE["dma_transpose"]:
        refusal(row)
    missing = [f"{file}:{line}" for file, line in sorted(written - reached)]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_each_documented_rule_has_a_row(name: str) -> None:
    assert sorted(set(DOCUMENTED[name]) - {row["says"] for row in TABLE.get(name, ())}) == []


def test_the_documented_rules_are_of_all_instructions() -> None:
    inside = INTERNAL | {"register_load", "register_store"}
    assert set(entries()) - inside <= set(DOCUMENTED)
