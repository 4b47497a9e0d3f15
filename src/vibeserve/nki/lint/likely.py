"""The likely line of a message, where the kernel's source is at hand: for each code, which construct of the source brings it.

The data (likely.toml) names for each code lint rules, names or a finder of this module. Candidates whose line speaks of a word of
the message (a tensor's name, an instruction) come first.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.nki.lint.checks.loops import run_time_loops
from vibeserve.nki.lint.checks.views import free_elements, methods, pattern_of
from vibeserve.nki.lint.engine import _hits
from vibeserve.nki.lint.rules import Hit, rules
from vibeserve.nki.lint.source import DTYPE_BYTES, Source

_MOST = 5
_MOST_LEVELS = 4
_TILE_FUNCTIONS = ("ndarray", "zeros", "ones", "full", "empty", "rand")
_WORD = re.compile(r"[A-Za-z_]\w+")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the kernel's file that may have brought the message. `why` says what is there."""

    file: str
    line: int
    column: int
    text: str
    why: str

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"file": self.file, "line": self.line, "column": self.column, "text": self.text, "why": self.why}


@cache
def codes() -> dict[str, dict[str, Any]]:
    """What to look for, by code."""
    with (Path(__file__).parent / "likely.toml").open("rb") as file:
        return tomllib.load(file)


