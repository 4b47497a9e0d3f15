"""What the arguments of one call say: values that are refused, arguments that must be there, strided transfers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import DTYPE_BYTES, Source

_LOWEST = -3.4028235e38
_MOST_DIMENSIONS = 5
_SBUF_BYTES = 245752  # of the largest generation, a partition, usable


def _constant(node: ast.expr | None) -> float | None:
    """A literal number, with its sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _constant(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    return None


@check
def matmul_untransposed(source: Source) -> Iterator[Hit]:
    """`nl.matmul(a, b)` without transpose_x=True."""
    for call, _ in source.kernel_calls("nki.language.matmul"):
        given = source.argument(call, "transpose_x", 2)
        if given is None or (isinstance(given, ast.Constant) and given.value is False):
            yield Hit(call)


@check
def seed_number(source: Source) -> Iterator[Hit]:
    """`nl.random_seed(3)`."""
    for call, _ in source.kernel_calls("nki.language.random_seed"):
        if _constant(source.argument(call, "seed", 0)) is not None:
            yield Hit(call)


@check
def power_of_number(source: Source) -> Iterator[Hit]:
    """`nl.power(tile, 2.0)`."""
    for call, _ in source.kernel_calls("nki.language.power"):
        if _constant(source.argument(call, "y", 1)) is not None:
            yield Hit(call)


@check
def loop_step(source: Source) -> Iterator[Hit]:
    """A step of a run-time loop that is zero or negative."""
    for call, _ in source.kernel_calls("nki.language.fori_loop"):
        step = _constant(source.argument(call, "step", 3))
        if step is not None and (step <= 0 or step != int(step)):
            yield Hit(call, f"step {step:g}")


@check
def select_fill(source: Source) -> Iterator[Hit]:
    """`range_select(…, on_false_value=0.0)`."""
    for call, _ in source.kernel_calls("nki.isa.range_select"):
        value = _constant(source.keyword(call, "on_false_value"))
        if value is not None and abs(value - _LOWEST) > 1e31:
            yield Hit(call, f"on_false_value={value:g}")


@check
def dma_engine_constant(source: Source) -> Iterator[Hit]:
    """`engine=nisa.dma_engine`."""
    for call, _ in source.kernel_calls("nki.isa.*"):
        engine = source.keyword(call, "engine")
        if engine is not None and (source.resolve(engine) or "").startswith("nki.isa.dma_engine"):
            yield Hit(engine)


@check
def rsqrt_of_psum(source: Source) -> Iterator[Hit]:
    """`nl.rsqrt(tile)` of a tile in PSUM."""
    for call, _ in source.kernel_calls("nki.language.rsqrt"):
        tile = source.tile_of(call.args[0]) if call.args else None
        if tile is not None and tile.buffer == "psum":
            yield Hit(call, tile.name)


@check
def gather_counts(source: Source) -> Iterator[Hit]:
    """`local_gather` without its two counts."""
    for call, _ in source.kernel_calls("nki.isa.local_gather"):
        given = {item.arg for item in call.keywords}
        missing = {"num_elem_per_idx", "num_valid_indices"} - given
        if missing and None not in given and len(call.args) <= 3:
            yield Hit(call, f"without {' and '.join(sorted(missing))}")


@check
def flat_tile(source: Source) -> Iterator[Hit]:
    """`nl.ndarray((128,), buffer=nl.sbuf)`, and one of more than five dimensions."""
    for tile in source.tiles.values():
        if tile.buffer in ("sbuf", "psum") and (len(tile.shape) == 1 or len(tile.shape) > _MOST_DIMENSIONS):
            yield Hit(tile.node, f"{tile.name} has {len(tile.shape)}")


@check
def tile_beyond_sbuf(source: Source) -> Iterator[Hit]:
    """A tile in SBUF that alone is more than a partition holds."""
    for tile in source.tiles.values():
        width = DTYPE_BYTES.get(tile.dtype or "")
        if tile.buffer != "sbuf" or width is None or len(tile.shape) < 2 or None in tile.shape[1:]:
            continue
        bytes_needed = width
        for size in tile.shape[1:]:
            bytes_needed *= size or 0
        if bytes_needed > _SBUF_BYTES:
            yield Hit(tile.node, f"{bytes_needed:,} bytes a partition, {_SBUF_BYTES:,} at most")


@check
def asserted_tile(source: Source) -> Iterator[Hit]:
    """`assert nl.equal(a, b)`."""
    for node in source.nodes:
        if isinstance(node, ast.Assert) and any(
            isinstance(item, ast.Call)
            and (source.resolve(item.func) or "").startswith("nki.language.")
            and any(source.tile_of(argument) is not None for argument in item.args)
            for item in ast.walk(node.test)
        ):
            yield Hit(node)


@check
def strided_dma(source: Source) -> Iterator[Hit]:
    """A DMA between memories that takes every n-th element of its last dimension."""
    for call, _ in source.kernel_calls("nki.isa.dma_copy"):
        for name, position in (("src", 1), ("dst", 0)):
            node = source.argument(call, name, position)
            if not isinstance(node, ast.Subscript):
                continue
            items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            last = items[-1]
            step = source.number(last.step) if isinstance(last, ast.Slice) and last.step is not None else None
            if step is not None and step > 1 and len(items) > 1:
                text = ast.unparse(node)
                yield Hit(
                    call,
                    f"{text}. Ask: The current tensor layout ({ast.unparse(node.value)} is read with step {step} in its last "
                    f"dimension) would require strided DMA ({text}). Would you allow changing the layout to one where those elements "
                    f"lie side by side (the last dimension split in n and {step}, and the {step} moved before the n)? This would "
                    "simplify the kernel and improve performance",
                )
                break
