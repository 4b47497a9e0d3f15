"""Fixes that carry code of the first beta over: results become destinations, loads and stores become copies, index
arithmetic becomes slices. Each changes what is mechanical for sure and leaves the rest to be listed."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from vibeserve.nki.lint.checks.calls import parameters
from vibeserve.nki.lint.checks.tiles import is_tile
from vibeserve.nki.lint.edits import Edit, Places, local_name
from vibeserve.nki.lint.rules import Hit, Rule
from vibeserve.nki.lint.source import FunctionNode, Source

_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply"}
_INDEX_MAKERS = ("nki.language.arange", "nki.language.mgrid")


@cache
def _results() -> dict[str, dict[str, Any]]:
    with (Path(__file__).parent / "results.toml").open("rb") as file:
        return tomllib.load(file)


# ---- results and destinations --------------------------------------------------------------------------------------


def result(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`y = nisa.f(a)` allocates y and passes it; `t[…] = nisa.f(a)` passes the view; `p += nisa.nc_matmul(a, b)` accumulates."""
    call = hit.node
    statement = source.parent(call)
    if not isinstance(call, ast.Call) or source.keyword(call, "dst") is not None:
        return
    target = _target(statement, call)
    if target is None or not isinstance(statement, ast.stmt):
        return
    if isinstance(target, ast.Subscript) or isinstance(statement, ast.AugAssign):
        if isinstance(statement, ast.AugAssign) and source.resolve(call.func) != "nki.isa.nc_matmul":
            return
        if not _indexes(source, target):
            yield places.replace(statement, _with_dst(places, call, places.text(target)))
        return
    yield from _allocated(source, places, statement, target, call)


def _target(statement: ast.AST | None, call: ast.Call) -> ast.Name | ast.Subscript | None:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.value is call:
        target = statement.targets[0]
    elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        target = statement.target
    else:
        return None
    return target if isinstance(target, ast.Name | ast.Subscript) else None


def _allocated(
    source: Source, places: Places, statement: ast.stmt, target: ast.Name | ast.Subscript, call: ast.Call
) -> Iterator[Edit]:
    name = (source.resolve(call.func) or "").rpartition(".")[2]
    how, known, indent = _results().get(name), parameters(f"nki.isa.{name}"), places.indent(statement)
    if how is None or known is None or indent is None:
        return
    operands = {word: source.argument(call, word, index) for index, word in enumerate(known[1:])}
    like = operands.get(how["like"])
    texts = {word: places.text(node) for word, node in operands.items() if isinstance(node, ast.Name | ast.Subscript)}
    if like is None or how["like"] not in texts or any(_indexes(source, node) for node in operands.values() if node):
        return
    if "only_axis" in how and source.number(_axis(operands.get("axis"))) != how["only_axis"]:
        return
    name_of = places.text(target)
    if any(
        isinstance(node, ast.Name) and node.id == name_of
        for item in operands.values()
        if item
        for node in ast.walk(item)
    ):
        if isinstance(like, ast.Name) and like.id == name_of and "shape" not in how:
            yield places.replace(statement, _with_dst(places, call, name_of))
        return
    try:
        shape = how["shape"].format(**texts) if "shape" in how else f"{texts[how['like']]}.shape"
    except KeyError:
        return
    dtype_node = source.keyword(call, "dtype")
    wanted = {key: local_name(source, how[key]) for key in ("dtype", "buffer") if key in how}
    array, buffer = (
        local_name(source, "nki.language.ndarray"),
        wanted.get("buffer", local_name(source, "nki.language.sbuf")),
    )
    dtype = places.text(dtype_node) if dtype_node else wanted.get("dtype", _dtype_of(places, like))
    if None in (array, buffer, dtype):
        return
    made = f"{name_of} = {array}({shape}, dtype={dtype}, buffer={buffer})\n{indent}{_with_dst(places, call, name_of)}"
    yield places.replace(statement, made)


def _axis(node: ast.expr | None) -> ast.expr | None:
    """The axis in `1`, `(1,)`, `[1]`."""
    return node.elts[0] if isinstance(node, ast.Tuple | ast.List) and len(node.elts) == 1 else node


def _with_dst(places: Places, call: ast.Call, dst: str) -> str:
    """The call's text with its destination first (`dtype=` goes by a rule of its own)."""
    function = places.end(call.func)
    opened = places.data.index(b"(", function) + 1
    rest = places.data[opened : places.end(call)].decode()
    first = dst if call.args else f"dst={dst}"
    more = ", " if call.args or call.keywords else ""
    return f"{places.data[places.start(call) : opened].decode()}{first}{more if rest[:1] != chr(10) else ','}{rest}"


