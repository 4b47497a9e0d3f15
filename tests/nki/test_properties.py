"""Every instruction with tile operands against an independent NumPy statement of its formula.

Shapes, dtypes, memories, layouts (strides, patterns, start partitions, run-time offsets, repeats, dst being a source)
and generations are drawn; see `operands`. A case returns the rows that NumPy makes of the rows that it drew.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from tests.nki.operands import (
    ANY,
    F32,
    FLOATS,
    HBM,
    ON_CHIP,
    PLAIN,
    SMALL_INTS,
    TARGETS,
    WIDE_INTS,
    Draw,
    cast,
    f,
    tf32,
)

import vibeserve.nki.collectives
import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki.instruction import REGISTRY

CASES: dict[str, tuple[Callable[[Draw], Any], int]] = {}
Case = Callable[[Draw], Any]
GROUPS = (16, 32, 64, 128)

BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": lambda a, b: f(a == b),
    "not_equal": lambda a, b: f(a != b),
    "less": lambda a, b: f(a < b),
    "less_equal": lambda a, b: f(a <= b),
    "greater": lambda a, b: f(a > b),
    "greater_equal": lambda a, b: f(a >= b),
    "logical_and": lambda a, b: f((a != 0) & (b != 0)),
    "logical_or": lambda a, b: f((a != 0) | (b != 0)),
    "logical_xor": lambda a, b: f((a != 0) != (b != 0)),
}
ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum")
LARGER = {
    "abs_max": lambda a, b: np.where(np.abs(a) > np.abs(b), a, b),
    "abs_min": lambda a, b: np.where(np.abs(a) < np.abs(b), a, b),
}
BITS: dict[str, Callable[..., Any]] = {
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
}
REDUCE: dict[str, Callable[..., Any]] = {
    "add": lambda a: a.astype(np.float64).sum(-1),
    "multiply": lambda a: a.astype(np.float64).prod(-1),
    "maximum": lambda a: a.max(-1),
    "minimum": lambda a: a.min(-1),
    "subtract": lambda a: 2.0 * a[..., 0] - a.astype(np.float64).sum(-1),
    "logical_and": lambda a: f((a != 0).all(-1)),
    "logical_or": lambda a: f((a != 0).any(-1)),
    "logical_xor": lambda a: f((a != 0).sum(-1) % 2),
}
COMPARE: dict[str, Callable[..., Any]] = {
    "equal": np.equal, "less": np.less, "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal,
}  # fmt: skip


def case(since: int = 2) -> Callable[[Case], Case]:
    """Register a case for the instruction that it is named after."""

    def register(body: Case) -> Case:
        CASES[body.__name__] = (body, since)
        return body

    return register


def binary(d: Draw) -> tuple[str, Callable[..., Any]]:
    table = BINARY | (LARGER if d.target == "trn3" else {})
    name = d.pick(table)
    return name, table[name]


def not_both_in_psum(d: Draw) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return d.pick([(ON_CHIP, ("sbuf",)), (("sbuf",), ON_CHIP)])


def scalar(d: Draw, role: str, **options: Any) -> tuple[Any, Any]:
    """A scalar operand: (what the call gets, what NumPy computes with): a number, or a [P, 1] tile under `role`."""
    if d.pick((True, False)):
        column = d.tile(role, ("float32",), free=1, layouts=("whole", "pattern", "columns"), **options)
        return None, column
    number = d.pick((0.0, 1.0, -2.5, 0.75, 3.0))
    return number, F32(number)


def given_scalars(**values: Any) -> dict[str, Any]:
    """The options for those scalar operands that are numbers; tiles are in the call already."""
    return {name: value for name, value in values.items() if value is not None}


def column(d: Draw, role: str, **options: Any) -> None:
    d.out(role, ("float32", "bfloat16"), free=1, layouts=("whole", "columns", "pattern"), **options)


# -- copies ------------------------------------------------------------------------------------------------------------


@case()
def tensor_copy(d: Draw) -> Any:
    engine = d.pick(["unknown", "vector", "gpsimd"] + (["scalar"] if d.target != "trn1" else []))
    spaces = ("sbuf",) if engine == "gpsimd" else ON_CHIP
    a = d.tile("src", spaces=spaces)
    d.out_or("dst", "src", ANY, spaces=spaces)
    kept = d.dtype("dst") is d.dtype("src")
    return {"dst": a if kept else cast(f(a), d.dtype("dst"))}, [{"engine": getattr(nisa.engine, engine)}]


@case()
def tensor_copy_predicated(d: Draw) -> Any:
    kind, reverse = d.pick(ANY), d.pick((False, True))
    left, right = not_both_in_psum(d)
    number = d.pick((None, None, 2.0, -1.5))
    chosen = d.tile("predicate", ("uint8", "uint16", "uint32"), spaces=right, values=zero_or_one)
    source = cast(np.full((1, 1), number, F32), getattr(nl, kind)) if number is not None else d.tile(
        "src", (kind,), spaces=left
    )  # fmt: skip
    old = d.out("dst", (kind,))
    return {"dst": np.where((chosen != 0) ^ reverse, source, old).astype(old.dtype)}, [
        {"reverse_pred": reverse, **given_scalars(src=number)}
    ]


def zero_or_one(rng: Any, shape: Any, dtype: Any) -> Any:
    return rng.integers(0, 2, shape).astype(dtype.dtype)


@case()
def memset(d: Draw) -> Any:
    engine = d.pick(("unknown", "vector", "gpsimd"))
    old = d.out("dst", spaces=("sbuf",) if engine == "gpsimd" else ON_CHIP)
    kind = d.dtype("dst")
    value = d.pick((0, 1, 7)) if kind.is_int else d.pick((0.0, 1.0, -2.5, -math.inf, 3))
    return {"dst": cast(np.full(old.shape, value, F32), kind)}, [
        {"value": value, "engine": getattr(nisa.engine, engine)}
    ]


@case()
def dma_copy(d: Draw) -> Any:
    parts, free = d.pick([(4, 6), (128, 3), (1, 24), (32, 8)])
    spaces = ("hbm", "sbuf")
    a = d.tile("src", parts=parts, free=free, spaces=("hbm",), layouts=HBM) if d.pick((True, False)) else d.tile(
        "src", parts=parts, free=free, spaces=("sbuf",)
    )  # fmt: skip
    other = d.pick([(parts, free), (free, parts), (1, parts * free)])
    where = d.pick(spaces)
    d.out(
        "dst",
        parts=other[0] if other[0] <= 128 else 1,
        free=other[1],
        spaces=(where,),
        layouts=HBM if where == "hbm" else PLAIN,
    )
    same = d.dtype("dst") is d.dtype("src")
    flat = a.reshape(other)
    return {"dst": flat if same else cast(f(flat), d.dtype("dst"))}, [{}]


@case()
def dma_transpose(d: Draw) -> Any:
    rows, columns = d.pick((1, 16, 33, 128)), d.pick((1, 8, 64))
    kind = d.pick(("bfloat16", "float16", "float32", "int32", "uint16"))
    where = d.pick(("hbm", "sbuf"))
    layouts = HBM if where == "hbm" else ("whole", "columns", "start", "pattern", "moved")
    a = d.tile("src", (kind,), parts=rows, free=columns, spaces=(where,), layouts=layouts)
    d.out("dst", (kind,), parts=columns, free=rows, spaces=("sbuf",), layouts=PLAIN)
    return {"dst": a.T}, [{"axes": d.pick((None, (1, 0)))}]


@case()
def dma_compute(d: Draw) -> Any:
    count = d.int(1, 4)
    parts, free = d.pick([(4, 6), (64, 3)])
    total: Any = 0
    for at in range(count):
        where = d.pick(("hbm", "sbuf"))
        total = total + f(
            d.tile(f"s{at}", parts=parts, free=free, spaces=(where,), layouts=HBM if where == "hbm" else PLAIN)
        )
    where = d.pick(("hbm", "sbuf"))
    d.out("dst", parts=parts, free=free, spaces=(where,), layouts=HBM if where == "hbm" else PLAIN)
    names = [f"s{at}" for at in range(count)]

    def listed(views: dict[str, Any]) -> list[Any]:
        return [views.pop(name) for name in names]

    return {"dst": total}, [{"srcs": listed, "reduce_op": nl.add, "scales": d.pick((None, [1.0] * count))}]


# -- element by element ------------------------------------------------------------------------------------------------


@case()
def tensor_tensor(d: Draw) -> Any:
    left, right = not_both_in_psum(d)
    if d.pick((True, True, False)):
        name, compute = binary(d)
        engine = d.pick(("unknown", "vector", "gpsimd"))
        if engine == "gpsimd":
            left = right = ("sbuf",)
        a, b = (
            d.tile("data1", (*FLOATS, *SMALL_INTS), spaces=left),
            d.tile("data2", (*FLOATS, *SMALL_INTS), spaces=right),
        )
        d.out_or("dst", "data1", ANY, spaces=left)
        return {"dst": compute(f(a), f(b))}, [{"op": getattr(nl, name), "engine": getattr(nisa.engine, engine)}]
    name, kind = d.pick(BITS), d.pick((*SMALL_INTS, *WIDE_INTS))
    a, b = d.tile("data1", (kind,), spaces=left), d.tile("data2", (kind,), spaces=right)
    d.out_or("dst", "data1", (kind,))
    return {"dst": BITS[name](a, b)}, [{"op": getattr(nl, name)}]


UNARY: dict[str, Callable[..., Any]] = {"abs": np.abs, "reciprocal": lambda a: F32(1) / a}


@case()
def tensor_scalar(d: Draw) -> Any:
    number = {"trn1": 2, "trn2": 3, "trn3": 4}[d.target]
    scalar_engine = number > 2 and d.pick((True, False, False))
    name, compute = d.pick([(n, BINARY[n]) for n in ("multiply", "add")]) if scalar_engine else binary(d)
    second = d.pick((None, "add")) if name == "multiply" or not scalar_engine else None
    reverse = d.pick((False, True))
    a = d.tile("data")
    operand, value = scalar(d, "operand0")
    options: dict[str, Any] = {"op0": getattr(nl, name), "reverse0": reverse, **given_scalars(operand0=operand)}
    result = compute(value, f(a)) if reverse else compute(f(a), value)
    if second:
        other, by = scalar(d, "operand1")
        again = d.pick((False, True))
        result = BINARY[second](by, f(result)) if again else BINARY[second](f(result), by)
        options |= {"op1": getattr(nl, second), "reverse1": again, **given_scalars(operand1=other)}
    d.out_or("dst", "data", ANY)
    if any(role in d.operands for role in ("operand0", "operand1")) and d.dtype("data").name in WIDE_INTS:
        d.rtol = 0.0
    options["engine"] = nisa.engine.scalar if scalar_engine else d.pick((nisa.engine.unknown, nisa.engine.vector))
    return {"dst": result}, [options]


@case()
def scalar_tensor_tensor(d: Draw) -> Any:
    left, right = not_both_in_psum(d)
    (first, compute0), (second, compute1) = binary(d), binary(d)
    turned = d.pick((False, True)), d.pick((False, True))
    a, b = d.tile("data", spaces=left), d.tile("operand1", spaces=right)
    number, value = scalar(d, "operand0")
    middle = f(compute0(value, f(a)) if turned[0] else compute0(f(a), value))
    d.out_or("dst", "data", ANY)
    return {"dst": compute1(f(b), middle) if turned[1] else compute1(middle, f(b))}, [
        {"op0": getattr(nl, first), "op1": getattr(nl, second), "reverse0": turned[0], "reverse1": turned[1],
         **given_scalars(operand0=number)}
    ]  # fmt: skip


@case()
def reciprocal(d: Draw) -> Any:
    a = d.tile("data")
    d.out_or("dst", "data", ANY)
    return {"dst": F32(1) / f(a)}, [{}]


# -- reductions and scans ----------------------------------------------------------------------------------------------


@case()
def tensor_reduce(d: Draw) -> Any:
    a = d.tile("data", (*FLOATS, *SMALL_INTS), layouts=("whole", "columns", "start", "split", "permuted", "pattern"))
    view = d.operands["data"].view.shape
    count = d.int(1, len(view) - 1)
    axes = list(range(len(view) - count, len(view)))
    kept = math.prod(view[1 : axes[0]])
    rows = a.reshape(view[0], kept, -1)
    name, negate = d.pick(REDUCE), d.pick((False, True))
    d.out("dst", (*FLOATS, "int16"), free=kept)
    d.rtol = 1e-5
    sign = -1 if negate else 1
    axis = d.pick([axes, tuple(axes), [at - len(view) for at in axes]] + ([axes[0], -1] if count == 1 else []))
    return {"dst": sign * REDUCE[name](f(rows))}, [
        {"op": getattr(nl, name), "axis": axis, "negate": negate, "keepdims": d.pick((False, True))}
    ]


@case()
def tensor_partition_reduce(d: Draw) -> Any:
    bits = d.pick((False, False, True))
    kind = d.pick(SMALL_INTS + WIDE_INTS if bits else FLOATS)
    a = d.tile("data", (kind,), spaces=("sbuf",))
    d.out("dst", (kind,) if bits else FLOATS, parts=1, spaces=("sbuf",))
    d.rtol = 0.0 if bits else 1e-5
    name = d.pick(("bitwise_or", "bitwise_and") if bits else ("add", "average", "maximum", "max"))
    compute = {
        "add": lambda x: f(x).astype(np.float64).sum(0),
        "average": lambda x: f(x).astype(np.float64).mean(0),
        "maximum": lambda x: f(x).max(0),
        "max": lambda x: f(x).max(0),
        "bitwise_or": lambda x: np.bitwise_or.reduce(x, axis=0),
        "bitwise_and": lambda x: np.bitwise_and.reduce(x, axis=0),
    }[name]
    return {"dst": compute(a)}, [{"op": getattr(nl, name)}]


@case()
def tensor_scalar_reduce(d: Draw) -> Any:
    a = d.tile("data", (*FLOATS, *SMALL_INTS), values=gentle)
    number, value = scalar(d, "operand0")
    name, reducer = d.pick(("add", "multiply", "subtract", "maximum")), d.pick(("add", "multiply", "maximum", "min"))
    rows = f(BINARY[name](f(a), value))
    reduced = REDUCE[{"min": "minimum"}.get(reducer, reducer)](rows)
    d.out("dst", FLOATS)
    column(d, "reduce_res")
    d.rtol = 2e-5
    base = {"op0": getattr(nl, name), "reduce_op": getattr(nl, reducer), **given_scalars(operand0=number)}
    command, negate = d.pick(("reset_reduce", "reduce", "load_reduce")), d.pick((False, True))
    both = REDUCE[{"min": "minimum"}.get(reducer, reducer)]
    match command:
        case "reset_reduce":
            calls, total = [base], reduced
        case "reduce":
            calls = [base, {**base, "reduce_cmd": nisa.reduce_cmd.reduce}]
            total = both(np.stack([reduced, reduced], axis=-1))
        case _:
            calls = [{**base, "reduce_cmd": nisa.reduce_cmd.load_reduce, "reduce_init": 1.5}]
            total = both(np.stack([np.full_like(reduced, 1.5), reduced], axis=-1))
    calls[-1] = {**calls[-1], "reduce_res_negate": negate}
    return {"dst": rows, "reduce_res": -total if negate else total}, calls


def gentle(rng: Any, shape: Any, dtype: Any) -> Any:
    """Numbers whose products over a row neither vanish nor grow."""
    return rng.choice(np.array([1, 2, 1 if dtype.kind == "uint" else -1, 1]), shape).astype(dtype.dtype)


@case()
def tensor_scalar_cumulative(d: Draw) -> Any:
    a = d.tile("src", (*FLOATS[:5], *SMALL_INTS), values=gentle)
    number, value = scalar(d, "imm0")
    name, running = d.pick(ARITHMETIC), d.pick(ARITHMETIC)
    rows = f(BINARY[name](f(a), value)).astype(np.float64)
    d.out("dst", (*FLOATS, *SMALL_INTS))
    d.rtol = 2e-5
    base = {"op0": getattr(nl, name), "op1": getattr(nl, running), **given_scalars(imm0=number)}
    command = d.pick(("reset_reduce", "reduce", "load_reduce"))
    begin = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -np.inf, "minimum": np.inf}[running]
    state = np.full(rows.shape[0], 1.5 if command == "load_reduce" else begin)
    calls = [base]
    if command == "load_reduce":
        calls = [{**base, "imm1": 1.5, "reduce_cmd": nisa.reduce_cmd.load_reduce}]
    elif command == "reduce":
        calls = [base, {**base, "reduce_cmd": nisa.reduce_cmd.reduce}]
    out = rows.copy()
    for _ in calls:
        for at in range(rows.shape[1]):
            state = BINARY[running](rows[:, at], state)
            out[:, at] = state
    return {"dst": out}, calls


@case()
def tensor_tensor_scan(d: Draw) -> Any:
    left, right = not_both_in_psum(d)
    a, b = d.tile("data0", FLOATS, spaces=left, values=gentle), d.tile("data1", FLOATS, spaces=right, values=gentle)
    number, value = scalar(d, "initial")
    (first, second), turned = (d.pick(ARITHMETIC), d.pick(ARITHMETIC)), (d.pick((False, True)), d.pick((False, True)))
    state = np.broadcast_to(np.asarray(value, np.float64).reshape(-1), (a.shape[0],))
    out = np.empty(a.shape, np.float64)
    for at in range(a.shape[1]):
        x, y = f(a[:, at]).astype(np.float64), f(b[:, at]).astype(np.float64)
        middle = BINARY[first](state, x) if turned[0] else BINARY[first](x, state)
        state = out[:, at] = BINARY[second](y, middle) if turned[1] else BINARY[second](middle, y)
    d.out_or("dst", "data0", FLOATS)
    d.rtol = 1e-4
    return {"dst": out}, [
        {"op0": getattr(nl, first), "op1": getattr(nl, second), "reverse0": turned[0], "reverse1": turned[1],
         **given_scalars(initial=number)}
    ]  # fmt: skip


@case()
def bn_stats(d: Draw) -> Any:
    a = d.tile("data", FLOATS, free=d.pick((2, 3, 16, 41)))
    rows = f(a).astype(np.float64)
    halves = [rows[:, half::2] for half in (0, 1)]
    parts = [[np.full(len(rows), h.shape[1]), h.mean(1), h.var(1) * h.shape[1]] for h in halves]
    d.out("dst", ("float32",), free=6)
    d.rtol = 1e-4
    return {"dst": np.stack([*parts[0], *parts[1]], axis=1)}, [{}]


@case()
def bn_aggr(d: Draw) -> Any:
    groups = d.int(1, 4)
    a = d.tile("data", ("float32",), free=3 * groups, values=triples)
    count, mean, spread = np.moveaxis(f(a).astype(np.float64).reshape(len(a), groups, 3), -1, 0)
    total = count.sum(1)
    middle = (count * mean).sum(1) / total
    variance = (spread + count * mean**2).sum(1) / total - middle**2
    d.out("dst", ("float32", "bfloat16"), free=2, layouts=PLAIN)
    d.rtol = 1e-4
    return {"dst": np.stack([middle, variance], axis=1)}, [{}]


def triples(rng: Any, shape: Any, dtype: Any) -> Any:
    """Positive numbers: counts, means and spreads in any order of the storage."""
    return (rng.integers(1, 9, shape) + 0.25).astype(dtype.dtype)


# -- the scalar engine -------------------------------------------------------------------------------------------------

PHI = math.sqrt(2 / math.pi)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "sigmoid": special.expit,
    "relu": lambda x: np.where(x > 0, x, 0),
    "gelu": lambda x: x * special.ndtr(x),
    "gelu_dx": lambda x: special.ndtr(x) + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: x * special.expit(2 * PHI * (x + 0.044715 * x**3)),
    "gelu_apprx_sigmoid": lambda x: x * special.expit(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: special.expit(1.702 * x) * (1 + 1.702 * x * special.expit(-1.702 * x)),
    "silu": lambda x: x * special.expit(x),
    "silu_dx": lambda x: special.expit(x) * (1 + x * special.expit(-x)),
    "tanh": np.tanh,
    "softplus": lambda x: -special.log_expit(-x),
    "mish": lambda x: x * np.tanh(-special.log_expit(-x)),
    "erf": special.erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-(x**2)),
    "exp": np.exp,
    "sign": np.sign,
    "abs": np.abs,
    "log": np.log,
    "sin": np.sin,
    "arctan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1 / x,
}
POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal")


def small(rng: Any, shape: Any, dtype: Any) -> Any:
    """Numbers between -1.5 and 1.5 (-1 and 1 for integers)."""
    if dtype.is_int:
        return rng.integers(max(-1, np.iinfo(dtype.dtype).min), 2, shape).astype(dtype.dtype)
    return cast(rng.uniform(-1.5, 1.5, shape), dtype)


def positive(rng: Any, shape: Any, dtype: Any) -> Any:
    """Numbers from 1 to 9."""
    return cast(rng.uniform(1, 9, shape), dtype)


def function(d: Draw) -> tuple[str, np.ndarray]:
    name = d.pick(FUNCTIONS)
    kinds = (*FLOATS, *SMALL_INTS, *WIDE_INTS)
    return name, d.tile("data", kinds, values=positive if name in POSITIVE else small)


def scaled(d: Draw, name: str, a: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """data * scale + bias in float64, and the options that say so."""
    options: dict[str, Any] = {}
    values = f(a).astype(np.float64)
    if d.pick((True, False)):
        options["scale"] = d.pick((0.5, 1.0))
        values = values * options["scale"]
    else:
        values = values * d.tile("scale", ("float32",), free=1, layouts=("whole", "columns"), values=halves)
    if name == "reciprocal" and d.target == "trn1":
        return values, options
    if d.pick((True, False)):
        bias = d.tile("bias", ("float32", "bfloat16", "int8"), free=1, layouts=("whole", "columns"), values=ones)
        values = values + f(bias)
    elif d.target != "trn1" and d.pick((True, False)):
        options["bias"] = 0.5
        values = values + 0.5
    return values, options


def halves(rng: Any, shape: Any, dtype: Any) -> Any:
    return rng.choice(np.array([0.5, 1.0]), shape).astype(dtype.dtype)


def ones(rng: Any, shape: Any, dtype: Any) -> Any:
    return rng.integers(0, 2, shape).astype(dtype.dtype)


@case()
def activation(d: Draw) -> Any:
    name, a = function(d)
    values, options = scaled(d, name, a)
    result = FUNCTIONS[name](values)
    options["op"] = getattr(nl, name)
    d.rtol = 2e-5
    wanted = {"dst": result}
    calls = [options]
    if d.pick((True, False)):
        options |= {"reduce_op": nl.add}
        first = {**options, "reduce_cmd": nisa.reduce_cmd.reset_reduce}
        calls = [first, {**options, "reduce_cmd": nisa.reduce_cmd.reduce}] if d.pick((True, False)) else [first]
        column(d, "reduce_res")
        wanted["reduce_res"] = len(calls) * result.sum(1)
    d.out("dst", FLOATS)
    return wanted, calls


@case()
def activation_reduce(d: Draw) -> Any:
    name, a = function(d)
    values, options = scaled(d, name, a)
    result = FUNCTIONS[name](values)
    d.out("dst", FLOATS)
    column(d, "reduce_res")
    d.rtol = 2e-5
    return {"dst": result, "reduce_res": result.sum(1)}, [{**options, "op": getattr(nl, name), "reduce_op": nl.add}]


@case(since=4)
def activate2(d: Draw) -> Any:
    name, a = function(d)
    stages = [("multiply", "add"), ("multiply", "bypass"), ("add", "bypass"), ("bypass", "bypass")]
    op0, op1 = d.pick(stages)
    values = f(a).astype(np.float64)
    imm0, imm1 = d.pick((0.5, 1.0)), d.pick((0.25, 1.0))
    for op, by in ((op0, imm0), (op1, imm1)):
        values = values if op == "bypass" else BINARY[op](values, by)
    if name in ("sin", "arctan"):
        values = np.clip(values, -1.5, 1.5)
    result = FUNCTIONS[name](values)
    options = {"op": getattr(nl, name), "imm0": imm0, "imm1": imm1, "op0": getattr(nl, op0), "op1": getattr(nl, op1)}
    reducer = d.pick(("add", "maximum", "minimum"))
    options |= {"reduce_op": getattr(nl, reducer), "reduce_cmd": nisa.reduce_cmd.reset_reduce}
    d.out("dst", FLOATS)
    column(d, "reduce_res")
    d.rtol = 2e-5
    if name in ("sin", "arctan") and (op0, op1) != ("bypass", "bypass"):
        options |= {"op0": nl.bypass, "op1": nl.bypass}
        result = FUNCTIONS[name](f(a).astype(np.float64))
    return {"dst": result, "reduce_res": REDUCE[reducer](result)}, [options]


@case(since=4)
def exponential(d: Draw) -> Any:
    a = d.tile("src", (*FLOATS[:5], *SMALL_INTS, *WIDE_INTS), values=small)
    number, value = scalar(d, "max_value")
    result = np.exp(f(a).astype(np.float64) - value)
    base = given_scalars(max_value=number)
    command = d.pick(("reset_reduce", "reduce", "load_reduce"))
    calls: list[dict[str, Any]] = [{**base, "reduce_cmd": nisa.reduce_cmd.reset_reduce}]
    start = 0.0
    if command == "reduce":
        calls.append({**base, "reduce_cmd": nisa.reduce_cmd.reduce})
    elif command == "load_reduce":
        start, calls = 2.5, [{**base, "reduce_cmd": nisa.reduce_cmd.load_reduce, "reduce_init": 2.5}]
    d.out("dst", (*FLOATS, "int16"))
    column(d, "reduce_res")
    d.rtol = 2e-5
    return {"dst": result, "reduce_res": start + len(calls) * result.sum(1)}, calls


# -- patterns and selection --------------------------------------------------------------------------------------------


def line(d: Draw, shape: tuple[int, int]) -> tuple[np.ndarray, dict[str, Any]]:
    """[P, N] affine values, and the options that say so."""
    outer = next(n for n in (4, 3, 2, 5, 7, 1) if shape[1] % n == 0)
    steps, offset, multiplier = (d.int(-5, 5), d.int(-5, 5)), d.int(-40, 40), d.int(-3, 3)
    p, i, j = np.ogrid[: shape[0], :outer, : shape[1] // outer]
    values = (offset + multiplier * p + steps[0] * i + steps[1] * j).reshape(shape)
    return values, {
        "pattern": [[steps[0], outer], [steps[1], shape[1] // outer]], "channel_multiplier": multiplier,
        "offset": offset if d.pick((True, False)) else lambda views: nisa.register_alloc(offset),
    }  # fmt: skip


@case()
def iota(d: Draw) -> Any:
    old = d.out("dst", spaces=("sbuf",))
    values, options = line(d, old.shape)
    return {"dst": cast(values.astype(np.float64), d.dtype("dst"))}, [options]


@case()
def affine_select(d: Draw) -> Any:
    a = d.tile("on_true_tile", spaces=("sbuf",))
    values, options = line(d, a.shape)
    d.out_or("dst", "on_true_tile", ANY, spaces=("sbuf",))
    kind, name = d.dtype("dst"), d.pick((*COMPARE, "not_equal"))
    fill = d.pick((0.0, -7.0, 1))
    kept = a if kind is d.dtype("on_true_tile") else cast(f(a), kind)
    chosen = getattr(np, name)(values, 0)
    return {"dst": np.where(chosen, kept, cast(np.array([[fill]], F32), kind)).astype(kind.dtype)}, [
        {**options, "cmp_op": getattr(nl, name), "on_false_value": fill}
    ]


@case(since=3)
def range_select(d: Draw) -> Any:
    a = d.tile("on_true_tile", FLOATS)
    bounds = [d.tile(role, ("float32",), free=1, layouts=("whole", "columns"), values=places) for role in
              ("bound0", "bound1")]  # fmt: skip
    names, start = (d.pick(COMPARE), d.pick(COMPARE)), d.pick((0, 3))
    at = start + np.arange(a.shape[1])
    chosen = COMPARE[names[0]](at, bounds[0]) & COMPARE[names[1]](at, bounds[1])
    result = np.where(chosen, f(a), np.finfo(F32).min)
    d.out("dst", FLOATS)
    column(d, "reduce_res")
    base = {"comp_op0": getattr(nl, names[0]), "comp_op1": getattr(nl, names[1]), "range_start": start}
    return {"dst": result, "reduce_res": result.max(1)}, [base]


def places(rng: Any, shape: Any, dtype: Any) -> Any:
    return rng.integers(0, 12, shape).astype(dtype.dtype)


@case()
def select_reduce(d: Draw) -> Any:
    left, right = not_both_in_psum(d)
    reverse = d.pick((False, True))
    mask = d.tile("predicate", SMALL_INTS, spaces=left, values=zero_or_one)
    a = d.tile("on_true", (*FLOATS[:5], *SMALL_INTS), spaces=right)
    number, value = scalar(d, "on_false")
    result = np.where((mask != 0) ^ reverse, f(a), value)
    d.out("dst", FLOATS)
    column(d, "reduce_res")
    command = nisa.reduce_cmd.reset_reduce
    return {"dst": result, "reduce_res": result.max(1)}, [
        {"reverse_pred": reverse, "reduce_cmd": command, **given_scalars(on_false=number)}
    ]


@case()
def sequence_bounds(d: Draw) -> Any:
    kind, count = d.pick(("float32", "int32")), d.int(1, 40)
    ids = d.tile("segment_ids", (kind,), parts=1, free=count, spaces=("sbuf",), values=segments)[0]
    d.out("dst", (d.pick(("float32", "int32")),), parts=1, free=2 * count, spaces=("sbuf",), layouts=PLAIN)
    first = [next(s for s in range(i, -1, -1) if s == 0 or ids[s - 1] != ids[i]) for i in range(count)]
    after = [next(e for e in range(i + 1, count + 1) if e == count or ids[e] != ids[i]) for i in range(count)]
    low = np.where(ids == 0, count, first)
    high = np.where(ids == 0, -1, after)
    return {"dst": np.concatenate([low, high])[None].astype(np.float64)}, [{}]


def segments(rng: Any, shape: Any, dtype: Any) -> Any:
    return np.repeat(rng.integers(0, 4, math.prod(shape)), 2)[: math.prod(shape)].reshape(shape).astype(dtype.dtype)


@case()
def local_gather(d: Draw) -> Any:
    parts, each = d.pick(GROUPS), d.pick((1, 2, 4, 8))
    kind = d.pick(ANY)
    source = d.tile("src_buffer", (kind,), parts=parts, free=24, spaces=("sbuf",))
    index = d.tile("index", ("uint16",), parts=parts, free=d.pick((1, 2)), spaces=("sbuf",), layouts=PLAIN,
                   values=lambda rng, shape, dtype: rng.integers(0, 25 - each, shape).astype(dtype.dtype))  # fmt: skip
    count = d.pick((index.shape[1] * 16, 5))
    d.out("dst", (kind,), parts=parts, free=count * each, spaces=("sbuf",), layouts=PLAIN)
    out = np.empty((parts, count * each), source.dtype)
    for p in range(parts):
        group = p // 16 * 16
        for j in range(count):
            begin = int(index[group + j % 16, j // 16])
            out[p, j * each : (j + 1) * each] = source[p, begin : begin + each]
    return {"dst": out}, [{"num_elem_per_idx": each, "num_valid_indices": count}]


@case()
def nc_n_gather(d: Draw) -> Any:
    kind, wide = d.pick(ANY), d.pick((6, 12))
    a = d.tile("data", (kind,), free=wide, spaces=("sbuf",))
    at = d.tile("indices", ("uint32",), spaces=("sbuf",),
                values=lambda rng, shape, dtype: rng.integers(0, wide, shape).astype(dtype.dtype))  # fmt: skip
    d.out("dst", (kind,), spaces=("sbuf",))
    return {"dst": np.stack([row[places] for row, places in zip(a, at.astype(int), strict=True)])}, [{}]


@case()
def max8(d: Draw) -> Any:
    a = d.tile("src", (*FLOATS, *SMALL_INTS), free=d.pick((8, 12, 40)))
    d.out("dst", FLOATS, free=8, layouts=PLAIN)
    return {"dst": np.array([sorted(map(float, row), reverse=True)[:8] for row in f(a)])}, [{}]


def few(rng: Any, shape: Any, dtype: Any) -> Any:
    """Numbers that occur often."""
    return rng.integers(0, 6, shape).astype(dtype.dtype)


@case()
def nc_find_index8(d: Draw) -> Any:
    a = d.tile("data", (*FLOATS, *SMALL_INTS), free=d.pick((8, 15, 24)), values=few)
    wanted = d.tile("vals", FLOATS, free=8, layouts=PLAIN, values=few)
    kind = d.pick(("uint16", "uint32"))
    d.out("dst", (kind,), free=8, layouts=PLAIN)
    out = np.full((len(a), 8), np.iinfo(kind).max, kind)
    for p, row in enumerate(f(a)):
        for k in range(8):
            earlier = int((f(wanted[p, :k]) == f(wanted[p, k : k + 1])).sum())
            hits = np.flatnonzero(row == F32(wanted[p, k]))
            if earlier < len(hits):
                out[p, k] = hits[earlier]
    return {"dst": out}, [{}]


@case()
def nc_match_replace8(d: Draw) -> Any:
    a = d.tile("data", (*FLOATS, *SMALL_INTS), free=d.pick((8, 15, 24)), values=few)
    wanted = d.tile("vals", FLOATS, free=8, layouts=PLAIN, values=few)
    d.out_or("dst", "data", (d.dtype("data").name,), free=a.shape[1])
    d.out("dst_idx", ("uint32",), free=8, layouts=PLAIN)
    out, where = a.copy(), np.full((len(a), 8), 0xFFFFFFFF, np.uint32)
    for p, row in enumerate(f(a)):
        left = list(row)
        for k in range(7, -1, -1):
            value = float(F32(wanted[p, k]))
            if value in left:
                where[p, k] = left.index(value)
                left[where[p, k]] = None
                out[p, where[p, k]] = 9
    return {"dst": out, "dst_idx": where}, [{"imm": 9.0}]


@case()
def nc_stream_shuffle(d: Draw) -> Any:
    parts, kind = d.pick((32, 64, 128)), d.pick(ANY)
    a = d.tile("src", (kind,), parts=parts)
    old = d.out_or("dst", "src", (kind,), parts=parts)
    mask = [d.pick((0, 3, 17, 31, 255)) for _ in range(32)]
    out = old.copy()
    for p in range(parts):
        if mask[p % 32] != 255:
            out[p] = a[p // 32 * 32 + mask[p % 32]]
    return {"dst": out}, [{"shuffle_mask": mask}]


@case(since=3)
def nonzero_with_count(d: Draw) -> Any:
    parts, shift, fill = d.pick((16, 33, 128)), d.pick((0, 5)), d.pick((-1, 7))
    a = d.tile("src", ("float32", "int32"), parts=parts, spaces=("sbuf",), values=zero_or_one)
    old = d.out("dst", ("int32",), parts=parts, free=d.free + 1, spaces=("sbuf",))
    out = old.copy()
    for p in range(0, parts, 16):
        found = [i + shift for i, value in enumerate(f(a[p])) if value]
        out[p] = [*found, *[fill] * (d.free - len(found)), len(found)]
    return {"dst": out}, [{"index_offset": shift, "padding_val": fill}]


@case(since=3)
def topk(d: Draw) -> Any:
    parts, wide = d.pick(GROUPS), d.pick((1, 3))
    n = d.int(8, 16 * wide)
    count = d.int(1, n)
    a = d.tile("src", ("bfloat16",), parts=parts, free=wide, spaces=("sbuf",), layouts=PLAIN, values=distinct)
    for role, kind in (("val_dst", "bfloat16"), ("idx_dst", "uint32")):
        d.out(role, (kind,), parts=parts, free=count, spaces=("sbuf",), layouts=PLAIN)
    best, where = np.empty((parts, count), F32), np.empty((parts, count), np.uint32)
    for p in range(parts):
        group = p // 16 * 16
        snake = [(float(a[group + e % 16, e // 16]), e) for e in range(n)]
        top = sorted(sorted(snake, key=lambda pair: -pair[0])[:count])
        best[p], where[p] = [value for value, _ in top], [e for _, e in top]
    return {"val_dst": best, "idx_dst": where}, [{"n": n}]


def distinct(rng: Any, shape: Any, dtype: Any) -> Any:
    """Numbers that differ within each group of 16 partitions (128 of them are exact in bfloat16)."""
    rows = shape[0] // 16
    blocks = [rng.permutation(256)[: 16 * math.prod(shape[1:])].reshape(16, *shape[1:]) for _ in range(rows)]
    return np.concatenate(blocks).astype(dtype.dtype)


# -- the tensor engine -------------------------------------------------------------------------------------------------


def operand(values: np.ndarray, kind: Any) -> np.ndarray:
    return (tf32(values) if kind.name == "tfloat32" else f(values)).astype(np.float64)


@case()
def nc_matmul(d: Draw) -> Any:
    k, m, n = d.pick((1, 17, 32, 64, 128)), d.pick((1, 8, 33)), d.pick((1, 6, 24))
    wide = d.pick((True, False))
    kinds = ("float32", "tfloat32") if wide else ("bfloat16", "float16", "float8_e4m3", "float8_e5m2")
    left = d.tile("stationary", kinds, parts=k, free=m, spaces=("sbuf",))
    right = d.tile("moving", kinds, parts=k, free=n, spaces=("sbuf",))
    out = d.pick(("float32", "bfloat16")) if d.target == "trn3" else "float32"
    old = d.out("dst", (out,), parts=m, free=n, spaces=("psum",))
    product = operand(left, d.dtype("stationary")).T @ operand(right, d.dtype("moving"))
    flags = d.pick([(None,), (None, None), (False,), (None, False), (False, True), (None, None, None)])
    total = np.zeros_like(old, np.float64)
    for at, flag in enumerate(flags):
        total = product if flag is False or at == 0 else total + product
    d.rtol = 1e-4 if out == "float32" else 2e-2
    return {"dst": total}, [{} if flag is None else {"accumulate": flag} for flag in flags]


@case()
def nc_transpose(d: Draw) -> Any:
    on_tensor = d.pick((True, False))
    parts, free = (d.pick((1, 33, 128)), d.pick((1, 8, 60))) if on_tensor else (d.pick((1, 32)), d.pick((2, 32)))
    kinds = ("float32", "bfloat16", "float16", *(("int32", "uint16") if d.target != "trn1" or not on_tensor else ()))
    kind = d.pick(kinds)
    a = d.tile("data", (kind,), parts=parts, free=free, spaces=("sbuf",))
    spaces = ("psum",) if on_tensor else ("sbuf",)
    d.out("dst", (kind,), parts=free, free=parts, spaces=spaces)
    engine = nisa.engine.tensor if on_tensor else nisa.engine.vector
    return {"dst": a.T}, [{"engine": d.pick((engine, nisa.engine.unknown))}]


@case(since=4)
def quantize_mx(d: Draw) -> Any:
    parts, free = d.pick((32, 64, 128)), d.pick((4, 8, 24))
    kind = d.pick(("float8_e4m3fn_x4", "float8_e5m2_x4"))
    a = d.tile("src", ("bfloat16", "float16"), parts=parts, free=free, spaces=("sbuf",), layouts=PLAIN[:2])
    d.out("dst", (kind,), parts=parts, free=free // 4, spaces=("sbuf",), layouts=("whole",))
    old = d.out("dst_scale", ("uint8",), parts=parts, free=free // 4, spaces=("sbuf",), layouts=("whole",))
    groups = np.abs(f(a)).reshape(parts // 8, 8, free // 4, 4).max((1, 3))
    largest = 8 if "e4m3" in kind else 15
    with np.errstate(divide="ignore"):
        power = np.where(groups == 0, -127, np.floor(np.log2(groups)) - (largest - 1))
    quotient = f(a).reshape(parts, free // 4, 4) / 2.0 ** np.repeat(power, 8, axis=0)[:, :, None]
    small_float = nl.float8_e4m3fn if "e4m3" in kind else nl.float8_e5m2
    lanes = cast(quotient.astype(F32), small_float).view(np.uint8).astype(np.uint64)
    packed = (lanes << np.array([0, 8, 16, 24], np.uint64)).sum(-1).astype(np.uint32)
    scale = old.copy()
    for group in range(parts // 8):
        row = 32 * (group // 4) + group % 4 if parts > 32 else group
        scale[row] = power[group] + 127
    return {"dst": packed, "dst_scale": scale}, [{}]


# -- the tests ---------------------------------------------------------------------------------------------------------

ELSEWHERE = {
    "sendrecv": "test_state_properties.test_sendrecv_swaps_the_tiles_of_two_cores",
    "core_barrier": "test_state_properties.test_a_barrier_lets_each_core_read_what_the_other_wrote",
    "register_load": "test_state_properties.test_registers_hold_one_element",
    "register_store": "test_state_properties.test_registers_hold_one_element",
    "rng": "test_state_properties.test_rng_draws_the_words_of_the_state_that_was_set",
    "rand_set_state": "test_state_properties.test_rng_draws_the_words_of_the_state_that_was_set",
    "rand_get_state": "test_state_properties.test_rng_draws_the_words_of_the_state_that_was_set",
    "set_rng_seed": "test_state_properties.test_a_seed_tells_the_stream_wherever_it_lies",
    "rand2": "test_state_properties.test_rand2_moves_uniform_numbers_between_its_bounds",
    "dropout": "test_state_properties.test_dropout_keeps_or_clears",
    "nc_matmul_mx": "test_state_properties.test_nc_matmul_mx",
    "vector_function": "test_state_properties.test_vector_function",
    "broadcast_tile": "test_state_properties.test_broadcast_tile",
}


@pytest.mark.parametrize("name", list(CASES))
@settings(max_examples=25)
@given(data=st.data())
def test_formula(name: str, data: Any) -> None:
    body, since = CASES[name]
    targets = [target for number, target in TARGETS.items() if number >= since]
    d = Draw(data, data.draw(st.sampled_from(targets)))
    with np.errstate(all="ignore"):
        wanted, calls = body(d)
    d.check(d.run(name, calls), wanted)


def test_every_instruction_has_a_case_here_or_a_test_that_is_named() -> None:
    collectives = {name for name in REGISTRY if hasattr(vibeserve.nki.collectives, name)}
    assert set(REGISTRY) - collectives == set(CASES) | set(ELSEWHERE)
    assert not set(CASES) & set(ELSEWHERE)
    for where in ELSEWHERE.values():
        module, _, test = where.partition(".")
        assert callable(getattr(importlib.import_module(f"tests.nki.{module}"), test))
