"""What works and is slow: hints, from allocations under plain names and constant sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import DTYPE_BYTES, Source, Tile

GOOD_DMA_BYTES = 2048
_HBM = ("hbm", "shared_hbm", "private_hbm")
_LOOPS = (ast.For, ast.While)


def _free_elements(tile: Tile) -> int | None:
    out = 1
    for size in tile.shape[1:]:
        if size is None:
            return None
        out *= size
    return out if len(tile.shape) > 1 else None


@check
def small_dma(source: Source) -> Iterator[Hit]:
    """A DMA to or from a whole SBUF tile of less than 2 KiB a partition, inside a loop."""
    for call, _ in source.kernel_calls("nki.isa.dma_copy"):
        if not any(isinstance(item, _LOOPS) for item in source.around(call)):
            continue
        for name, position in (("dst", 0), ("src", 1)):
            value = source.argument(call, name, position)
            tile = source.tile_of(value)
            if not isinstance(value, ast.Name) or tile is None or tile.buffer != "sbuf":
                continue
            elements, size = _free_elements(tile), DTYPE_BYTES.get(tile.dtype or "")
            if elements is not None and size is not None and elements * size < GOOD_DMA_BYTES:
                yield Hit(call, f"{tile.name} holds {elements * size} bytes a partition")


@check
def psum_memset(source: Source) -> Iterator[Hit]:
    """memset of a PSUM tile that a matmul in a later loop accumulates into."""
    for call, _ in source.kernel_calls("nki.isa.memset"):
        tile = source.tile_of(source.argument(call, "dst", 0))
        if tile is None or tile.buffer != "psum":
            continue
        owner = source.owner(call)
        for matmul, _ in source.kernel_calls("nki.isa.nc_matmul"):
            same = source.tile_of(source.argument(matmul, "dst", 0)) == tile and source.owner(matmul) is owner
            if (
                same
                and matmul.lineno > call.lineno
                and _whole(source.argument(call, "dst", 0))
                and _whole(source.argument(matmul, "dst", 0))
            ):
                yield Hit(call, tile.name)
                break


def _whole(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Name)


@check
def hbm_roundtrip(source: Source) -> Iterator[Hit]:
    """A private HBM tensor that is written from a tile and read back in the same function."""
    for key, tile in source.tiles.items():
        if tile.buffer not in ("hbm", "private_hbm"):
            continue
        written = read = None
        for call, _ in source.kernel_calls("nki.isa.dma_copy"):
            if source.owner(call) is not key[0]:
                continue
            if source.tile_of(source.argument(call, "dst", 0)) == tile:
                written = call
            if written is not None and source.tile_of(source.argument(call, "src", 1)) == tile:
                read = call
        if written is not None and read is not None:
            yield Hit(read, tile.name)


@check
def sequential_k_loop(source: Source) -> Iterator[Hit]:
    """sequential_range around a matmul into a tile that is allocated outside the loop."""
    for node in source.nodes:
        if (
            not isinstance(node, ast.For)
            or not isinstance(node.iter, ast.Call)
            or source.resolve(node.iter.func) != "nki.language.sequential_range"
        ):
            continue
        for call, _ in source.kernel_calls("nki.isa.nc_matmul"):
            tile = source.tile_of(source.argument(call, "dst", 0))
            inside = node in list(source.around(call))
            if inside and tile is not None and tile.buffer == "psum" and node not in list(source.around(tile.node)):
                yield Hit(node, tile.name)
                break


@check
def few_partitions(source: Source) -> Iterator[Hit]:
    """An SBUF tile of 2 to 32 partitions and a long free dimension, allocated in a loop."""
    for tile in source.tiles.values():
        looped = any(isinstance(item, _LOOPS) for item in source.around(tile.node))
        elements = _free_elements(tile)
        if (
            looped
            and tile.buffer == "sbuf"
            and tile.shape
            and 1 < (tile.shape[0] or 0) <= 32
            and (elements or 0) >= 512
        ):
            yield Hit(tile.node, f"{tile.name} has {tile.shape[0]} partitions")


@check
def narrow_tile(source: Source) -> Iterator[Hit]:
    """A matmul in a loop whose moving tile, used whole, has fewer than 64 columns, or an odd number of them."""
    for call, _ in source.kernel_calls("nki.isa.nc_matmul"):
        value = source.argument(call, "moving", 2)
        tile = source.tile_of(value)
        looped = any(isinstance(item, _LOOPS) for item in source.around(call))
        if (
            looped
            and isinstance(value, ast.Name)
            and tile is not None
            and len(tile.shape) == 2
            and ((tile.shape[1] or 64) < 64 or (tile.shape[1] or 0) % 2)
            and tile.shape[1] != 1
        ):
            yield Hit(call, f"{tile.name} has {tile.shape[1]} columns")


@check
def unfused_activation(source: Source) -> Iterator[Hit]:
    """tensor_scalar (multiply, add, or multiply and then add) into a tile that the next statement activates, without scale
    or bias; a column is too short for two of them to matter."""
    for call, _ in source.kernel_calls("nki.isa.activation"):
        if source.keyword(call, "scale") is not None or source.keyword(call, "bias") is not None:
            continue
        before = _statement_before(source, call)
        if before is None or source.resolve(before.func) != "nki.isa.tensor_scalar":
            continue
        op, second = source.short(source.argument(before, "op0", 2)), source.argument(before, "op1", 5)
        then = source.short(second) if second is not None else None
        same = source.tile_of(source.argument(before, "dst", 0))
        if (
            op in ("multiply", "add")
            and (then is None or ((op, then) == ("multiply", "add") and same is not None and _free_elements(same) != 1))
            and same is not None
            and same == source.tile_of(source.keyword(call, "data"))
        ):
            yield Hit(before, f"{op}{' and ' + then if then else ''}, then activation")


def _statement_before(source: Source, call: ast.Call) -> ast.Call | None:
    """The call right before a call, allocations between left out."""
    statement = source.parent(call)
    block = source.parent(statement) if statement is not None else None
    body = getattr(block, "body", [])
    earlier = body[: body.index(statement)] if statement in body else []
    for before in reversed(earlier):
        if isinstance(before, ast.Expr) and isinstance(before.value, ast.Call):
            return before.value
        if not (isinstance(before, ast.Assign) and _allocates(source, before.value)):
            return None
    return None


def _allocates(source: Source, value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and source.resolve(value.func) == "nki.language.ndarray"


@check
def column_operand(source: Source) -> Iterator[Hit]:
    """tensor_tensor with a (P, 1) tile used whole."""
    for call, _ in source.kernel_calls("nki.isa.tensor_tensor"):
        shapes = []
        for name, position in (("data1", 1), ("data2", 2)):
            value = source.argument(call, name, position)
            tile = source.tile_of(value)
            shapes.append(tile.shape if isinstance(value, ast.Name) and tile is not None else None)
        if all(shapes) and {len(shape or ()) for shape in shapes} == {2}:
            columns = [shape[1] for shape in shapes if shape]
            if 1 in columns and any(size not in (1, None) for size in columns):
                yield Hit(call)


@check
def duplicate_load(source: Source) -> Iterator[Hit]:
    """A load in a loop whose source names no variable of that loop (nor of what the loop computes)."""
    for call, _ in source.kernel_calls("nki.isa.dma_copy"):
        destination = source.tile_of(source.argument(call, "dst", 0))
        origin = source.argument(call, "src", 1)
        if destination is None or destination.buffer != "sbuf" or origin is None:
            continue
        loop = next((item for item in source.around(call) if isinstance(item, ast.For)), None)
        if loop is None or not _constant_loop(source, loop):
            continue
        changing = {
            item.id for item in ast.walk(loop) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
        }
        used = {item.id for item in ast.walk(origin) if isinstance(item, ast.Name)}
        opaque = any(isinstance(item, ast.Call) for item in ast.walk(origin))
        written = any(
            source.tile_of(source.argument(other, "dst", 0)) == source.tile_of(origin)
            and source.tile_of(origin) is not None
            for other, _ in source.kernel_calls("nki.isa.*")
        )
        if not used & changing and not opaque and not written:
            yield Hit(call, ast.unparse(origin)[:60])
    yield from _loaded_twice(source)


def _loaded_twice(source: Source) -> Iterator[Hit]:
    """The second of two loads of the same piece in one block, where nothing between them writes what it is a piece of."""
    seen: dict[tuple[int, str], ast.Call] = {}
    for call, _ in sorted(source.kernel_calls("nki.isa.dma_copy"), key=lambda item: item[0].lineno):
        origin, out = source.argument(call, "src", 1), source.tile_of(source.argument(call, "dst", 0))
        statement = source.parent(call)
        if origin is None or statement is None:
            continue
        tile = source.tile_of(origin)
        loads = out is not None and out.buffer == "sbuf" and (tile is None or tile.buffer in _HBM)
        if not loads or any(isinstance(item, ast.Call) for item in ast.walk(origin)):
            continue
        key = (_block(source, statement), ast.dump(origin))
        first = seen.setdefault(key, call)
        if first is not call and not _changed_between(source, first, call, origin):
            yield Hit(call, f"{ast.unparse(origin)[:60]}, as at line {first.lineno}")


def _block(source: Source, statement: ast.AST) -> int:
    """Which list of statements one stands in: the identity of that list."""
    around = source.parent(statement)
    lists = [getattr(around, name, None) for name in ("body", "orelse", "finalbody")]
    return next((id(item) for item in lists if isinstance(item, list) and statement in item), id(around))


def _changed_between(source: Source, first: ast.Call, second: ast.Call, origin: ast.expr) -> bool:
    """Whether a name in an expression is bound, or its tensor written, between two calls."""
    names = {item.id for item in ast.walk(origin) if isinstance(item, ast.Name)}
    lines = range(first.lineno, second.lineno + 1)
    bound = any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names and node.lineno in lines
        for node in source.nodes
    )
    return bound or any(
        call.lineno in lines and call not in (first, second) and _base(source.argument(call, "dst", 0)) in names
        for call, _ in source.kernel_calls("nki.isa.*")
    )


def _base(node: ast.AST | None) -> str:
    """The name that an operand begins with."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _constant_loop(source: Source, loop: ast.For) -> bool:
    name = source.resolve(loop.iter.func) if isinstance(loop.iter, ast.Call) else None
    return name == "range" or (name or "").startswith("nki.language.")


@check
def float32_matmul(source: Source) -> Iterator[Hit]:
    """Both operands float32 tiles (a transpose by identity is left alone)."""
    for call, _ in source.kernel_calls("nki.isa.nc_matmul"):
        if source.keyword(call, "is_transpose") is not None:
            continue
        tiles = [
            source.tile_of(source.argument(call, name, place)) for name, place in (("stationary", 1), ("moving", 2))
        ]
        if all(tile is not None and tile.dtype == "float32" for tile in tiles):
            yield Hit(call)
