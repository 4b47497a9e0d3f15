"""Views of tensors: indexes made of tiles, access patterns, reshapes, what moves the partition dimension."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import DTYPE_BYTES, Source, Tile

_ON_CHIP = ("sbuf", "psum")
_INDIRECT = ("vector_offset", "scalar_offset")
_RESTARTING = ("ap", "slice", "select")
STRIDE_BYTES = 16


def methods(source: Source, *names: str) -> Iterator[tuple[ast.Call, str]]:
    """Calls of methods of these names within kernel code, with the name."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
            dotted = source.resolve(node.func) or ""
            if not dotted.startswith(("nki.", "numpy.", "torch.", "nkilib.")) and source.in_kernel(node):
                yield node, node.func.attr


def chain(node: ast.AST) -> list[str]:
    """The methods that a view went through, the last one first: ['ap', 'slice'] of `t.slice(…).ap(…)`."""
    found = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        found.append(node.func.attr)
        node = node.func.value
    return found


def base_tile(source: Source, call: ast.Call) -> Tile | None:
    """The tile that a method is called on directly: `t.ap(…)`, not `t[…].ap(…)`."""
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    return source.tile_of(value) if isinstance(value, ast.Name) else None


def indexes(node: ast.Subscript) -> list[ast.expr]:
    """The items of an index."""
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def by_a_tile(source: Source, node: ast.AST | None) -> ast.expr | None:
    """The tile that indexes a subscript, if one does."""
    if isinstance(node, ast.Subscript):
        for item in indexes(node):
            if isinstance(item, ast.Name | ast.Subscript) and source.tile_of(item) is not None:
                return item
    return None


@check
def tensor_index(source: Source) -> Iterator[Hit]:
    """`t[tile]` or `t[tile, 0:4]`."""
    for node in source.nodes:
        item = by_a_tile(source, node)
        if item is not None:
            yield Hit(node, ast.unparse(item))


@check
def nested_slice(source: Source) -> Iterator[Hit]:
    """`t[tile][0:4]`: an index on what an index made of tiles gave."""
    for node in source.nodes:
        if isinstance(node, ast.Subscript):
            inner = node.value
            while isinstance(inner, ast.Subscript):
                if by_a_tile(source, inner) is not None:
                    yield Hit(node, ast.unparse(node))
                    break
                inner = inner.value


@check
def composed_pattern(source: Source) -> Iterator[Hit]:
    """`t.ap(…).ap(…)`, `t.slice(…).ap(…)`."""
    for call, _ in methods(source, "ap"):
        before = [name for name in chain(call)[1:] if name in _RESTARTING]
        if before:
            yield Hit(call, f".ap() after .{before[0]}()")


def pattern_of(source: Source, call: ast.Call) -> list[tuple[int | None, int | None]] | None:
    """The (stride, count) pairs of `.ap([[…], …])` where they are written out."""
    node = source.argument(call, "pattern", 0)
    if not isinstance(node, ast.List | ast.Tuple):
        return None
    pairs = [item.elts for item in node.elts if isinstance(item, ast.List | ast.Tuple) and len(item.elts) == 2]
    return [(source.number(a), source.number(b)) for a, b in pairs] if len(pairs) == len(node.elts) else None


@check
def pattern_partition_stride(source: Source) -> Iterator[Hit]:
    """The first pair of an on-chip pattern whose stride is not the row length of the storage."""
    for call, _ in methods(source, "ap"):
        tile, pattern = base_tile(source, call), pattern_of(source, call)
        if tile is None or tile.buffer not in _ON_CHIP or not pattern or source.keyword(call, "dtype") is not None:
            continue
        row = free_elements(tile)
        stride, count = pattern[0]
        if row is not None and stride is not None and count != 1 and stride != row:
            yield Hit(call, f"stride {stride}, and {tile.name} has {row} elements a partition")


def free_elements(tile: Tile) -> int | None:
    """Elements a partition; None where it cannot be told."""
    if len(tile.shape) < 2:
        return None
    out = 1
    for size in tile.shape[1:]:
        if size is None:
            return None
        out *= size
    return out


@check
def vector_offset_misused(source: Source) -> Iterator[Hit]:
    """`.ap(…, vector_offset=…)` of a tile on chip, with scalar_offset=, or with indirect_dim other than 0."""
    for call, _ in methods(source, "ap"):
        if source.keyword(call, "vector_offset") is None:
            continue
        tile = base_tile(source, call)
        if tile is not None and tile.buffer in _ON_CHIP:
            yield Hit(call, f"{tile.name} is in {tile.buffer}")
        elif source.keyword(call, "scalar_offset") is not None:
            yield Hit(call, "with scalar_offset=")
        elif source.number(source.keyword(call, "indirect_dim")) not in (None, 0):
            yield Hit(call, "with indirect_dim other than 0")


@check
def reinterpreted_selection(source: Source) -> Iterator[Hit]:
    """view or reinterpret_cast together with vector_select."""
    for call, _ in methods(source, "view", "reinterpret_cast", "vector_select"):
        names = chain(call)
        casts = [name for name in names if name in ("view", "reinterpret_cast")]
        around = source.parent(call)
        if (
            casts
            and "vector_select" in names
            and not (isinstance(around, ast.Attribute) and around.attr in ("view", "reinterpret_cast", "vector_select"))
        ):
            yield Hit(call, f".{casts[0]}() with .vector_select()")


