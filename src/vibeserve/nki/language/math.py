"""Arithmetic, comparison, activation and reduction functions on tiles; each makes a new tile by instructions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from vibeserve.nki import access, isa
from vibeserve.nki.context import Core, current_core
from vibeserve.nki.errors import KernelError
from vibeserve.nki.instruction import instruction
from vibeserve.nki.isa.elementwise import rows
from vibeserve.nki.language.creation import checked_shape, ndarray
from vibeserve.nki.memory import MemoryRegion
from vibeserve.nki.ops import OPS, Op, is_bit, show
from vibeserve.nki.tensor import NkiTensor

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "divide": np.divide,
    "mod": np.mod,
    "fmod": np.fmod,
    "where": lambda c, x, y: np.where(c != 0, x, y),
    "power": np.power,
}


@instruction
def vector_function(
    core: Core, dst: NkiTensor, data: NkiTensor, function: str, other: Any = None, third: Any = None
) -> None:
    """A function of the language that is no single instruction, element by element in float32."""
    operands: list[Any] = [access.read_f32(data)]
    for value in (other, third):
        if value is not None:
            operands.append(access.read_f32(value) if isinstance(value, NkiTensor) else np.float32(value))
    access.write(dst, _FUNCTIONS[function](*operands).astype(np.float32))


def _tile(x: Any, what: str) -> NkiTensor:
    if not isinstance(x, NkiTensor):
        raise KernelError(
            f"nl.{what} of {type(x).__name__} {x!r}",
            code="NKI-OPERAND",
            rule="a tile",
            fix="Python arithmetic for plain numbers",
        )
    if not x.on_chip:
        raise KernelError(
            f"nl.{what} of an HBM tensor",
            code="S-SPACE",
            rule="tiles in SBUF or PSUM",
            fix="nl.load or nisa.dma_copy first",
            operands=repr(x),
        )
    return x


def _like(x: NkiTensor, dtype: Any) -> NkiTensor:
    return ndarray(x.shape, x.dtype if dtype is None else dtype)


def _binary(op: Op) -> Callable[..., NkiTensor]:
    def function(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
        left, right = isinstance(x, NkiTensor), isinstance(y, NkiTensor)
        tile = _tile(x if left else y, op.name)
        if left and right:
            _tile(y, op.name)
            if x.shape != y.shape:
                if y.shape != (x.shape[0], 1) or op.name not in ("abs_max", "abs_min"):
                    raise KernelError(
                        f"nl.{op.name} of shapes {list(x.shape)} and {list(y.shape)}", code="S-NLBCAST",
                        rule="tiles of equal shapes; nothing is broadcast",
                        fix="nisa.tensor_scalar with a [P, 1] operand, or nl.broadcast_to",
                    )  # fmt: skip
                out = _like(tile, dtype)
                isa.tensor_scalar(out, x, op, y)
            else:
                out = _like(tile, dtype)
                isa.tensor_tensor(out, x, y, op)
        else:
            if op.name == "power":
                raise KernelError(
                    "nl.power with a scalar exponent",
                    code="S-NLPOW",
                    rule="both operands are tiles",
                    fix="nisa.tensor_scalar(op0=nl.power)",
                )
            out = _like(tile, dtype)
            scalar = y if left else x
            if is_bit(op) and isinstance(scalar, float) and scalar.is_integer():
                scalar = int(scalar)
            isa.tensor_scalar(out, tile, op, scalar, reverse0=not left)
        out.truth = op.kind == "compare"
        return out

    function.__doc__ = f"{op.name} of two tiles, or a tile and a number; `dtype` None is the first tile's."
    return function


def _absent(name: str) -> Callable[..., NkiTensor]:
    def function(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
        tile = _tile(x if isinstance(x, NkiTensor) else y, name)
        current_core(f"nl.{name}").session.report(
            "device-refuses", f"nl.{name} has no hardware instruction: a build for the device fails here", code="S-NLDIV",
            fix="nl.multiply(x, nl.reciprocal(y))" if name == "divide" else "",
        )  # fmt: skip
        if isinstance(x, NkiTensor) and isinstance(y, NkiTensor) and _tile(y, name).shape != x.shape:
            raise KernelError(
                f"nl.{name} of shapes {list(x.shape)} and {list(y.shape)}",
                code="S-NLBCAST",
                rule="tiles of equal shapes",
            )
        out = _like(tile, dtype)
        if tile is x:
            vector_function(out, x, name, y)
        else:
            filled = ndarray(tile.shape, tile.dtype)
            isa.memset(filled, float(x) if tile.dtype.is_float else int(x))
            vector_function(out, filled, name, y)
        return out

    function.__doc__ = f"{name}: simulated only; the device has no such instruction."
    return function


def _activation(op: Op) -> Callable[..., NkiTensor]:
    def function(x: Any, dtype: Any = None) -> NkiTensor:
        out = _like(_tile(x, op.name), dtype)
        isa.activation(out, op, x)
        return out

    function.__doc__ = f"{op.name} of a tile, on the scalar engine."
    return function


def _vector(name: str) -> Callable[..., NkiTensor]:
    def function(x: Any, dtype: Any = None) -> NkiTensor:
        out = _like(_tile(x, name), dtype)
        vector_function(out, x, name)
        return out

    function.__doc__ = f"{name} of a tile."
    return function


def _rsqrt(x: Any, dtype: Any = None) -> NkiTensor:
    """1 / sqrt(x), on gpsimd: not for PSUM tiles."""
    out = _like(_tile(x, "rsqrt"), dtype)
    isa.tensor_scalar(out, x, OPS["rsqrt"], 0.0)
    return out


def _reciprocal(x: Any, dtype: Any = None) -> NkiTensor:
    """1 / x, on the vector engine."""
    out = _like(_tile(x, "reciprocal"), dtype)
    isa.reciprocal(out, x)
    return out


def negative(x: Any, dtype: Any = None) -> NkiTensor:
    """-x."""
    out = _like(_tile(x, "negative"), dtype)
    isa.tensor_scalar(out, x, OPS["multiply"], -1.0)
    return out


def _logical_not(x: Any, dtype: Any = None) -> NkiTensor:
    """x xor 1, for tiles of 0 and 1."""
    out = _like(_tile(x, "logical_not"), dtype)
    isa.tensor_scalar(out, x, OPS["logical_xor"], 1.0)
    return out


def _invert(x: Any, dtype: Any = None) -> NkiTensor:
    """~x, for integer tiles."""
    out = _like(_tile(x, "invert"), dtype)
    isa.tensor_scalar(out, x, OPS["bitwise_xor"], -1)
    return out


def _axes(x: NkiTensor, axis: Any) -> list[int]:
    given = [axis] if isinstance(axis, int | np.integer) else list(axis)
    if not all(isinstance(a, int | np.integer) for a in given):
        raise KernelError(f"axis={axis!r}", code="NKI-OPERAND", rule="an int or a tuple of ints")
    return sorted(int(a) % x.ndim for a in given)


def _reduced(x: NkiTensor, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    axes = _axes(x, axis)
    shape = tuple(1 if i in axes else size for i, size in enumerate(x.shape))
    if not keepdims:
        shape = tuple(size for i, size in enumerate(x.shape) if i not in axes)
        if len(shape) < 2:
            shape = (x.shape[0], 1)
    return ndarray(shape, x.dtype if dtype is None else dtype)


def _reduction(name: str, op_name: str) -> Callable[..., NkiTensor]:
    def function(x: Any, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
        out = _reduced(_tile(x, name), axis, dtype, keepdims)
        isa.tensor_reduce(out, OPS[op_name], x, axis)
        return out

    function.__doc__ = f"{name} over trailing free axes."
    return function


def mean(x: Any, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The mean over trailing free axes, in float32."""
    out = _reduced(_tile(x, "mean"), axis, dtype, keepdims)
    total = ndarray(out.shape, "float32")
    isa.tensor_reduce(total, OPS["add"], x, axis)
    count = math.prod(x.shape[a] for a in _axes(x, axis))
    isa.tensor_scalar(out, total, OPS["multiply"], 1.0 / count)
    return out