def likely(code: str, message: str, text: str, file: str) -> list[Place]:
    """The likely lines of a kernel's source for a message with this code, best first, at most five; [] where nothing fits.

    Raises InputError where the source is no Python.
    """
    try:
        source = Source.parse(Path(file), text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: not Python: {error}", hint="give the kernel's own file") from None
    lines, said = text.splitlines(), set(_WORD.findall(message)) - {code}
    found: dict[int, tuple[tuple[int, int], Place]] = {}
    for rank, (hit, why) in enumerate(_candidates(source, code, message)):
        line = getattr(hit.node, "lineno", 0)
        if not 0 < line <= len(lines):
            continue
        shared = len(said & _names(source, hit.node))
        column = getattr(hit.node, "col_offset", 0) + 1
        detail = f"{why}: {hit.detail}" if hit.detail else why
        found.setdefault(line, ((-min(shared, 3), rank), Place(file, line, column, lines[line - 1].strip(), detail)))
    return [place for _, place in sorted(found.values(), key=lambda item: item[0])][:_MOST]


def _names(source: Source, node: ast.AST) -> set[str]:
    """The identifiers of a node's statement (of a loop or a function: of its head alone)."""
    if isinstance(node, ast.For | ast.While | ast.FunctionDef | ast.If | ast.With):
        return (
            {item.id for item in ast.walk(getattr(node, "iter", node)) if isinstance(item, ast.Name)}
            if hasattr(node, "iter")
            else set()
        )
    statement = next((item for item in (node, *source.around(node)) if isinstance(item, ast.stmt)), node)
    if isinstance(statement, ast.For | ast.While | ast.FunctionDef | ast.If | ast.With):
        statement = node
    found = set()
    for item in ast.walk(statement):
        if isinstance(item, ast.Name):
            found.add(item.id)
        elif isinstance(item, ast.Attribute):
            found.add(item.attr)
    return found


def _candidates(source: Source, code: str, message: str) -> Iterator[tuple[Hit, str]]:
    entry = codes().get(code)
    if entry is None:
        if code in rules():
            yield from ((hit, rules()[code].message) for hit in _hits(rules()[code], source))
        yield from ((hit, "the message names this instruction") for hit in named_instruction(source, message))
        return
    for name in entry.get("rules", ()):
        yield from ((hit, rules()[name].message) for hit in _hits(rules()[name], source))
    wanted = tuple(entry.get("names", ()))
    if wanted:
        yield from ((Hit(node, name), entry["why"]) for node, name in source.names if name in wanted)
    if "find" in entry:
        yield from ((hit, entry["why"]) for hit in FINDERS[entry["find"]](source, message))


# ---- finders -------------------------------------------------------------------------------------------------------


def named_instruction(source: Source, message: str) -> Iterator[Hit]:
    """Calls of an instruction or function that the message names."""
    said = set(_WORD.findall(message))
    for call, name in source.calls:
        short = name.rpartition(".")[2]
        if name.startswith(("nki.", "torch.")) and short in said:
            yield Hit(call, short)


def named_operator(source: Source, message: str) -> Iterator[Hit]:
    """Calls whose name is an operator of the message, its parts in any spelling (`triangular-solve`, `triangular_solve`)."""
    said = {re.sub(r"[^a-z0-9]", "", word.lower()) for word in re.findall(r"[A-Za-z][\w-]{2,}", message)}
    for call, name in source.calls:
        short = name.rpartition(".")[2]
        if re.sub(r"[^a-z0-9]", "", short.lower()) in said and not short.startswith("__"):
            yield Hit(call, short)


# What a size that is not written out counts as: more than what fits easily, less than what clearly does not.
_UNKNOWN_BYTES, _UNKNOWN_ELEMENTS = 16 * 1024, 2**28


def largest_tiles(source: Source, message: str) -> Iterator[Hit]:
    """Tiles on chip, the largest first; one whose size is not written out comes before those that are known to be small."""
    sized = []
    for tile in source.tiles.values():
        elements, size = free_elements(tile), DTYPE_BYTES.get(tile.dtype or "", 4)
        if tile.buffer in ("sbuf", "psum"):
            sized.append(((elements or 0) * size, tile))
    for amount, tile in sorted(sized, key=lambda item: -(item[0] or _UNKNOWN_BYTES)):
        yield Hit(
            tile.node,
            f"{tile.name}, {amount:,} bytes a partition"
            if amount
            else f"{tile.name}, of a size that is not written out",
        )


def largest_hbm(source: Source, message: str) -> Iterator[Hit]:
    """Tensors that the kernel makes in HBM, the largest first, as for tiles."""
    made = [tile for tile in source.tiles.values() if tile.buffer in ("hbm", "private_hbm", "shared_hbm")]
    for tile in sorted(
        made,
        key=lambda item: (
            -((item.shape[0] or 0) * (free_elements(item) or 0) if item.shape else 0) or -_UNKNOWN_ELEMENTS
        ),
    ):
        yield Hit(tile.node, tile.name)


def _trips(source: Source, loop: ast.For) -> int | None:
    """How often a loop over range turns; None where that is not written out."""
    call = loop.iter
    if not isinstance(call, ast.Call) or not (source.resolve(call.func) or "").rpartition(".")[2].endswith("range"):
        return None
    numbers = [source.number(item) for item in call.args]
    if None in numbers or not 1 <= len(numbers) <= 3:
        return None
    known = [item for item in numbers if item is not None]
    return len(range(*known)) if len(known) < 3 or known[2] else None


def largest_loops(source: Source, message: str) -> Iterator[Hit]:
    """Loops that are unrolled, the nest with the most turns first; of a nest the outermost loop."""
    nests = []
    for node in source.nodes:
        if not isinstance(node, ast.For) or not source.in_kernel(node):
            continue
        if any(isinstance(item, ast.For) for item in source.around(node)):
            continue
        loops = [item for item in ast.walk(node) if isinstance(item, ast.For)]
        turns, unknown = 1, 0
        for loop in loops:
            count = _trips(source, loop)
            turns, unknown = turns * (count or 1), unknown + (count is None)
        nests.append((unknown, turns, len(loops), node))
    for unknown, turns, depth, node in sorted(nests, key=lambda item: (item[0], item[1], item[2]), reverse=True):
        counted = f"{turns:,} turns" + (
            f", times {unknown} loop(s) of a length that is not written out" if unknown else ""
        )
        yield Hit(node, f"{depth} loop(s), {counted}")


def failed_assertion(source: Source, message: str) -> Iterator[Hit]:
    """kernel_assert, assert and raise whose own text is in the message, the longest match first."""
    scored = []
    for node in source.nodes:
        is_check = isinstance(node, ast.Assert | ast.Raise) or (
            isinstance(node, ast.Call) and (source.resolve(node.func) or "").rpartition(".")[2] == "kernel_assert"
        )
        if not is_check:
            continue
        texts = [
            item.value for item in ast.walk(node) if isinstance(item, ast.Constant) and isinstance(item.value, str)
        ]
        score = max(
            (len(text.strip()) for text in texts if len(text.strip()) > 3 and text.strip() in message), default=0
        )
        scored.append((score, node))
    best = max((score for score, _ in scored), default=0)
    yield from (Hit(node) for score, node in scored if score == best)


def launches(source: Source, message: str) -> Iterator[Hit]:
    """`kernel[2](…)`, and settings of LNC in strings."""
    kernels = {function.name for function in source.entry_points}
    for node in source.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Subscript)
            and isinstance(node.func.value, ast.Name)
        ):
            if node.func.value.id in kernels:
                yield Hit(node, ast.unparse(node.func))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.search(r"--(lnc|logical-nc-config)", node.value)
        ):
            yield Hit(node, node.value)


def loops_in_loops(source: Source, message: str) -> Iterator[Hit]:
    """Run-time loops within run-time loops, then run-time loops."""
    loops = run_time_loops(source)
    starts = {
        item
        for item in source.nodes
        if item in loops
        or (
            isinstance(item, ast.Call)
            and source.resolve(item.func) in ("nki.language.fori_loop", "nki.language.while_loop")
        )
    }
    inner = [item for item in starts if any(around in loops for around in source.around(item))]
    for item in sorted(inner, key=lambda node: getattr(node, "lineno", 0)):
        yield Hit(item, "within another one")
    for item in sorted(starts - set(inner), key=lambda node: getattr(node, "lineno", 0)):
        yield Hit(item)