@check
def reshape_count(source: Source) -> Iterator[Hit]:
    """`t.reshape((…))` to another number of elements."""
    for call, _ in methods(source, "reshape"):
        tile, node = base_tile(source, call), source.argument(call, "shape", 0)
        if tile is None or not tile.shape or not isinstance(node, ast.Tuple | ast.List):
            continue
        sizes = [source.number(item) for item in node.elts]
        have, want = _product(tile.shape), _product(sizes)
        if have is not None and want is not None and have != want:
            yield Hit(call, f"{tile.name} has {have} elements, the shape {want}")


def _product(sizes: tuple[int | None, ...] | list[int | None]) -> int | None:
    out = 1
    for size in sizes:
        if size is None or size < 0:
            return None
        out *= size
    return out


@check
def partition_moved(source: Source) -> Iterator[Hit]:
    """A step over partitions, or a view that changes dimension 0 of a tile on chip."""
    for node in source.nodes:
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or not source.in_kernel(node):
            continue
        first, tile = indexes(node)[0] if indexes(node) else None, source.tile_of(node.value)
        if tile is None or tile.buffer not in _ON_CHIP or not isinstance(first, ast.Slice) or first.step is None:
            continue
        step = _signed(source, first.step)
        if step not in (None, 1):
            yield Hit(node, f"step {step}")
    for call, name in methods(source, "permute", "flatten_dims", "broadcast", "reshape_dim", "reshape"):
        tile = base_tile(source, call)
        if tile is not None and tile.buffer in _ON_CHIP and _changes_first(source, call, name, tile):
            yield Hit(call, f".{name}() changes the partition dimension of {tile.name}")


def _signed(source: Source, node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = source.number(node.operand)
        return None if value is None else -value
    return source.number(node)


def _changes_first(source: Source, call: ast.Call, name: str, tile: Tile) -> bool:
    if name in ("permute", "reshape"):
        node = source.argument(call, "dims" if name == "permute" else "shape", 0)
        if not isinstance(node, ast.Tuple | ast.List) or not node.elts:
            return False
        first = source.number(node.elts[0])
        kept = 0 if name == "permute" else (tile.shape[0] if tile.shape else None)
        counts = reshape_sizes_agree(source, tile, node) if name == "reshape" else True
        return first is not None and kept is not None and first != kept and counts
    dim = source.number(source.argument(call, "start_dim" if name == "flatten_dims" else "dim", 0))
    size = source.number(source.argument(call, "size", 1)) if name == "broadcast" else None
    return dim == 0 and not (name == "broadcast" and size is not None and tile.shape and size == tile.shape[0])


def reshape_sizes_agree(source: Source, tile: Tile, node: ast.Tuple | ast.List) -> bool:
    """Whether a reshape keeps the number of elements; where it does not, another rule speaks."""
    have, want = _product(tile.shape), _product([source.number(item) for item in node.elts])
    return have is None or want is None or have == want


@check
def skip_of_direct(source: Source) -> Iterator[Hit]:
    """oob_mode=skip of dma_compute or dma_transpose in a function that has no run-time index at all."""
    for call, name in source.kernel_calls("nki.isa.dma_compute", "nki.isa.dma_transpose"):
        mode = source.resolve(source.keyword(call, "oob_mode") or ast.Constant(None)) or ""
        if not mode.endswith("oob_mode.skip"):
            continue
        around = source.owner(call) or source.tree
        indirect = any(
            (isinstance(item, ast.keyword) and item.arg in _INDIRECT)
            or (isinstance(item, ast.Attribute) and item.attr in ("vector_select", "indirect", "select"))
            for item in ast.walk(around)
        )
        if not indirect:
            yield Hit(call, name.rpartition(".")[2])


@check
def wide_stride(source: Source) -> Iterator[Hit]:
    """An operand of a compute instruction whose last dimension steps over more than 16 bytes."""
    for call, name in source.kernel_calls("nki.isa.*"):
        if name.rpartition(".")[2].startswith("dma_"):
            continue
        for value in [*call.args, *(item.value for item in call.keywords)]:
            if not isinstance(value, ast.Subscript) or len(indexes(value)) < 2:
                continue
            last, tile = indexes(value)[-1], source.tile_of(value)
            step = source.number(last.step) if isinstance(last, ast.Slice) and last.step is not None else None
            size = DTYPE_BYTES.get(tile.dtype or "") if tile is not None else None
            if step is not None and size is not None and step * size > STRIDE_BYTES:
                yield Hit(value, f"{step * size} bytes from element to element")


@check
def single_elements(source: Source) -> Iterator[Hit]:
    """A DMA in a loop that takes one column or one element at a time."""
    for call, _ in source.kernel_calls("nki.isa.dma_copy"):
        loops = [item for item in source.around(call) if isinstance(item, ast.For)]
        counters = {item.id for loop in loops for item in ast.walk(loop.target) if isinstance(item, ast.Name)}
        for word, position in (("src", 1), ("dst", 0)):
            value = source.argument(call, word, position)
            tile = source.tile_of(value)
            if not counters or not isinstance(value, ast.Subscript) or len(indexes(value)) < 2:
                continue
            if tile is not None and tile.buffer in _ON_CHIP:
                continue
            last = indexes(value)[-1]
            if _one_wide(last) and counters & {item.id for item in ast.walk(last) if isinstance(item, ast.Name)}:
                yield Hit(call, ast.unparse(value))
                break


def _one_wide(item: ast.expr) -> bool:
    """`j`, or `j : j + 1`."""
    if isinstance(item, ast.Name):
        return True
    if not isinstance(item, ast.Slice) or item.lower is None or not isinstance(item.upper, ast.BinOp):
        return False
    upper = item.upper
    return (
        isinstance(upper.op, ast.Add)
        and isinstance(upper.right, ast.Constant)
        and upper.right.value == 1
        and ast.dump(upper.left) == ast.dump(item.lower)
    )
