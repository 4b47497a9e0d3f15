"""Where tiles are, how big, and of what dtype: what can be told from allocations under plain names and constant sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import DTYPE_BYTES, Source, Tile

_ON_CHIP = ("sbuf", "psum")
_HBM = ("hbm", "shared_hbm", "private_hbm")
_MOVES = ("dma_copy", "dma_transpose", "dma_compute", "sendrecv", "core_barrier", "rand2", "memset")
_INTEGERS = tuple(name for name in DTYPE_BYTES if "int" in name)
_BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "invert")
PSUM_BANK_BYTES = 2048


def _operands(source: Source, call: ast.Call, *names: str) -> Iterator[tuple[ast.expr, Tile]]:
    """The operands of a call that are known tiles: those of the given keywords, or all."""
    values = (
        [item.value for item in call.keywords if item.arg in names]
        if names
        else [*call.args, *(item.value for item in call.keywords)]
    )
    for value in values:
        tile = source.tile_of(value)
        if tile is not None:
            yield value, tile


def _destination(source: Source, call: ast.Call) -> Tile | None:
    return source.tile_of(source.argument(call, "dst", 0))


@check
def partition_limit(source: Source) -> Iterator[Hit]:
    """`nl.ndarray((256, 512), …)` on chip."""
    for tile in source.tiles.values():
        if tile.buffer in _ON_CHIP and tile.shape and (tile.shape[0] or 0) > 128 and source.in_kernel(tile.node):
            yield Hit(tile.node, f"{tile.name} has {tile.shape[0]}")


@check
def psum_free_size(source: Source) -> Iterator[Hit]:
    """A PSUM tile of more than one bank a partition."""
    for tile in source.tiles.values():
        size = DTYPE_BYTES.get(tile.dtype or "")
        if tile.buffer != "psum" or len(tile.shape) != 2 or tile.shape[1] is None or size is None:
            continue
        if tile.shape[1] * size > PSUM_BANK_BYTES:
            yield Hit(tile.node, f"{tile.name} has {tile.shape[1]} × {size} bytes")


@check
def psum_address(source: Source) -> Iterator[Hit]:
    """`address=(0, 100)` of a PSUM tile."""
    for call, _ in source.kernel_calls("nki.language.ndarray", "nki.language.zeros"):
        address = source.keyword(call, "address")
        if (
            source.short(source.keyword(call, "buffer")) == "psum"
            and isinstance(address, ast.Tuple)
            and len(address.elts) == 2
        ):
            offset = source.number(address.elts[1])
            if offset is not None and offset % PSUM_BANK_BYTES:
                yield Hit(address, f"offset {offset}")


@check
def matmul_destination(source: Source) -> Iterator[Hit]:
    """A matmul into SBUF or HBM."""
    for call, _ in source.kernel_calls("nki.isa.nc_matmul", "nki.isa.nc_matmul_mx"):
        tile = _destination(source, call)
        if tile is not None and tile.buffer is not None and tile.buffer != "psum":
            yield Hit(call, f"{tile.name} is in {tile.buffer}")


@check
def matmul_dtype(source: Source) -> Iterator[Hit]:
    """A matmul into a bf16 PSUM tile (a transpose may)."""
    for call, _ in source.kernel_calls("nki.isa.nc_matmul"):
        tile = _destination(source, call)
        if (
            source.keyword(call, "is_transpose") is None
            and tile is not None
            and tile.buffer == "psum"
            and tile.dtype not in (None, "float32")
        ):
            yield Hit(call, f"{tile.name} is {tile.dtype}")


@check
def matmul_size(source: Source) -> Iterator[Hit]:
    """Stationary or moving tiles, used whole, beyond 128 × 128 and 128 × 512."""
    for call, _ in source.kernel_calls("nki.isa.nc_matmul"):
        for name, position, limits in (("stationary", 1, (128, 128)), ("moving", 2, (128, 512))):
            value = source.argument(call, name, position)
            tile = source.tile_of(value)
            if not isinstance(value, ast.Name) or tile is None or len(tile.shape) != 2:
                continue
            for size, limit, letter in zip(
                tile.shape, limits, ("K", "M" if name == "stationary" else "N"), strict=True
            ):
                if size is not None and size > limit:
                    yield Hit(value, f"{name} {tile.name} has {letter} = {size}")


@check
def matmul_integers(source: Source) -> Iterator[Hit]:
    """Integer operands of a matmul."""
    for call, _ in source.kernel_calls("nki.isa.nc_matmul"):
        for name, position in (("stationary", 1), ("moving", 2)):
            tile = source.tile_of(source.argument(call, name, position))
            if tile is not None and tile.dtype in _INTEGERS:
                yield Hit(call, f"{tile.name} is {tile.dtype}")


@check
def fp8_mix(source: Source) -> Iterator[Hit]:
    """float8_e4m3 with float8_e4m3fn."""
    for call, _ in source.kernel_calls("nki.isa.nc_matmul"):
        tiles = [
            source.tile_of(source.argument(call, name, place)) for name, place in (("stationary", 1), ("moving", 2))
        ]
        if {tile.dtype for tile in tiles if tile} == {"float8_e4m3", "float8_e4m3fn"}:
            yield Hit(call)


@check
def psum_dma(source: Source) -> Iterator[Hit]:
    """`nisa.dma_copy(src=psum_tile)`."""
    for call, _ in source.kernel_calls("nki.isa.dma_copy", "nki.isa.dma_transpose"):
        tile = source.tile_of(source.argument(call, "src", 1))
        if tile is not None and tile.buffer == "psum":
            yield Hit(call, tile.name)


@check
def store_psum(source: Source) -> Iterator[Hit]:
    """`nl.store(out, psum_tile)`."""
    for call, _ in source.kernel_calls("nki.language.store"):
        tile = source.tile_of(source.argument(call, "value", 1))
        if tile is not None and tile.buffer == "psum":
            yield Hit(call, tile.name)


@check
def hbm_operand(source: Source) -> Iterator[Hit]:
    """A tensor in HBM given to an instruction that computes."""
    for call, name in source.kernel_calls("nki.isa.*"):
        if name.rpartition(".")[2] in _MOVES:
            continue
        for value, tile in _operands(source, call):
            if tile.buffer in _HBM:
                yield Hit(value, f"{tile.name} is in {tile.buffer}")


@check
def returned_buffer(source: Source) -> Iterator[Hit]:
    """`return out` where out is in nl.hbm, SBUF or PSUM."""
    for node in source.nodes:
        if not isinstance(node, ast.Return) or source.owner(node) not in source.entry_points:
            continue
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for value in values:
            tile = source.tile_of(value) if isinstance(value, ast.Name) else None
            if tile is not None and tile.buffer not in (None, "shared_hbm"):
                yield Hit(node, f"{tile.name} is in {tile.buffer}")


@check
def memset_type(source: Source) -> Iterator[Hit]:
    """A float into an integer tile; an integer into a float tile is converted and passes."""
    for call, _ in source.kernel_calls("nki.isa.memset"):
        tile, value = _destination(source, call), source.argument(call, "value", 1)
        inner = value.operand if isinstance(value, ast.UnaryOp) else value
        if tile is None or value is None or tile.dtype not in _INTEGERS or not isinstance(inner, ast.Constant):
            continue
        if isinstance(inner.value, float):
            yield Hit(value, f"{ast.unparse(value)} into {tile.dtype}")


@check
def reduce_axis(source: Source) -> Iterator[Hit]:
    """axis=1 on a tile of three or more dimensions."""
    for call, _ in source.kernel_calls("nki.isa.tensor_reduce"):
        tile, axis = source.tile_of(source.argument(call, "data", 2)), source.keyword(call, "axis")
        value = source.argument(call, "data", 2)
        if tile is not None and isinstance(value, ast.Name) and len(tile.shape) > 2 and source.number(axis) == 1:
            yield Hit(call, f"{tile.name} has {len(tile.shape)} dimensions")


@check
def both_psum(source: Source) -> Iterator[Hit]:
    """tensor_tensor of two PSUM tiles."""
    for call, _ in source.kernel_calls("nki.isa.tensor_tensor"):
        tiles = [source.tile_of(source.argument(call, name, place)) for name, place in (("data1", 1), ("data2", 2))]
        if all(tile is not None and tile.buffer == "psum" for tile in tiles):
            yield Hit(call)


@check
def gpsimd_psum(source: Source) -> Iterator[Hit]:
    """engine=gpsimd with a PSUM operand."""
    for call, _ in source.kernel_calls("nki.isa.*"):
        engine = source.resolve(source.keyword(call, "engine") or ast.Constant(None)) or ""
        if engine.endswith(("engine.gpsimd", "gpsimd_engine")):
            for value, tile in _operands(source, call):
                if tile.buffer == "psum":
                    yield Hit(value, tile.name)


@check
def bitwise_float(source: Source) -> Iterator[Hit]:
    """op=nl.bitwise_and on a float tile."""
    for call, _ in source.kernel_calls("nki.isa.tensor_tensor", "nki.isa.tensor_scalar", "nki.isa.tensor_reduce"):
        ops = [source.short(item.value) for item in call.keywords if item.arg and item.arg.startswith("op")]
        if any(op in _BITWISE for op in ops):
            for value, tile in _operands(source, call, "data", "data1", "data2"):
                if tile.dtype in DTYPE_BYTES and tile.dtype not in _INTEGERS:
                    yield Hit(value, f"{tile.name} is {tile.dtype}")


@check
def partition_start(source: Source) -> Iterator[Hit]:
    """`t[16:48, …]` on chip."""
    for node, tile, part in _partition_slices(source):
        start, stop = source.number(part.lower) if part.lower else 0, source.number(part.upper) if part.upper else None
        if tile.buffer not in _ON_CHIP or start is None:
            continue
        if (
            start % 32
            or (stop is not None and start and stop - start > 64)
            or (stop is not None and start % 64 and stop - start > 32)
        ):
            yield Hit(node, f"partitions {start} to {stop if stop is not None else '?'}")


def _partition_slices(source: Source) -> Iterator[tuple[ast.Subscript, Tile, ast.Slice]]:
    for node in source.nodes:
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or not source.in_kernel(node):
            continue
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        tile = source.tile_of(node.value)
        if tile is not None and isinstance(first, ast.Slice):
            yield node, tile, first


@check
def element_assigned(source: Source) -> Iterator[Hit]:
    """`t[…] = value` or `t[…] += value` of a tile; not where the value is an instruction, which has a rule of its own."""
    for node in source.nodes:
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign)
            else node.target
            if isinstance(node, ast.AugAssign)
            else None
        )
        if not isinstance(target, ast.Subscript) or not isinstance(node, ast.Assign | ast.AugAssign):
            continue
        value = source.resolve(node.value.func) if isinstance(node.value, ast.Call) else None
        if source.tile_of(target) is not None and not (value or "").startswith(("nki.isa.", "nki.language.load")):
            yield Hit(node, ast.unparse(target))


@check
def tile_arithmetic(source: Source) -> Iterator[Hit]:
    """`a + b`, `2 * a[…]` of tiles."""
    for node in source.operations:
        if any(
            is_tile(source, side)
            for item in ast.walk(node)
            if isinstance(item, ast.BinOp)
            for side in (item.left, item.right)
        ):
            yield Hit(node, ast.unparse(node))


def is_tile(source: Source, node: ast.expr) -> bool:
    """Whether an operand is a tile: its name, a view of it, or what a function of the language made of one."""
    if isinstance(node, ast.Call):
        name = source.resolve(node.func) or ""
        return name.startswith("nki.language.") and any(is_tile(source, item) for item in node.args)
    plain = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(plain, ast.Name) and source.tile_of(plain) is not None