def _dtype_of(places: Places, node: ast.expr) -> str:
    """`x.dtype` for x and for any view `x[…]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return f"{places.text(node)}.dtype"


def _indexes(source: Source, node: ast.AST) -> bool:
    """Whether an expression holds index arithmetic (names made by arange or mgrid)."""
    owner = source.owner(node)
    names = {name for at, name in _index_names(source) if at is owner}
    return any(
        (isinstance(item, ast.Name) and item.id in names) or (source.resolve(item) or "") in _INDEX_MAKERS
        for item in ast.walk(node)
    )


def _index_names(source: Source) -> set[tuple[FunctionNode | None, str]]:
    found = set()
    for node in source.nodes:
        if isinstance(node, ast.Assign) and any(
            (source.resolve(item) or "") in _INDEX_MAKERS for item in ast.walk(node.value)
        ):
            for target in node.targets:
                found |= {(source.owner(node), item.id) for item in ast.walk(target) if isinstance(item, ast.Name)}
    return found


# ---- loads, stores, fills ------------------------------------------------------------------------------------------


def load_store(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`t = nl.load(x[…])` and `nl.store(y[…], t)` as allocation and dma_copy."""
    call = source.parent(hit.node)
    statement = source.parent(call) if call is not None else None
    copy = local_name(source, "nki.isa.dma_copy")
    if (
        not isinstance(call, ast.Call)
        or call.func is not hit.node
        or copy is None
        or source.keyword(call, "mask") is not None
    ):
        return
    if (source.resolve(hit.node) or "").endswith(".store"):
        dst, value = source.argument(call, "dst", 0), source.argument(call, "value", 1)
        if (
            isinstance(statement, ast.Expr)
            and isinstance(value, ast.Name | ast.Subscript)
            and isinstance(dst, ast.expr)
        ) and not _indexes(source, call):
            yield places.replace(call, f"{copy}(dst={places.text(dst)}, src={places.text(value)})")
        return
    src, target = source.argument(call, "src", 0), _target(statement, call)
    if src is None or not isinstance(statement, ast.Assign) or target is None or _indexes(source, statement):
        return
    if isinstance(target, ast.Subscript):
        yield places.replace(statement, f"{copy}(dst={places.text(target)}, src={places.text(src)})")
        return
    indent, array, buffer = (
        places.indent(statement),
        local_name(source, "nki.language.ndarray"),
        local_name(source, "nki.language.sbuf"),
    )
    dtype = source.argument(call, "dtype", 1)
    if indent is None or array is None or not isinstance(src, ast.Name | ast.Subscript) or _says(src, target.id):
        return
    written = places.text(src)
    kind = places.text(dtype) if dtype is not None else _dtype_of(places, src)
    made = f"{target.id} = {array}({written}.shape, dtype={kind}, buffer={buffer})"
    yield places.replace(statement, f"{made}\n{indent}{copy}(dst={target.id}, src={written})")


def _says(node: ast.AST, name: str) -> bool:
    return any(isinstance(item, ast.Name) and item.id == name for item in ast.walk(node))


