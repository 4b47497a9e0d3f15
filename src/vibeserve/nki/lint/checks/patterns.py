"""Slow shapes of code: loops where one instruction would do, buffers that hinder overlap, the wrong engine for the work."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vibeserve.nki.lint.checks.operands import member, whole
from vibeserve.nki.lint.checks.views import free_elements, indexes
from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import Source, Tile

LONG_ROW = 512
FEW_COLUMNS, MOST_COLUMNS = 32, 128
_ON_GPSIMD = (
    "iota",
    "local_gather",
    "nonzero_with_count",
    "rand_set_state",
    "topk",
    "core_barrier",
    "partition_all_reduce",
)


@check
def short_stationary(source: Source) -> Iterator[Hit]:
    """A matmul in a loop whose stationary tile has few columns and whose moving tile has more, and would fit as stationary."""
    for call, _ in source.kernel_calls("nki.isa.nc_matmul"):
        if source.keyword(call, "is_transpose") is not None or not _loops(source, call):
            continue
        left, right = whole(source, call, "stationary", 1), whole(source, call, "moving", 2)
        if left is None or right is None or len(left.shape) != 2 or len(right.shape) != 2:
            continue
        few, many = left.shape[1], right.shape[1]
        if few is not None and many is not None and few <= FEW_COLUMNS and few < many <= MOST_COLUMNS:
            yield Hit(call, f"{left.name} has {few} columns, {right.name} {many}")


def _loops(source: Source, node: ast.AST) -> list[ast.For | ast.While]:
    return [item for item in source.around(node) if isinstance(item, ast.For | ast.While)]


@check
def carried_column(source: Source) -> Iterator[Hit]:
    """An instruction in a loop over i that writes column i of a tile from its column i - 1."""
    for call, name in source.kernel_calls(
        "nki.isa.tensor_tensor", "nki.isa.tensor_scalar", "nki.isa.scalar_tensor_tensor"
    ):
        loop = next((item for item in _loops(source, call) if isinstance(item, ast.For)), None)
        out = source.argument(call, "dst", 0)
        if loop is None or not isinstance(loop.target, ast.Name) or not isinstance(out, ast.Subscript):
            continue
        written = _column(out, loop.target.id)
        for value in [*call.args[1:], *(item.value for item in call.keywords if item.arg != "dst")]:
            if (
                isinstance(value, ast.Subscript)
                and ast.dump(value.value) == ast.dump(out.value)
                and written is not None
            ):
                read = _column(value, loop.target.id)
                if read is not None and read == written - 1:
                    yield Hit(call, f"nisa.{name.rpartition('.')[2]} of {ast.unparse(value)}")
                    break


def _column(node: ast.Subscript, counter: str) -> int | None:
    """k of a last index `i + k` or `i + k : i + k + 1`."""
    last = indexes(node)[-1]
    start = last.lower if isinstance(last, ast.Slice) else last
    if isinstance(start, ast.Name) and start.id == counter:
        return 0
    match start:
        case ast.BinOp(left=ast.Name(id=name), op=op, right=ast.Constant(value=int() as value)) if name == counter:
            return value if isinstance(op, ast.Add) else -value
    return None


@check
def long_reciprocal(source: Source) -> Iterator[Hit]:
    """nisa.reciprocal of a whole tile of long rows."""
    for call, _ in source.kernel_calls("nki.isa.reciprocal"):
        tile = whole(source, call, "data", 1)
        if tile is not None and (free_elements(tile) or 0) >= LONG_ROW:
            yield Hit(call, f"{tile.name} has {free_elements(tile)} elements a partition")


@check
def outer_buffer(source: Source) -> Iterator[Hit]:
    """An SBUF tile that is allocated before a loop, loaded whole in each turn, and used in that loop alone."""
    for (owner, _), tile in source.tiles.items():
        if owner is None or tile.buffer != "sbuf" or not source.in_kernel(tile.node):
            continue
        uses = source.uses(tile.name, owner)
        loop = _common_loop(source, tile, uses)
        if loop is None:
            continue
        loads = [
            call
            for call, _ in source.kernel_calls("nki.isa.dma_copy")
            if whole(source, call, "dst", 0) is tile and next(iter(_loops(source, call)), None) is loop
        ]
        if loads and all(use.lineno >= loads[0].lineno for use in uses):
            yield Hit(tile.node, f"{tile.name} is loaded in the loop at line {loop.lineno}")


def _common_loop(source: Source, tile: Tile, uses: list[ast.Name]) -> ast.For | ast.While | None:
    """The innermost loop around every use, where the allocation is outside it."""
    if len(uses) < 2:
        return None
    found = [loop for loop in _loops(source, uses[0]) if all(loop in _loops(source, use) for use in uses)]
    return found[0] if found and found[0] not in _loops(source, tile.node) else None


@check
def software_descriptors(source: Source) -> Iterator[Hit]:
    """dma_copy(dge_mode=swdge) in a function where GpSimd computes too."""
    for call, _ in source.kernel_calls("nki.isa.dma_copy"):
        if member(source, call, "dge_mode") != "swdge" or _indirect(call):
            continue
        for other, name in source.kernel_calls("nki.isa.*"):
            engine = member(source, other, "engine")
            if source.owner(other) is source.owner(call) and (
                engine in ("gpsimd", "gpsimd_engine") or name.rpartition(".")[2] in _ON_GPSIMD
            ):
                yield Hit(call, f"nisa.{name.rpartition('.')[2]} computes there")
                break


def _indirect(call: ast.Call) -> bool:
    return any(
        isinstance(item, ast.keyword) and item.arg in ("vector_offset", "scalar_offset") for item in ast.walk(call)
    )
