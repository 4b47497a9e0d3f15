"""What --fix rewrites: edits of the text at the places that the findings name, so that formatting and comments stay.

Fixes are applied in passes until nothing changes; a file whose result cannot be parsed is left as it was.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vibeserve.nki.lint import migrations, reordering
from vibeserve.nki.lint.edits import Edit, Places, applied, local_name, without_overlap
from vibeserve.nki.lint.engine import BYTE_ORDER_MARK, Options, _hits, deduce_version
from vibeserve.nki.lint.rules import Hit, Rule, rules
from vibeserve.nki.lint.source import USUAL, FunctionNode, Source

_MOST_PASSES = 20
_NUMPY_DTYPES = ("float32", "float16", "int32", "int16", "int8", "uint32", "uint16", "uint8")
# NumPy functions that stand for an operator, and its name in the language.
_NUMPY_NAMES = {
    "add": "add", "sum": "add", "subtract": "subtract", "multiply": "multiply", "prod": "multiply", "maximum": "maximum",
    "max": "maximum", "amax": "maximum", "minimum": "minimum", "min": "minimum", "amin": "minimum", "exp": "exp", "tanh": "tanh",
    "sqrt": "sqrt", "square": "square", "abs": "abs", "log": "log", "sin": "sin", "copy": "copy",
}  # fmt: skip


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
    """Apply every mechanical fix. What cannot be parsed, before or after, stays as it is; line ends and a byte order mark stay too."""
    if text.startswith(BYTE_ORDER_MARK):
        fixed = fix_text(text.removeprefix(BYTE_ORDER_MARK), file, options)
        return Fixed(BYTE_ORDER_MARK + fixed.text, fixed.applied)
    if "\r\n" in text and "\n" not in text.replace("\r\n", ""):
        fixed = fix_text(text.replace("\r\n", "\n"), file, options)
        return Fixed(fixed.text.replace("\n", "\r\n"), fixed.applied)
    options = options or Options()
    counts: dict[str, int] = {}
    for _ in range(_MOST_PASSES):
        try:
            source = Source.parse(Path(file), text)
        except (SyntaxError, ValueError, RecursionError):
            return Fixed(text, {})
        if not source.speaks_nki:
            return Fixed(text, {})
        groups = without_overlap(_edits(source, options))
        if not groups:
            return Fixed(text, counts)
        changed = applied(text, [edit for _, group in groups for edit in group])
        try:
            changed = _with_imports(changed, source)
        except (SyntaxError, ValueError):
            return Fixed(text, counts)
        for rule, _ in groups:
            counts[rule] = counts.get(rule, 0) + 1
        text = changed
    return Fixed(text, counts)


def _with_imports(text: str, before: Source) -> str:
    """The text, with `import nki.isa as nisa` (nki.language as nl) where a fix brought a name that nothing in the file binds.

    Raises SyntaxError where the text is no Python.
    """
    tree = ast.parse(text)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    known = {node.id for node in before.nodes if isinstance(node, ast.Name)} | before.imported
    missing = [name for name in ("nisa", "nl") if name in used - known]
    last = max(
        (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) and _imports_nki(node)),
        key=lambda node: (node.col_offset == 0, node.end_lineno or node.lineno),
        default=None,
    )
    if not missing or last is None:
        return text
    places = Places(text)
    indent = places.data[places.line(last)[0] : places.start(last)].decode()
    new = "".join(f"{indent}import {USUAL[name]} as {name}\n" for name in missing) if not indent.strip() else ""
    return applied(text, [Edit(places.line(last)[1], places.line(last)[1], new)])


def _imports_nki(node: ast.Import | ast.ImportFrom) -> bool:
    names = [item.name for item in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return any(name.split(".")[0] in ("nki", "neuronxcc") for name in names)


def can_fix(source: Source, rule: Rule, hit: Hit) -> bool:
    """Whether a fix of the rule changes this very place."""
    return bool(rule.fix) and any(True for _ in FIXES[rule.fix](source, Places(source.text), rule, hit))


def _edits(source: Source, options: Options) -> list[tuple[str, tuple[Edit, ...]]]:
    version = options.version or deduce_version(source)
    places = Places(source.text)
    found: list[tuple[str, tuple[Edit, ...]]] = []
    for rule in rules().values():
        if rule.fix and rule.severity_in(version) and options.wants(rule.id):
            for hit in _hits(rule, source):
                group = tuple(FIXES[rule.fix](source, places, rule, hit))
                if group:
                    found.append((rule.id, group))
    return found


def _rename(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    new = local_name(source, rule.to)
    if isinstance(hit.node, ast.Attribute) and new is not None:
        yield Edit(places.start(hit.node), places.end(hit.node), new)


def _modules(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
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
    if isinstance(node, ast.Import) and any(item.asname is None and _is_beta(item.name) for item in node.names):
        yield from _spelled_in_full(source, places)
    yield Edit(places.start(node), places.end(node), _plain_import(text))


def _is_beta(name: str) -> bool:
    return name == "neuronxcc.nki" or name.startswith("neuronxcc.nki.")


def _spelled_in_full(source: Source, places: Places) -> Iterator[Edit]:
    """`neuronxcc.nki` at the head of every name that is spelled so, as `nki`."""
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "neuronxcc.nki":
            yield places.replace(node, "nki")


def _plain_import(text: str) -> str:
    return "import nki" if text == "import neuronxcc.nki as nki" else text.replace("neuronxcc.nki", "nki")


def _remove_keyword(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
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


def _rename_keyword(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    if isinstance(hit.node, ast.keyword) and hit.node.arg:
        start = places.start(hit.node)
        yield Edit(start, start + len(hit.node.arg.encode()), rule.to)


def _numpy(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    name = (source.resolve(hit.node) or "").removeprefix("numpy.")
    new = local_name(source, f"nki.language.{_NUMPY_NAMES.get(name, name)}")
    if isinstance(hit.node, ast.Attribute) and new and (name in _NUMPY_DTYPES or name in _NUMPY_NAMES):
        yield places.replace(hit.node, new)


def _max_op(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    if isinstance(hit.node, ast.Attribute):
        yield Edit(places.end(hit.node) - 3, places.end(hit.node), f"{hit.node.attr}imum")


def _buffer_string(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    if isinstance(hit.node, ast.Constant) and hit.node.value in ("sbuf", "psum", "hbm", "private_hbm", "shared_hbm"):
        new = local_name(source, f"nki.language.{hit.node.value}")
        if new:
            yield Edit(places.start(hit.node), places.end(hit.node), new)


def _identity(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    node = hit.node
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        word = "==" if isinstance(node.ops[0], ast.Is) else "!="
        between = places.data[places.end(node.left) : places.start(node.comparators[0])].decode()
        if between.split() in (["is"], ["is", "not"]):
            yield Edit(places.end(node.left), places.start(node.comparators[0]), f" {word} ")


def _range(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
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


def _list_default(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    node = hit.node
    if isinstance(node, ast.List) and isinstance(
        source.parent(node), ast.arguments | FunctionNode | ast.Call | ast.keyword
    ):
        inner = places.data[places.start(node) + 1 : places.end(node) - 1].decode()
        comma = "," if len(node.elts) == 1 and not inner.rstrip().endswith(",") else ""
        yield Edit(places.start(node), places.end(node), f"({inner}{comma})")


FIXES: dict[str, Callable[[Source, Places, Rule, Hit], Iterator[Edit]]] = {
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
    **migrations.FIXES,
    **reordering.FIXES,
}
