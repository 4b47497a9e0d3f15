"""Operators: one object serves as `op=nl.add` of an instruction and as the function `nl.add(x, y)`.

ALU operators compute on float32 arrays, bit operators on unsigned integers; activation functions are in `activations`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from vibeserve.nki.errors import KernelError

f32 = np.float32


class Op:
    """An operator or activation function.

    `kind` is "arith", "compare", "bit", "unary", "bit-unary" or "none"; `alu` computes it on float32 (or unsigned
    integer) arrays; `activation` names the function of the scalar engine; `identity` is what a reduction starts from;
    `since` the first generation that has it as an ALU operator.
    """

    __slots__ = (
        "__dict__", "activation", "alu", "call", "identity", "kind", "name", "reducible", "since", "ufunc",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: str,
        alu: Callable[..., Any] | None = None,
        *,
        identity: float | None = None,
        reducible: bool = False,
        ufunc: Any = None,
        since: int = 2,
        activation: bool = False,
    ):
        self.name = name
        self.kind = kind
        self.alu = alu
        self.identity = identity
        self.reducible = reducible
        self.ufunc = ufunc
        self.since = since
        self.activation = activation
        self.call: Callable[..., Any] | None = None
        self.__name__ = name
        self.__qualname__ = name
        self.__module__ = "nki.language"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.call is None:
            raise KernelError(f"nl.{self.name} is an op specifier, not a function", fix=f"op=nl.{self.name}")
        return self.call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __reduce__(self) -> Any:
        return (op_by_name, (self.name,))

    def __copy__(self) -> Op:
        return self

    def __deepcopy__(self, memo: Any) -> Op:
        return self


def show(op: Op, function: Callable[..., Any]) -> None:
    """Make `function` what calling `op` does, and its signature and text what a reader of `op` sees."""
    op.call = function
    function.__qualname__ = op.name  # what Python's own errors about arguments call it
    op.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    op.__doc__ = function.__doc__


def _truth(values: Any) -> Any:
    return values != 0


def _abs_max(x: Any, y: Any) -> Any:
    return np.where(np.abs(x) > np.abs(y), x, y)


def _abs_min(x: Any, y: Any) -> Any:
    return np.where(np.abs(x) < np.abs(y), x, y)


def _shift(left: bool) -> Callable[[Any, Any], Any]:
    def shift(x: Any, y: Any) -> Any:
        x, y = np.asarray(x), np.asarray(y)
        bits = x.dtype.itemsize * 8
        count = y.astype(x.dtype)
        inside = count < bits
        safe = np.where(inside, count, 0).astype(x.dtype)
        return np.where(inside, np.left_shift(x, safe) if left else np.right_shift(x, safe), 0).astype(x.dtype)

    return shift


def _power(x: Any, y: Any) -> Any:
    if np.result_type(x, y).kind == "f":
        return np.power(x, y)
    with np.errstate(all="ignore"):  # integers: a negative exponent leaves the whole part of the fraction
        whole = np.power(x, np.maximum(y, 0))
        return np.where(y >= 0, whole, np.trunc(np.nan_to_num(np.power(x, y, dtype=np.float64), posinf=0, neginf=0)))


def _relu(x: Any) -> Any:
    return np.maximum(x, f32(0))


_INF = float("inf")

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        Op("add", "arith", np.add, identity=0.0, reducible=True, ufunc=np.add),
        Op("subtract", "arith", np.subtract, identity=0.0, reducible=True, ufunc=np.subtract),
        Op("multiply", "arith", np.multiply, identity=1.0, reducible=True, ufunc=np.multiply),
        Op("maximum", "arith", np.maximum, identity=-_INF, reducible=True, ufunc=np.maximum),
        Op("minimum", "arith", np.minimum, identity=_INF, reducible=True, ufunc=np.minimum),
        Op("abs_max", "arith", _abs_max, identity=0.0, since=4),
        Op("abs_min", "arith", _abs_min, identity=_INF, since=4),
        Op("power", "arith", _power),
        Op("equal", "compare", np.equal),
        Op("not_equal", "compare", np.not_equal),
        Op("less", "compare", np.less),
        Op("less_equal", "compare", np.less_equal),
        Op("greater", "compare", np.greater),
        Op("greater_equal", "compare", np.greater_equal),
        Op("logical_and", "arith", lambda x, y: _truth(x) & _truth(y), reducible=True, ufunc=np.logical_and),
        Op("logical_or", "arith", lambda x, y: _truth(x) | _truth(y), reducible=True, ufunc=np.logical_or),
        Op("logical_xor", "arith", lambda x, y: _truth(x) ^ _truth(y), reducible=True, ufunc=np.logical_xor),
        Op("bitwise_and", "bit", np.bitwise_and, reducible=True, ufunc=np.bitwise_and),
        Op("bitwise_or", "bit", np.bitwise_or, reducible=True, ufunc=np.bitwise_or),
        Op("bitwise_xor", "bit", np.bitwise_xor, reducible=True, ufunc=np.bitwise_xor),
        Op("left_shift", "bit", _shift(True)),
        Op("right_shift", "bit", _shift(False)),
        Op("invert", "bit-unary", np.invert),
        Op("abs", "unary", np.abs, activation=True),
        Op("square", "unary", np.square, since=4, activation=True),
        Op("relu", "unary", _relu, since=4, activation=True),
        Op("rsqrt", "unary", lambda x: f32(1) / np.sqrt(x), activation=True),
        Op("reciprocal", "unary", lambda x: f32(1) / x, activation=True),
        Op("logical_not", "unary", lambda x: x == 0),
        Op("bypass", "none"),
        Op("average", "none"),
        Op("divide", "absent", np.divide),
        Op("mod", "absent", np.mod),
        Op("fmod", "absent", np.fmod),
        Op("max", "absent"),
        Op("min", "absent"),
    )
}
for _name in (
    "copy", "sigmoid", "prelu", "gelu", "gelu_dx", "gelu_apprx_tanh", "gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx",
    "silu", "silu_dx", "tanh", "softplus", "mish", "erf", "erf_dx", "exp", "log", "sin", "arctan", "sqrt", "sign",
):  # fmt: skip
    OPS[_name] = Op(_name, "activation", activation=True)


def op_by_name(name: str) -> Op:
    """The operator called `name`."""
    return OPS[name]


def apply(op: Op, x: Any, y: Any) -> Any:
    """A binary ALU operator; comparisons and logic give 1.0 or 0.0 as float32."""
    assert op.alu is not None
    result = op.alu(x, y)
    return result if result.dtype != np.bool_ else result.astype(np.float32)


def apply_unary(op: Op, x: Any) -> Any:
    """A unary ALU operator."""
    assert op.alu is not None
    result = op.alu(x)
    return result if result.dtype != np.bool_ else result.astype(np.float32)


def is_unary(op: Op) -> bool:
    """Whether an ALU operator takes one operand."""
    return op.kind in ("unary", "bit-unary")


def is_bit(op: Op) -> bool:
    """Whether an operator works on raw integer bits."""
    return op.kind in ("bit", "bit-unary")


def unsigned(values: np.ndarray) -> np.ndarray:
    """The same bits as unsigned integers of the same size."""
    if values.dtype.kind == "u":
        return values
    return values.view(np.dtype(f"u{values.dtype.itemsize}"))
