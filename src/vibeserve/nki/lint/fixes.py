"""What --fix rewrites: edits of the text at the places that the findings name, so that formatting and comments stay.

An edit replaces a span. Fixes are applied in passes until nothing changes; a file whose result cannot be parsed is left as
it was.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vibeserve.nki.lint.engine import Options, _hits, deduce_version
from vibeserve.nki.lint.rules import Hit, Rule, rules
from vibeserve.nki.lint.source import FunctionNode, Source

_MOST_PASSES = 8
_NUMPY_DTYPES = ("float32", "float16", "int32", "int16", "int8", "uint32", "uint16", "uint8")


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace bytes [start, end) of the text (UTF-8) by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Fixed:
    """The text after fixing, and how often each rule was applied."""

    text: str
    applied: dict[str, int]

    def diff(self, before: str, name: str) -> str:
        """A unified diff."""
        lines = difflib.unified_diff(
            before.splitlines(keepends=True), self.text.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        return "".join(lines)


def fix_text(text: str, file: str = "<text>", options: Options | None = None) -> Fixed:
    """Apply every mechanical fix. What cannot be parsed, before or after, stays as it is."""
    options = options or Options()
    applied: dict[str, int] = {}
    for _ in range(_MOST_PASSES):
        try:
            source = Source.parse(Path(file), text)
        except (SyntaxError, ValueError, RecursionError):
            return Fixed(text, {})
        if not source.speaks_nki:
            return Fixed(text, {})
        edits = _without_overlap(_edits(source, options))
        if not edits:
            return Fixed(text, applied)
        changed = _apply(text, [edit for _, edit in edits])
        try:
            ast.parse(changed)
        except (SyntaxError, ValueError):
            return Fixed(text, applied)
        for rule, _ in edits:
            applied[rule] = applied.get(rule, 0) + 1
        text = changed
    return Fixed(text, applied)


def _edits(source: Source, options: Options) -> list[tuple[str, Edit]]:
    version = options.version or deduce_version(source)
    places = _Places(source.text)
    found: list[tuple[str, Edit]] = []
    for rule in rules().values():
        if rule.fix and rule.severity_in(version) and options.wants(rule.id):
            for hit in _hits(rule, source):
                found += [(rule.id, edit) for edit in _FIXES[rule.fix](source, places, rule, hit)]
    return found


def _without_overlap(found: list[tuple[str, Edit]]) -> list[tuple[str, Edit]]:
    chosen: list[tuple[str, Edit]] = []
    for item in sorted(dict.fromkeys(found), key=lambda pair: (pair[1].start, pair[1].end)):
        if not chosen or item[1].start >= chosen[-1][1].end:
            chosen.append(item)
    return chosen


def _apply(text: str, edits: list[Edit]) -> str:
    data = text.encode()
    for edit in sorted(edits, key=lambda item: item.start, reverse=True):
        data = data[: edit.start] + edit.text.encode() + data[edit.end :]
    return data.decode()


class _Places:
    """Byte offsets of syntax nodes in the text."""

    def __init__(self, text: str):
        self.data = text.encode()
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> int:
        """Where a node begins."""
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> int:
        """Where it ends."""
        return self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def text(self, node: ast.expr | ast.stmt) -> str:
        """Its text."""
        return self.data[self.start(node) : self.end(node)].decode()


def _local_name(source: Source, full: str) -> str | None:
    """How a full name is written in this file (`nl.sbuf` for nki.language.sbuf); None where its module is not imported."""
    best: tuple[int, str] | None = None
    for local, imported in source.aliases.items():
        module = imported.removeprefix("neuronxcc.")
        if full == module:
            return local
        if full.startswith(f"{module}.") and (best is None or len(module) > best[0]):
            best = (len(module), f"{local}{full[len(module) :]}")
    return best[1] if best else None


def _rename(source: Source, places: _Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    new = _local_name(source, rule.to)
    if isinstance(hit.node, ast.Attribute) and new is not None:
        yield Edit(places.start(hit.node), places.end(hit.node), new)


def _modules(source: Source, places: _Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """neuronxcc.nki in an import becomes nki; `from neuronxcc import nki` becomes `import nki`."""
    node = hit.node
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return
    text = places.text(node)
    if isinstance(node, ast.ImportFrom) and node.module == "neuronxcc":
        if len(node.names) == 1 and node.names[0].name == "nki":
            yield Edit(
                places.start(node),
                places.end(node),
                f"import nki as {node.names[0].asname}" if node.names[0].asname else "import nki",
            )
        return
    if isinstance(node, ast.Import) and any(item.asname is None for item in node.names):
        return  # its uses are spelled in full: they would break
    yield Edit(places.start(node), places.end(node), text.replace("neuronxcc.nki", "nki"))


def _remove_keyword(source: Source, places: _Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    call = source.parent(hit.node)
    if not isinstance(call, ast.Call) or not isinstance(hit.node, ast.keyword):
        return
    arguments: list[ast.expr | ast.keyword] = sorted(
        [*call.args, *call.keywords], key=lambda item: (item.lineno, item.col_offset)
    )
    index = arguments.index(hit.node)
    start, end = places.start(hit.node), places.end(hit.node)
    if index:
        yield Edit(places.end(arguments[index - 1]), end, "")
    elif len(arguments) > 1:
        yield Edit(start, places.start(arguments[1]), "")
    else:
        after = places.data[end : places.end(call) - 1]
        yield Edit(start, end + (after.index(b",") + 1 if b"," in after else 0), "")


def _rename_keyword(source: Source, places: _Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    if isinstance(hit.node, ast.keyword) and hit.node.arg:
        start = places.start(hit.node)
        yield Edit(start, start + len(hit.node.arg.encode()), rule.to)


def _numpy(source: Source, places: _Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    name = (source.resolve(hit.node) or "").removeprefix("numpy.")
    new = _local_name(source, f"nki.language.{name}")
    if (
        isinstance(hit.node, ast.Attribute)
        and new
        and name in (*_NUMPY_DTYPES, "add", "subtract", "multiply", "maximum", "minimum", "exp")
    ):
        yield Edit(places.start(hit.node), places.end(hit.node), new)


def _max_op(source: Source, places: _Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    if isinstance(hit.node, ast.Attribute):
        yield Edit(places.end(hit.node) - 3, places.end(hit.node), f"{hit.node.attr}imum")


def _buffer_string(source: Source, places: _Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    if isinstance(hit.node, ast.Constant) and hit.node.value in ("sbuf", "psum", "hbm", "private_hbm", "shared_hbm"):
        new = _local_name(source, f"nki.language.{hit.node.value}")
        if new:
            yield Edit(places.start(hit.node), places.end(hit.node), new)


def _identity(source: Source, places: _Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    node = hit.node
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        word = "==" if isinstance(node.ops[0], ast.Is) else "!="
        between = places.data[places.end(node.left) : places.start(node.comparators[0])].decode()
        if between.split() in (["is"], ["is", "not"]):
            yield Edit(places.end(node.left), places.start(node.comparators[0]), f" {word} ")


def _range(source: Source, places: _Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    around = source.parent(hit.node)
    shadowed = any(
        isinstance(node, ast.Name) and node.id == "range" and isinstance(node.ctx, ast.Store) for node in source.nodes
    )
    if (
        isinstance(hit.node, ast.Attribute)
        and isinstance(around, ast.Call)
        and around.func is hit.node
        and not shadowed
    ):
        yield Edit(places.start(hit.node), places.end(hit.node), "range")


def _list_default(source: Source, places: _Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    node = hit.node
    if isinstance(node, ast.List) and isinstance(
        source.parent(node), ast.arguments | FunctionNode | ast.Call | ast.keyword
    ):
        inner = places.data[places.start(node) + 1 : places.end(node) - 1].decode()
        comma = "," if len(node.elts) == 1 and not inner.rstrip().endswith(",") else ""
        yield Edit(places.start(node), places.end(node), f"({inner}{comma})")


_FIXES: dict[str, Callable[[Source, _Places, Rule, Hit], Iterator[Edit]]] = {
    "rename": _rename,
    "modules": _modules,
    "remove-keyword": _remove_keyword,
    "rename-keyword": _rename_keyword,
    "numpy": _numpy,
    "max-op": _max_op,
    "buffer-string": _buffer_string,
    "identity": _identity,
    "range": _range,
    "list-default": _list_default,
}