def filled(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`t = nisa.memset(shape=…, value=…, dtype=…)` as allocation and memset."""
    call = source.parent(hit.node)
    statement = source.parent(call) if call is not None else None
    if not isinstance(call, ast.Call) or call.args or source.keyword(call, "dst") is not None:
        return
    target = _target(statement, call)
    words = {item.arg: places.text(item.value) for item in call.keywords if item.arg}
    array, buffer = local_name(source, "nki.language.ndarray"), local_name(source, "nki.language.sbuf")
    if (
        not isinstance(statement, ast.Assign)
        or not isinstance(target, ast.Name)
        or not {"shape", "value", "dtype"} <= set(words)
    ):
        return
    indent = places.indent(statement)
    if indent is not None and array is not None:
        made = f"{target.id} = {array}({words['shape']}, dtype={words['dtype']}, buffer={buffer})"
        yield places.replace(
            statement, f"{made}\n{indent}{places.text(call.func)}(dst={target.id}, value={words['value']})"
        )


def element(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`t[…] = u[…]` and `t[…] = nl.copy(u)` as tensor_copy."""
    statement = hit.node
    copy = local_name(source, "nki.isa.tensor_copy")
    if not isinstance(statement, ast.Assign) or copy is None or _indexes(source, statement):
        return
    value: ast.expr = statement.value
    if isinstance(value, ast.Call) and source.resolve(value.func) == "nki.language.copy" and value.args:
        value = value.args[0]
    if isinstance(value, ast.Name | ast.Subscript) and source.tile_of(value) is not None:
        yield places.replace(statement, f"{copy}(dst={places.text(statement.targets[0])}, src={places.text(value)})")


def operator(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`a + b` as `nl.add(a, b)`, the innermost first; the device has no division of tiles."""
    for node in ast.walk(hit.node):
        if not isinstance(node, ast.BinOp) or any(isinstance(side, ast.BinOp) for side in (node.left, node.right)):
            continue
        name = _OPERATORS.get(type(node.op))
        function = local_name(source, f"nki.language.{name}") if name else None
        sides = (node.left, node.right)
        if function is not None and any(is_tile(source, side) for side in sides) and not _indexes(source, node):
            yield places.replace(node, f"{function}({places.text(sides[0])}, {places.text(sides[1])})")
            return


def par_dim(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`(nl.par_dim(128), 512)` as `(128, 512)`."""
    call = source.parent(hit.node)
    around = source.parent(call) if call is not None else None
    if (
        isinstance(call, ast.Call)
        and len(call.args) == 1
        and isinstance(around, ast.Tuple | ast.List)
        and around.elts[0] is call
    ):
        yield places.replace(call, places.text(call.args[0]))


# ---- index arithmetic ----------------------------------------------------------------------------------------------


def arange(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`i = nl.arange(n)[:, None]` goes, and every `x[i]`, `x[a + i]` becomes `x[0:n]`, `x[a : a + n]`; nothing where one use
    is of another kind."""
    statement = next((item for item in source.around(hit.node) if isinstance(item, ast.stmt)), None)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or places.indent(statement) is None:
        return
    target, length = statement.targets[0], _length(source, statement.value)
    owner = source.owner(statement)
    if not isinstance(target, ast.Name) or length is None or owner is None:
        return
    edits = []
    for node in ast.walk(owner):
        if isinstance(node, ast.Name) and node.id == target.id and node is not target:
            item = _sliced(source, places, node, places.text(length))
            if item is None:
                return
            edits.append(item)
    start, end = places.line(statement)
    if len(_body_of(source, statement)) == 1:
        return
    yield Edit(start, end, "")
    yield from edits


def _body_of(source: Source, statement: ast.stmt) -> list[ast.stmt]:
    around = source.parent(statement)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(around, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return []


def _length(source: Source, value: ast.expr) -> ast.expr | None:
    """n of `nl.arange(n)`, `nl.arange(n)[:, None]`, `nl.arange(n)[None, :]`."""
    if isinstance(value, ast.Subscript):
        items = value.slice.elts if isinstance(value.slice, ast.Tuple) else []
        plain = [
            item for item in items if isinstance(item, ast.Slice) and item.lower is item.upper is item.step is None
        ]
        others = [item for item in items if item not in plain]
        if len(plain) != 1 or not all(isinstance(item, ast.Constant) and item.value is None for item in others):
            return None
        value = value.value
    if (
        isinstance(value, ast.Call)
        and source.resolve(value.func) == "nki.language.arange"
        and len(value.args) == 1
        and not value.keywords
    ):
        return value.args[0]
    return None


def _sliced(source: Source, places: Places, use: ast.Name, length: str) -> Edit | None:
    """The edit of an index that is `i` or a sum with `i` in it, as a slice; None for any other use."""
    top: ast.expr = use
    while isinstance(around := source.parent(top), ast.BinOp) and isinstance(around.op, ast.Add):
        top = around
    holder = source.parent(top)
    if isinstance(holder, ast.Tuple):
        holder = source.parent(holder)
    if not isinstance(holder, ast.Subscript) or top is holder.value or not isinstance(use.ctx, ast.Load):
        return None
    if sum(_indexes(source, item) for item in ast.walk(top) if isinstance(item, ast.Name)) != 1:
        return None
    rest = [_term_text(places, item) for item in _terms(top) if item is not use]
    if not rest:
        return places.replace(top, f"0:{length}")
    first = " + ".join(rest)
    return places.replace(top, f"{first} : {first} + {length}")


def _term_text(places: Places, node: ast.expr) -> str:
    text = places.text(node)
    product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.FloorDiv | ast.Mod)
    return (
        text
        if product or isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript)
        else f"({text})"
    )


def _terms(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_terms(node.left), *_terms(node.right)]
    return [node]


# ---- host code -----------------------------------------------------------------------------------------------------


def on_cpu(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`torch.f(x)` of a tensor on the device as `torch.f(x.cpu())`; `torch.randn(…, device=d)` as `torch.randn(…).to(d)`."""
    call = hit.node
    if not isinstance(call, ast.Call):
        return
    device = next((item for item in call.keywords if item.arg == "device"), None)
    if device is not None:
        others = [places.text(item) for item in call.args]
        others += [f"{item.arg}={places.text(item.value)}" for item in call.keywords if item is not device and item.arg]
        yield places.replace(call, f"{places.text(call.func)}({', '.join(others)}).to({places.text(device.value)})")
        return
    from vibeserve.nki.lint.checks.host import device_names

    names = device_names(source)
    for argument in call.args:
        if isinstance(argument, ast.Name) and argument.id in names:
            yield places.replace(argument, f"{argument.id}.cpu()")


FIXES: dict[str, Callable[[Source, Places, Rule, Hit], Iterator[Edit]]] = {
    "result": result,
    "load-store": load_store,
    "filled": filled,
    "element": element,
    "operator": operator,
    "par-dim": par_dim,
    "arange": arange,
    "on-cpu": on_cpu,
}
