"""Operands of single instructions: dtypes that do not meet, shapes that do not fit, engines and generations that lack something."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from vibeserve import knowledge
from vibeserve.nki.lint.checks.host import environment_settings
from vibeserve.nki.lint.checks.views import free_elements, indexes
from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import DTYPE_BYTES, Source, Tile

BANK_BYTES = 2048
LONG_FREE = 32767
_BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "abs_max", "abs_min", "power", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal")  # fmt: skip
_GENERATION = {"trn1": "v2", "trn1n": "v2", "inf2": "v2", "gen2": "v2", "trn2": "v3", "gen3": "v3", "trn3": "v4", "gen4": "v4"}  # fmt: skip
_TARGET = re.compile(r"--target[= ](\w+)")


def whole(source: Source, call: ast.Call, name: str, position: int) -> Tile | None:
    """The tile that an argument is, where it is used whole under its own name."""
    value = source.argument(call, name, position)
    return source.tile_of(value) if isinstance(value, ast.Name) else None


def member(source: Source, call: ast.Call, name: str) -> str:
    """'hwdge' of `dge_mode=nisa.dge_mode.hwdge`; '' where it is not written so."""
    return (source.resolve(source.keyword(call, name) or ast.Constant(None)) or "").rpartition(".")[2]


@check
def descriptor_cast(source: Source) -> Iterator[Hit]:
    """dma_copy(dge_mode=hwdge) between tiles of different dtypes."""
    for call, _ in source.kernel_calls("nki.isa.dma_copy"):
        if member(source, call, "dge_mode") != "hwdge":
            continue
        tiles = [source.tile_of(source.argument(call, name, place)) for name, place in (("dst", 0), ("src", 1))]
        dtypes = [tile.dtype for tile in tiles if tile is not None]
        if len(dtypes) == 2 and None not in dtypes and dtypes[0] != dtypes[1]:
            yield Hit(call, f"{dtypes[1]} into {dtypes[0]}")


@check
def memset_packed(source: Source) -> Iterator[Hit]:
    """memset of a packed x4 tile to something else than 0."""
    for call, _ in source.kernel_calls("nki.isa.memset"):
        tile, value = source.tile_of(source.argument(call, "dst", 0)), source.argument(call, "value", 1)
        if tile is None or not (tile.dtype or "").endswith("_x4"):
            continue
        if not isinstance(value, ast.Constant) or value.value:
            yield Hit(call, f"{tile.name} is {tile.dtype}")


@check
def wide_bias(source: Source) -> Iterator[Hit]:
    """activation(bias=tile) of more than one column."""
    for call, _ in source.kernel_calls("nki.isa.activation", "nki.isa.activation_reduce"):
        value = source.keyword(call, "bias")
        tile = source.tile_of(value) if isinstance(value, ast.Name) else None
        if tile is not None and len(tile.shape) == 2 and tile.shape[1] not in (None, 1):
            yield Hit(call, f"{tile.name} has {tile.shape[1]} columns")


@check
def scalar_operand(source: Source) -> Iterator[Hit]:
    """An operand of tensor_scalar that is a tile and no float32 column (32-bit integers go with 32-bit integers)."""
    for call, _ in source.kernel_calls("nki.isa.tensor_scalar", "nki.isa.tensor_scalar_reduce"):
        data = source.tile_of(source.argument(call, "data", 1))
        for name, place in (("operand0", 3), ("operand1", 6)):
            value = source.argument(call, name, place)
            tile = source.tile_of(value) if value is not None else None
            if tile is None:
                continue
            if isinstance(value, ast.Name) and len(tile.shape) == 2 and tile.shape[1] not in (None, 1):
                yield Hit(call, f"{tile.name} has {tile.shape[1]} columns")
            elif tile.dtype in DTYPE_BYTES and tile.dtype != "float32":
                whole_numbers = tile.dtype in ("int32", "uint32")
                if not (whole_numbers and (data is None or data.dtype in ("int32", "uint32", None))):
                    yield Hit(call, f"{tile.name} is {tile.dtype}")


@check
def matmul_layout(source: Source) -> Iterator[Hit]:
    """Stationary and moving tiles, used whole, with unequal K; or a destination that is not [M, N]."""
    for call, _ in source.kernel_calls("nki.isa.nc_matmul"):
        if source.keyword(call, "is_transpose") is not None or source.keyword(call, "tile_size") is not None:
            continue
        left, right = whole(source, call, "stationary", 1), whole(source, call, "moving", 2)
        out = whole(source, call, "dst", 0)
        if left is None or right is None or len(left.shape) != 2 or len(right.shape) != 2:
            continue
        if None not in (left.shape[0], right.shape[0]) and left.shape[0] != right.shape[0]:
            yield Hit(call, f"K is {left.shape[0]} of {left.name} and {right.shape[0]} of {right.name}")
        elif out is not None and len(out.shape) == 2:
            wanted = (left.shape[1], right.shape[1])
            if any(None not in pair and pair[0] != pair[1] for pair in zip(out.shape, wanted, strict=True)):
                yield Hit(call, f"{out.name} is {list(out.shape)}, the result {list(wanted)}")


@check
def bank_crossed(source: Source) -> Iterator[Hit]:
    """A matmul whose destination is a slice that spans two PSUM banks."""
    for call, _ in source.kernel_calls("nki.isa.nc_matmul"):
        value = source.argument(call, "dst", 0)
        tile = source.tile_of(value)
        if tile is None or tile.buffer != "psum" or not isinstance(value, ast.Subscript) or len(tile.shape) != 2:
            continue
        items, size = indexes(value), DTYPE_BYTES.get(tile.dtype or "")
        last = items[1] if len(items) == 2 else None
        if not isinstance(last, ast.Slice) or size is None or last.step is not None:
            continue
        start = source.number(last.lower) if last.lower is not None else 0
        stop = source.number(last.upper) if last.upper is not None else tile.shape[1]
        if start is None or stop is None or stop <= start:
            continue
        if start * size // BANK_BYTES != (stop * size - 1) // BANK_BYTES:
            yield Hit(call, f"columns {start} to {stop} of {tile.name}")


@check
def unequal_tiles(source: Source) -> Iterator[Hit]:
    """`nl.add(a, b)` of whole tiles whose shapes are known and differ."""
    for call, name in source.kernel_calls(*(f"nki.language.{name}" for name in _BINARY)):
        left, right = whole(source, call, "x", 0), whole(source, call, "y", 1)
        if left is None or right is None or None in left.shape or None in right.shape:
            continue
        if left.shape and right.shape and left.shape != right.shape:
            yield Hit(call, f"nl.{name.rpartition('.')[2]} of {list(left.shape)} and {list(right.shape)}")


@check
def byte_scales(source: Source) -> Iterator[Hit]:
    """MX scales in a uint8 tile."""
    for call, _ in source.kernel_calls("nki.isa.nc_matmul_mx", "nki.isa.quantize_mx"):
        for name, place in (("stationary_scale", 3), ("moving_scale", 4), ("dst_scale", 2)):
            if name == "dst_scale" and source.keyword(call, name) is None:
                continue
            tile = source.tile_of(source.argument(call, name, place))
            if tile is not None and tile.dtype == "uint8":
                yield Hit(call, tile.name)


@check
def transpose_engine(source: Source) -> Iterator[Hit]:
    """`nc_transpose(…, engine=…)`."""
    for call, _ in source.kernel_calls("nki.isa.nc_transpose"):
        engine = member(source, call, "engine")
        if engine and engine != "unknown":
            yield Hit(call, engine)


def _facts(name: str) -> dict[str, Any]:
    symbol = knowledge.symbols().get(name)
    return dict(symbol.facts) if symbol is not None else {}


@check
def engine_refused(source: Source) -> Iterator[Hit]:
    """`engine=nisa.engine.X` where the instruction has no such engine."""
    for call, name in source.kernel_calls("nki.isa.*"):
        engine, allowed = member(source, call, "engine"), (_facts(name).get("engines") or {}).get("allowed")
        if not allowed or not (source.resolve(source.keyword(call, "engine") or ast.Constant(None)) or "").startswith(
            "nki.isa."
        ):
            continue
        engine = engine.removesuffix("_engine")
        if engine in ("tensor", "vector", "scalar", "gpsimd", "sync") and not _lists(allowed, engine):
            yield Hit(call, f"{engine} of nisa.{name.rpartition('.')[2]}, which has {', '.join(map(str, allowed))}")


def _lists(allowed: list[Any], engine: str) -> bool:
    return any(engine in str(item) or str(item) == "dma" for item in allowed)


def target_of(source: Source) -> str | None:
    """The generation (v2, v3, v4) that the file itself sets in its environment; None where it sets none, or several."""
    found = set()
    for _, name, text in environment_settings(source.nodes):
        if name == "NEURON_PLATFORM_TARGET_OVERRIDE" and text:
            found.add(_GENERATION.get(text))
        elif name == "NEURON_CC_FLAGS" and (match := _TARGET.search(text or "")):
            found.add(_GENERATION.get(match.group(1)))
    return found.pop() if len(found) == 1 else None


@check
def generation_lacks(source: Source) -> Iterator[Hit]:
    """What the generation that this file compiles for does not have: hwdge on v2, priority= before v4, newer instructions."""
    target = target_of(source)
    if target is None:
        return
    for call, name in source.kernel_calls("nki.isa.*"):
        generations = _facts(name).get("generations")
        if isinstance(generations, list) and generations and target not in generations:
            yield Hit(
                call,
                f"nisa.{name.rpartition('.')[2]} needs {' or '.join(map(str, generations))}, this file compiles for {target}",
            )
        elif member(source, call, "dge_mode") == "hwdge" and target == "v2":
            yield Hit(call, "dge_mode=hwdge on v2")
        elif target != "v4" and _given(source.keyword(call, "priority")):
            yield Hit(call, f"priority= on {target}")


def _given(node: ast.expr | None) -> bool:
    return node is not None and not (isinstance(node, ast.Constant) and node.value is None)


@check
def accumulates_first(source: Source) -> Iterator[Hit]:
    """`nc_matmul(accumulate=True)` into a PSUM tile that no matmul has written before."""
    written: set[tuple[object, str]] = set()
    calls = sorted(source.kernel_calls("nki.isa.nc_matmul", "nki.isa.nc_matmul_mx"), key=lambda item: item[0].lineno)
    for call, _ in calls:
        tile = source.tile_of(source.argument(call, "dst", 0))
        if tile is None or tile.buffer != "psum":
            continue
        key = (source.owner(tile.node), tile.name)
        value = source.keyword(call, "accumulate")
        if key not in written and isinstance(value, ast.Constant) and value.value is True:
            yield Hit(call, tile.name)
        written.add(key)


@check
def long_free(source: Source) -> Iterator[Hit]:
    """A tile of more than 32,767 elements a partition, used whole in one instruction."""
    for call, _ in source.kernel_calls("nki.isa.*"):
        for value in [*call.args, *(item.value for item in call.keywords)]:
            tile = source.tile_of(value) if isinstance(value, ast.Name) else None
            if tile is not None and tile.buffer == "sbuf" and (free_elements(tile) or 0) > LONG_FREE:
                yield Hit(call, f"{tile.name} has {free_elements(tile)}")
                break


@check
def transpose_shape(source: Source) -> Iterator[Hit]:
    """dma_transpose of whole tiles whose destination has another rank, or not the turned shape."""
    for call, _ in source.kernel_calls("nki.isa.dma_transpose"):
        out, data = whole(source, call, "dst", 0), whole(source, call, "src", 1)
        if out is None or data is None or not out.shape or not data.shape:
            continue
        if len(out.shape) != len(data.shape):
            yield Hit(call, f"{out.name} has {len(out.shape)} dimensions, {data.name} {len(data.shape)}")
        elif len(out.shape) == 2 and any(
            None not in pair and pair[0] != pair[1] for pair in zip(out.shape, reversed(data.shape), strict=True)
        ):
            yield Hit(call, f"{out.name} is {list(out.shape)}, {data.name} turned is {list(reversed(data.shape))}")


@check
def source_first(source: Source) -> Iterator[Hit]:
    """`nc_stream_shuffle(a, b, …)` by position where a has been written and b has not: the order of the first beta."""
    for call, _ in source.kernel_calls("nki.isa.nc_stream_shuffle"):
        if len(call.args) < 2:
            continue
        first, second = (source.tile_of(item) for item in call.args[:2])
        if first is None or second is None or first is second:
            continue
        if _written_before(source, call, first) and not _written_before(source, call, second):
            yield Hit(call, f"{first.name} is written before, {second.name} is not")


def _written_before(source: Source, call: ast.Call, tile: Tile) -> bool:
    if not (source.resolve(tile.node.func) or "").endswith((".ndarray", ".empty", ".empty_like")):
        return True
    return any(
        other.lineno < call.lineno and source.tile_of(source.argument(other, "dst", 0)) is tile
        for other, _ in source.kernel_calls("nki.isa.*")
    )


@check
def scales_third(source: Source) -> Iterator[Hit]:
    """`dma_compute(dst, srcs, [1.0, 1.0], nl.add)`: scales before the operator."""
    for call, _ in source.kernel_calls("nki.isa.dma_compute"):
        if len(call.args) > 2 and isinstance(call.args[2], ast.List | ast.Tuple):
            yield Hit(call, f"{ast.unparse(call.args[2])} stands where reduce_op belongs")


@check
def offset_third(source: Source) -> Iterator[Hit]:
    """`affine_select(dst, pattern, offset, channel_multiplier, tile, …)`: the offset before the multiplier."""
    for call, _ in source.kernel_calls("nki.isa.affine_select"):
        if len(call.args) < 4:
            continue
        fourth = call.args[3]
        number = fourth.operand if isinstance(fourth, ast.UnaryOp) else fourth
        if isinstance(number, ast.Constant) and isinstance(number.value, int | float):
            yield Hit(call, f"{ast.unparse(fourth)} stands where on_true_tile belongs")
