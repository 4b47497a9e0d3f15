"""Mutation tests: each small change to the judge, the statistics and the acceptance code must make a test fail.

    python tools/mutation.py                     every module of mutation.toml
    python tools/mutation.py verdict prompts     those whose path holds one of the words
    python tools/mutation.py rounds --part 2/3   every third change only, from the second on

Tests are imported once; a process is forked for each mutant and the mutated module put in place of the imported one, so
that a mutant costs the run of its tests and nothing else. (mutmut 3 did not get its copies imported in place of an editable
install, cosmic-ray starts pytest anew for each mutant.) Texts of messages are left alone. Exit code 1 where the score is below the
one that mutation.toml asks for.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import io
import itertools
import os
import signal
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

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
#: A change that makes a test wait for ever is noticed: after so many times what that test takes without it, and some.
PATIENCE, LEAST_S, UNCHANGED_S = 4, 10, 600

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


def put_in_place(name: str, code: CodeType) -> None:
    """Run a mutant's code as the module, and hand its functions and classes to all who have imported the old ones."""
    module = sys.modules[name]
    before = {key: value for key, value in vars(module).items() if getattr(value, "__module__", None) == name}
    exec(code, vars(module))
    fresh = {id(old): vars(module)[key] for key, old in before.items() if vars(module).get(key) is not old}
    for other in [one for one in sys.modules.values() if isinstance(one, ModuleType) and one is not module]:
        for key, value in list(vars(other).items()):
            if id(value) in fresh and not key.startswith("__"):
                setattr(other, key, fresh[id(value)])


class Forking:
    """A pytest plugin: instead of one run, a forked one for each mutant, all tests having been imported once."""

    def __init__(self, path: Path, functions: Sequence[str], workers: int, part: tuple[int, int]):
        self.path, self.functions, self.workers, self.part = path, functions, workers, part
        self.name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        self.count = 0
        self.limits_s: list[int] = []
        self.survivors: list[str] = []
        self.running: dict[int, Mutant] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Every mutant, so many at once; first what is there, put in place as a mutant is, to see that the tests hold."""
        source = self.path.read_text(encoding="utf-8")
        unchanged = compile(source, str(self.path), "exec", dont_inherit=True)
        self.limits_s = [UNCHANGED_S] * len(session.items)
        told, tell = os.pipe()
        _, status = os.waitpid(self.start(session, unchanged, tell), 0)
        os.close(tell)
        with os.fdopen(told) as lines:
            self.limits_s = [LEAST_S + int(PATIENCE * float(line)) for line in lines]
        if status:
            session.testsfailed = 1
            return True
        of, places = mutants(source, str(self.path), self.functions), self.part
        for mutant in itertools.islice(of, places[0] - 1, None, places[1]):
            self.count += 1
            self.running[self.start(session, mutant.code)] = mutant
            if len(self.running) >= self.workers:
                self.reap()
        while self.running:
            self.reap()
        return True

    def start(self, session: pytest.Session, code: CodeType, tell: int | None = None) -> int:
        """Run the tests in a forked process; returns its pid. It ends with 0 where all of them pass.

        `tell`: where the seconds that each of them takes are written to, a line each.
        """
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            put_in_place(self.name, code)
            for place, item in enumerate(session.items):
                following = session.items[place + 1] if place + 1 < len(session.items) else None
                begin_s = time.monotonic()
                signal.alarm(self.limits_s[place])
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if tell is not None:
                    os.write(tell, f"{time.monotonic() - begin_s}\n".encode())
                if session.testsfailed:
                    break
            status = 1 if session.testsfailed else 0
        finally:
            os._exit(status)

    def reap(self) -> None:
        """Wait for one of them."""
        pid, status = os.wait()
        mutant = self.running.pop(pid)
        if status == 0:
            self.survivors.append(f"{self.path.relative_to(ROOT)}:{mutant.line}: {mutant.what}")


def run(entry: dict[str, Any], workers: int, part: tuple[int, int]) -> tuple[int, list[str]]:
    """(number of mutants, those that no test has noticed), of a module of the configuration."""
    plugin = Forking(ROOT / entry["source"], entry.get("functions", []), workers, part)
    words = ["-q", "--no-header", "--assert=plain", "-Wignore::pytest.PytestAssertRewriteWarning", "-mnot slow"]
    words += ["-pno:cacheprovider", "-otimeout=0"]  # pytest-timeout would take the alarm that each test has here
    with contextlib.redirect_stdout(io.StringIO()):
        status = pytest.main([*words, *entry["tests"]], plugins=[plugin])
    if status or not plugin.count:
        sys.exit(f"error: the tests of {plugin.name} fail without any change, or there is nothing to change")
    return plugin.count, plugin.survivors


def main() -> int:
    """Exit 0: the score is reached; 1: it is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only modules whose path holds one of these")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every N-th change, from the K-th on")
    args = parser.parse_args()
    first, _, of = args.part.partition("/")
    part = int(first), int(of)
    os.chdir(ROOT)
    config = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    sys.path.insert(0, str(ROOT))
    total = noticed = 0
    for entry in config["module"]:
        if args.words and not any(word in entry["source"] for word in args.words):
            continue
        begin_s = time.monotonic()
        count, survivors = run(entry, args.workers, part)
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
