"""Values, classes and tensors' lives: what a kernel may hold, and tiles that are read before anything wrote them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import FunctionNode, Source, Tile

_LEAST_INT, _MOST_INT = -(2**31), 2**32 - 1
_MOST_FLOAT = 3.4028235e38
_PLAIN_BASES = ("NKIObject",)
_ENUMS = ("Enum", "IntEnum", "StrEnum")
_EMPTY = (".ndarray", ".empty", ".empty_like")


@check
def foreign_value(source: Source) -> Iterator[Hit]:
    """Complex numbers, bytes, sets, numbers beyond 32 bits."""
    for node in source.nodes:
        if isinstance(node, ast.Set | ast.SetComp):
            yield Hit(node, "a set")
        elif isinstance(node, ast.Constant):
            value = node.value
            if isinstance(value, complex):
                yield Hit(node, f"the complex number {value}")
            elif isinstance(value, bytes):
                yield Hit(node, "bytes")
            elif isinstance(value, int) and not isinstance(value, bool) and not _LEAST_INT <= value <= _MOST_INT:
                yield Hit(node, f"{value} does not fit 32 bits")
            elif isinstance(value, float) and abs(value) > _MOST_FLOAT:
                yield Hit(node, f"{value} does not fit float32")


def _classes(source: Source) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in source.nodes if isinstance(node, ast.ClassDef)}


def _bases(source: Source, node: ast.ClassDef) -> list[str]:
    return [(source.resolve(base) or ast.unparse(base)).rpartition(".")[2] for base in node.bases]


@check
def foreign_class(source: Source) -> Iterator[Hit]:
    """An instance, made in a kernel, of a class of this file that does not inherit from NKIObject alone, or that has slots."""
    classes = _classes(source)
    for call, name in source.calls:
        found = classes.get(name)
        if found is None:
            continue
        bases = _bases(source, found)
        if any(base in _ENUMS for base in bases):
            continue
        slots = any(
            isinstance(item, ast.Assign)
            and any(isinstance(at, ast.Name) and at.id == "__slots__" for at in item.targets)
            for item in found.body
        )
        if slots:
            yield Hit(call, f"{name} has __slots__")
        elif bases not in ([base] for base in _PLAIN_BASES):
            yield Hit(call, f"{name} inherits from {', '.join(bases) or 'nothing'}")


@check
def enum_operator(source: Source) -> Iterator[Hit]:
    """`Mode.A < mode`, `Mode.A + 1`."""
    enums = {name for name, node in _classes(source).items() if any(base in _ENUMS for base in _bases(source, node))}

    def is_member(node: ast.expr) -> bool:
        return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in enums

    for node in source.nodes:
        if isinstance(node, ast.Compare):
            ordered = any(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops)
            if ordered and any(is_member(item) for item in [node.left, *node.comparators]):
                yield Hit(node, ast.unparse(node))
        elif isinstance(node, ast.BinOp) and (is_member(node.left) or is_member(node.right)):
            yield Hit(node, ast.unparse(node))


@check
def read_unwritten(source: Source) -> Iterator[Hit]:
    """A tile of nl.ndarray that an instruction reads and that nothing in the function can have written before."""
    for (owner, _), tile in source.tiles.items():
        if owner is None or tile.buffer not in ("sbuf", "psum") or not source.in_kernel(tile.node):
            continue
        if not (source.resolve(tile.node.func) or "").endswith(_EMPTY):
            continue
        first = _first_read(source, owner, tile)
        if first is not None:
            yield Hit(first, tile.name)


def _first_read(source: Source, owner: FunctionNode, tile: Tile) -> ast.Name | None:
    """The first use of a tile, where that is as an operand that is read, and no loop around can have brought a write first."""
    uses = source.uses(tile.name, owner)
    if any(source.owner(node) is not owner for node in uses):
        return None  # a function within uses it too
    roles = [(node, _role(source, node)) for node in uses]
    roles = [(node, role) for node, role in roles if role != "shape"]
    if not roles or roles[0][1] != "read":
        return None
    first = roles[0][0]
    loops = [item for item in source.around(first) if isinstance(item, ast.For | ast.While)]
    inside = [item for item in loops if item not in list(source.around(tile.node))]
    if inside and any(role != "read" for _, role in roles):
        return None  # an earlier turn of a loop may have written it
    return first


def _instruction(source: Source, node: ast.AST) -> ast.Call | None:
    """The instruction of which a name is an operand."""
    for around in source.around(node):
        if isinstance(around, ast.Call) and (source.resolve(around.func) or "").startswith("nki.isa."):
            return around
        if isinstance(around, ast.stmt):
            return None
    return None


def _role(source: Source, node: ast.Name) -> str:
    """'read' or 'write' of an instruction's operand, 'shape' of an attribute, 'other' for all else."""
    around = source.parent(node)
    if isinstance(around, ast.Attribute) and around.attr in ("shape", "dtype", "ndim", "buffer"):
        return "shape"
    call = _instruction(source, node)
    if call is None:
        return "other"
    name = (source.resolve(call.func) or "").rpartition(".")[2]
    for word in call.keywords:
        if any(item is node for item in ast.walk(word.value)):
            written = word.arg in ("dst", "reduce_res", "dst_scale", "val_dst", "idx_dst", "dst_idx")
            return "write" if written else "read" if word.arg in _READ else "other"
    for place, item in enumerate(call.args):
        if any(inner is node for inner in ast.walk(item)):
            return (
                "write"
                if place == 0 and name != "sendrecv"
                else "other"
                if name == "sendrecv"
                else "read"
                if place < 3
                else "other"
            )
    return "other"


_READ = ("src", "data", "data1", "data2", "data0", "stationary", "moving", "operand0", "operand1", "bias", "on_true_tile", "predicate", "on_true", "on_false")  # fmt: skip