def unnamed_buffers(source: Source, message: str) -> Iterator[Hit]:
    """HBM tensors without name= that a collective is given, and parameters that it is given directly."""
    operands = {
        item.id: call
        for call, _ in source.kernel_calls("nki.collectives.*")
        for argument in [*call.args, *(word.value for word in call.keywords)]
        for item in ast.walk(argument)
        if isinstance(item, ast.Name)
    }
    for tile in source.tiles.values():
        if tile.name in operands and source.keyword(tile.node, "name") is None:
            yield Hit(tile.node, f"{tile.name} has no name=")
    for function in source.entry_points:
        for argument in function.args.args:
            if argument.arg in operands:
                yield Hit(operands[argument.arg], f"{argument.arg} is an input of the kernel")


def collectives(source: Source, message: str) -> Iterator[Hit]:
    """Collectives, exchanges and barriers."""
    for call, name in source.kernel_calls("nki.collectives.*", "nki.isa.sendrecv", "nki.isa.core_barrier"):
        yield Hit(call, name.rpartition(".")[2])


def long_patterns(source: Source, message: str) -> Iterator[Hit]:
    """Access patterns of many levels, tensors at addresses of their own, then views of many methods."""
    patterns = [(len(pattern_of(source, call) or ()), call) for call, _ in methods(source, "ap")]
    for levels, call in sorted(patterns, key=lambda item: -item[0]):
        yield Hit(call, f"{levels} levels" + (f", {_MOST_LEVELS} at most" if levels > _MOST_LEVELS else ""))
    for call, name in source.kernel_calls("nki.language.*"):
        if name.rpartition(".")[2] in _TILE_FUNCTIONS and source.keyword(call, "address") is not None:
            yield Hit(call, f"address={ast.unparse(source.keyword(call, 'address') or call)}")
    for call, name in methods(source, "reshape", "rearrange", "permute", "flatten_dims"):
        yield Hit(call, f".{name}()")


def number_in_message(source: Source, message: str) -> Iterator[Hit]:
    """Indexes with a whole number that the message says."""
    said = {int(text) for text in re.findall(r"(?<![\w.])\d{1,9}(?![\w.])", message)}
    for node in source.nodes:
        if isinstance(node, ast.Subscript):
            numbers = {
                value
                for item in ast.walk(node.slice)
                if isinstance(item, ast.expr) and (value := source.number(item)) is not None
            }
            if numbers & said:
                yield Hit(node, ast.unparse(node))


def large_numbers(source: Source, message: str) -> Iterator[Hit]:
    """Whole numbers that do not fit 32 bits."""
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) > 2**32 - 1:
            yield Hit(node, str(node.value))


def old_artifacts(source: Source, message: str) -> Iterator[Hit]:
    """Imports of the first beta, then the kernels' decorators."""
    yield from _hits(rules()["B1-IMPORT"], source)
    for function in source.entry_points:
        yield from (Hit(item, function.name) for item in source.decorators(function))


def indirect_access(source: Source, message: str) -> Iterator[Hit]:
    """Accesses whose index is known on the device alone."""
    for node in source.nodes:
        if isinstance(node, ast.Call):
            used = [word.arg for word in node.keywords if word.arg in ("vector_offset", "scalar_offset")]
            name = (source.resolve(node.func) or "").rpartition(".")[2]
            if used or name in ("local_gather", "nc_n_gather", "vector_select", "gather_flattened"):
                yield Hit(node, used[0] if used else name)


def risky_values(source: Source, message: str) -> Iterator[Hit]:
    """Instructions that make NaN or infinity of ordinary values: exp, log, sqrt, reciprocal, division."""
    risky = ("exp", "log", "sqrt", "rsqrt", "reciprocal", "divide", "power")
    for call, name in source.kernel_calls("nki.isa.*", "nki.language.*"):
        op = source.short(source.keyword(call, "op")) or source.short(source.keyword(call, "op0"))
        short = name.rpartition(".")[2]
        if op in risky or short in risky or short == "exponential":
            yield Hit(call, op or short)


FINDERS: dict[str, Callable[[Source, str], Iterator[Hit]]] = {
    function.__name__: function
    for function in (
        named_instruction, named_operator, largest_tiles, largest_hbm, largest_loops, failed_assertion, launches, loops_in_loops,
        unnamed_buffers, collectives, long_patterns, number_in_message, large_numbers, old_artifacts, indirect_access, risky_values,
    )
}  # fmt: skip
