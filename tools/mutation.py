"""Mutation tests: each small change to the judge, the statistics and the acceptance code must make a test fail.

    python tools/mutation.py                     every module of mutation.toml
    python tools/mutation.py verdict prompts     those whose path holds one of the words

A process is forked for each mutant with the libraries loaded and the mutated module put in place of its file, so that a
mutant costs its tests and no start of an interpreter. (mutmut 3 cannot put its copies in place of an editable install,
cosmic-ray starts pytest anew for each mutant.) Texts of messages are left alone. Exit code 1 where the score is below the
one that mutation.toml asks for.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parents[1]
CONFIG = Path(__file__).with_suffix(".toml")
PRELOADED = (
    "pytest",
    "hypothesis",
    "numpy",
    "scipy.special",
    "scipy.stats",
    "psutil",
    "aiohttp",
    "msgspec",
    "pydantic",
)
TIMEOUT_S = 120

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.BitAnd: ast.BitOr,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the whole module with it, and where and what it is."""

    line: int
    what: str
    code: CodeType


def variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Other nodes that could stand in this one's place, each with words for the change."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[place] = COMPARED[type(operator)]()
            yield f"{type(operator).__name__} → {type(other.ops[place]).__name__}", other
    elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED and not _text(node):
        other_op = copy.deepcopy(node)
        other_op.op = COMPUTED[type(node.op)]()
        yield f"{type(node.op).__name__} → {type(other_op.op).__name__}", other_op
    elif isinstance(node, ast.BoolOp):
        other_bool = copy.deepcopy(node)
        other_bool.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"{type(node.op).__name__} → {type(other_bool.op).__name__}", other_bool
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not left out", copy.deepcopy(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} → {not node.value}", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield f"{node.value} → {node.value + 1}", ast.Constant(node.value + 1)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        other_test = copy.deepcopy(node)
        other_test.test = ast.UnaryOp(ast.Not(), copy.deepcopy(node.test))
        yield "condition turned", other_test
    elif isinstance(node, ast.Return) and node.value is not None and not _none(node.value):
        yield "returns None", ast.Return(ast.Constant(None))
    elif isinstance(node, ast.AugAssign) and type(node.op) in COMPUTED and not _text(node):
        other_aug = copy.deepcopy(node)
        other_aug.op = COMPUTED[type(node.op)]()
        yield f"{type(node.op).__name__}= → {type(other_aug.op).__name__}=", other_aug


def _none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _text(node: ast.AST) -> bool:
    """Whether an operation puts texts together."""
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )


def mutants(source: str, path: str, functions: Sequence[str]) -> Iterator[Mutant]:
    """Every mutant of a module; only of these functions where any are named."""
    tree = ast.parse(source)
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and (not functions or node.name in functions)
        for part in ast.walk(node)
        if part is not node
    }
    inside -= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    constants = [] if functions else [node for node in tree.body if isinstance(node, ast.Assign)]
    inside |= {id(part) for node in constants for part in ast.walk(node)}
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            for place, node in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(node, ast.AST) or id(node) not in inside or name in ("annotation", "returns"):
                    continue
                for what, other in variants(node):
                    ast.copy_location(other, node)
                    _put(parent, name, place, other)
                    code = compile(ast.fix_missing_locations(copy.deepcopy(tree)), path, "exec", dont_inherit=True)
                    _put(parent, name, place, node)
                    yield Mutant(getattr(node, "lineno", 0), what, code)


def _put(parent: ast.AST, name: str, place: int, node: ast.AST) -> None:
    value = getattr(parent, name)
    if isinstance(value, list):
        value[place] = node
    else:
        setattr(parent, name, node)


class Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a mutant's code."""

    def __init__(self, name: str, path: Path, code: CodeType):
        self.name, self.path, self.code = name, path, code

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Ours, or nobody's."""
        if fullname != self.name:
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=str(self.path), is_package=self.path.stem == "__init__"
        )
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(str(self.path.parent))
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the mutant."""
        exec(self.code, module.__dict__)


def start(name: str, path: Path, code: CodeType | None, tests: Sequence[str]) -> int:
    """Run the tests in a forked process on a mutant (None: on what is there); returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 3
    try:
        os.setpgid(0, 0)
        signal.alarm(TIMEOUT_S)
        quiet = os.open(os.devnull, os.O_WRONLY)
        if code is not None:
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            sys.meta_path.insert(0, Instead(name, path, code))
        import pytest

        words = ["-x", "-q", "--no-header", "--assert=plain", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        status = int(pytest.main([*words, "-p", "no:cacheprovider", "-m", "not slow", *tests]))
    except BaseException:
        status = 1
    finally:
        os._exit(status)


def run(path: Path, tests: Sequence[str], functions: Sequence[str], workers: int) -> tuple[int, list[str]]:
    """(number of mutants, those that no test has noticed)."""
    name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    _, status = os.waitpid(start(name, path, None, tests), 0)
    if status:
        sys.exit(f"error: the tests of {name} fail without any change")
    running: dict[int, Mutant] = {}
    survivors: list[str] = []
    count = 0

    def reap() -> None:
        pid, status = os.wait()
        mutant = running.pop(pid)
        if status == 0:
            survivors.append(f"{path.relative_to(ROOT)}:{mutant.line}: {mutant.what}")

    for mutant in mutants(path.read_text(encoding="utf-8"), str(path), functions):
        count += 1
        running[start(name, path, mutant.code, tests)] = mutant
        if len(running) >= workers:
            reap()
    while running:
        reap()
    return count, survivors


def main() -> int:
    """Exit 0: the score is reached; 1: it is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only modules whose path holds one of these")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    args = parser.parse_args()
    os.chdir(ROOT)
    config = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    for name in PRELOADED:
        __import__(name)
    sys.path.insert(0, str(ROOT))
    total = noticed = 0
    for entry in config["module"]:
        if args.words and not any(word in entry["source"] for word in args.words):
            continue
        begin_s = time.monotonic()
        count, survivors = run(ROOT / entry["source"], entry["tests"], entry.get("functions", []), args.workers)
        equivalent = [one for one in survivors if any(one.endswith(known) for known in entry.get("equivalent", []))]
        left = [one for one in survivors if one not in equivalent]
        total, noticed = total + count - len(equivalent), noticed + count - len(survivors)
        share = (count - len(survivors)) / max(1, count - len(equivalent))
        print(
            f"{share:6.1%}  {count - len(survivors):4} of {count - len(equivalent):4}  {entry['source']}  "
            f"({len(equivalent)} equivalent, {time.monotonic() - begin_s:.0f} s)",
            flush=True,
        )
        for words in left:
            print(f"          survives: {words}", flush=True)
    print(f"{noticed / max(1, total):6.1%}  {noticed:4} of {total:4}  in all; {config['score']:.0%} are asked for")
    return 0 if total and noticed / total >= config["score"] else 1


if __name__ == "__main__":
    sys.exit(main())