def var(x: Any, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The population variance over trailing free axes; the result keeps its dimensions."""
    tile = _tile(x, "var")
    axes = _axes(tile, axis)
    count = math.prod(tile.shape[a] for a in axes)
    average = ndarray(_reduced(tile, axis, "float32", True).shape, "float32")
    isa.tensor_reduce(average, OPS["add"], x, axis)
    isa.tensor_scalar(average, average, OPS["multiply"], 1.0 / count)
    wide = average
    for a in axes:
        wide = wide.broadcast(a, tile.shape[a])
    spread = ndarray(tile.shape, "float32")
    isa.tensor_tensor(spread, x, wide, OPS["subtract"])
    isa.tensor_tensor(spread, spread, spread, OPS["multiply"])
    total = ndarray(average.shape, "float32")
    isa.tensor_reduce(total, OPS["add"], spread, axis)
    out = ndarray(average.shape, tile.dtype if dtype is None else dtype)
    isa.tensor_scalar(out, total, OPS["multiply"], 1.0 / count)
    return out


def all_(x: Any, axis: Any, dtype: Any = None) -> NkiTensor:
    """Logical and over trailing free axes."""
    out = _reduced(_tile(x, "all"), axis, dtype, False)
    isa.tensor_reduce(out, OPS["logical_and"], x, axis)
    out.truth = True
    return out


def softmax(x: Any, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """exp(x - max) / sum(exp(x - max)) over trailing free axes."""
    tile = _tile(x, "softmax")
    axes = _axes(tile, axis)
    inner = math.prod(tile.shape[a] for a in axes)
    outer = tile.size // (tile.shape[0] * inner)
    view = tile.reshape((tile.shape[0], outer, inner))
    top, total = ndarray((tile.shape[0], outer, 1), "float32"), ndarray((tile.shape[0], outer, 1), "float32")
    isa.tensor_reduce(top, OPS["maximum"], view, 2, keepdims=True)
    powers = ndarray(view.shape, "float32")
    isa.tensor_tensor(powers, view, top.broadcast(2, inner), OPS["subtract"])
    isa.activation(powers, OPS["exp"], powers)
    isa.tensor_reduce(total, OPS["add"], powers, 2, keepdims=True)
    isa.reciprocal(total, total)
    out = _like(tile, dtype)
    isa.tensor_tensor(out.reshape(view.shape), powers, total.broadcast(2, inner), OPS["multiply"])
    return out


def rms_norm(
    x: Any, w: Any, axis: Any, n: int, epsilon: float = 1e-06, dtype: Any = None, compute_dtype: Any = None
) -> NkiTensor:
    """x / sqrt(sum(x^2) / n + epsilon) * w over the last axis."""
    tile = _tile(x, "rms_norm")
    kind = "float32" if compute_dtype is None else compute_dtype
    squares, total = ndarray(tile.shape, kind), ndarray((tile.shape[0], 1), "float32")
    isa.activation(squares, OPS["square"], tile)
    isa.tensor_reduce(total, OPS["add"], squares, axis)
    isa.tensor_scalar(total, total, OPS["multiply"], 1.0 / n, op1=OPS["add"], operand1=float(epsilon))
    isa.activation(total, OPS["rsqrt"], total)
    scaled = ndarray(tile.shape, kind)
    isa.tensor_scalar(scaled, tile, OPS["multiply"], total)
    out = _like(tile, dtype)
    weight = broadcast_to(w, tile.shape) if isinstance(w, NkiTensor) and w.shape != tile.shape else w
    isa.tensor_tensor(out, scaled, weight, OPS["multiply"])
    return out


def dropout(x: Any, rate: Any, dtype: Any = None) -> NkiTensor:
    """Elements are 0 with probability `rate`."""
    out = ndarray(_tile(x, "dropout").shape, x.dtype)
    isa.dropout(out, x, rate)
    if dtype is None:
        return out
    cast = _like(out, dtype)
    isa.tensor_copy(cast, out)
    return cast


def where(condition: Any, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """x where condition is not 0, else y."""
    tile = _tile(condition, "where")
    chosen = next((value for value in (x, y) if isinstance(value, NkiTensor)), tile)
    for value in (x, y):
        if isinstance(value, NkiTensor) and value.shape != tile.shape:
            raise KernelError(
                f"nl.where of shapes {list(tile.shape)} and {list(value.shape)}", code="S-NLBCAST", rule="equal shapes"
            )
    out = ndarray(tile.shape, chosen.dtype if dtype is None else dtype)
    vector_function(out, tile, "where", x, y)
    return out


@instruction
def broadcast_tile(core: Core, dst: NkiTensor, data: NkiTensor) -> None:
    """dst = data repeated over its size-1 dimensions, partitions included (a matmul with ones on the device)."""
    access.write(dst, np.broadcast_to(access.read(data), dst.shape).astype(dst.held().dtype))


def broadcast_to(x: Any, shape: Any, dtype: Any = None) -> NkiTensor:
    """x repeated to `shape`: equal rank, each dimension equal or 1; x itself where nothing changes."""
    tile, sizes = _tile(x, "broadcast_to"), checked_shape(shape)
    if sizes == tile.shape and dtype is None:
        return tile
    if len(sizes) != tile.ndim or any(a not in (1, b) for a, b in zip(tile.shape, sizes, strict=True)):
        raise KernelError(
            f"nl.broadcast_to from {list(tile.shape)} to {list(sizes)}",
            code="S-NLBCAST",
            rule="equal rank; sizes equal or 1",
        )
    out = ndarray(sizes, tile.dtype if dtype is None else dtype)
    broadcast_tile(out, tile)
    return out


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view with a size-1 dimension at `axis`."""
    if not isinstance(axis, int | np.integer):
        raise KernelError(f"nl.expand_dims(axis={axis!r})", code="NKI-OPERAND", rule="an int")
    return x.expand_dim(int(axis))


def gather_flattened(data: Any, indices: Any, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """out[p, j] = data[p, indices[p, j]] over flattened free dimensions."""
    out = ndarray(_tile(indices, "gather_flattened").shape, _tile(data, "gather_flattened").dtype)
    isa.nc_n_gather(out, data, indices)
    if dtype is None:
        return out
    cast = _like(out, dtype)
    isa.tensor_copy(cast, out)
    return cast


def matmul(x: Any, y: Any, transpose_x: bool = False) -> NkiTensor:
    """x.T @ y where transpose_x, else x @ y (which takes a transpose of x first); a float32 PSUM tile."""
    left = _tile(x, "matmul")
    if not transpose_x:
        turned = transpose(left)
        left = ndarray(turned.shape, x.dtype)
        isa.tensor_copy(left, turned)
    right = _tile(y, "matmul")
    out = ndarray((left.size // left.shape[0], right.size // right.shape[0]), "float32", buffer=MemoryRegion.psum)
    isa.nc_matmul(out, left, right)
    return out


def transpose(x: Any, dtype: Any = None) -> NkiTensor:
    """A 2-D tile with its dimensions swapped, in PSUM."""
    tile = _tile(x, "transpose")
    out = ndarray(tuple(reversed(tile.shape)), tile.dtype, buffer=MemoryRegion.psum)
    isa.nc_transpose(out, tile)
    if dtype is None:
        return out
    cast = ndarray(out.shape, dtype, buffer=MemoryRegion.psum)
    isa.tensor_copy(cast, out)
    return cast


def _install() -> None:
    for op in OPS.values():
        if op.kind in ("arith", "compare", "bit"):
            op.call = _binary(op)
        elif op.activation and op.name != "prelu":
            op.call = _activation(op)
    for name in ("divide", "mod", "fmod"):
        OPS[name].call = _absent(name)
    OPS["rsqrt"].call = _rsqrt
    OPS["reciprocal"].call = _reciprocal
    OPS["logical_not"].call = _logical_not
    OPS["invert"].call = _invert
    OPS["sin"].call = _vector("sin")
    OPS["max"].call = _reduction("max", "maximum")
    OPS["min"].call = _reduction("min", "minimum")
    for op in OPS.values():
        if op.call is not None:
            show(op, op.call)


_install()
cos, tan, ceil, floor, trunc = (_vector(name) for name in ("cos", "tan", "ceil", "floor", "trunc"))
sum_, prod = _reduction("sum", "add"), _reduction("prod", "multiply")
for _name, _function in (
    ("sum", sum_),
    ("prod", prod),
    ("all", all_),
    ("cos", cos),
    ("tan", tan),
    ("ceil", ceil),
    ("floor", floor),
    ("trunc", trunc),
):
    _function.__name__ = _function.__qualname__ = _name
    _function.__module__ = "nki.language"
_ = rows
