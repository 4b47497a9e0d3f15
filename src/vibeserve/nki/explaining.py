"""What an error of Python inside of a kernel means: a rule that the kernel broke, or a fault of the simulator.

An error that the kernel's own code raises is left as it is. One that comes out of the language's functions is the
kernel's where an argument is not of a kind that its parameter takes (`data/kinds.toml`), and a `SimulatorFaultError`
where all are.
"""

from __future__ import annotations

import enum
import functools
import inspect
import linecache
import re
import sys
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from vibeserve.base.errors import VibeServeError
from vibeserve.nki.dtypes import DType, resolve
from vibeserve.nki.errors import NOWHERE, KernelError, Place, SimulatorFaultError, is_ours, place_of_traceback
from vibeserve.nki.ops import Op
from vibeserve.nki.registers import VirtualRegister
from vibeserve.nki.tensor import NkiTensor
from vibeserve.nki.views import DynamicSlice

_BINDING = re.compile(
    r"^(?:\w+\.)*(\w+)\(\) (?:got an unexpected keyword argument '(\w+)'|(?:missing|takes|got multiple).*)"
)
# What Python says of an operator, a conversion or a function of math that is handed a tensor.
_ON_VALUES = re.compile(
    r"unsupported operand|bad operand type|not supported between|real number|interpreted as an integer|"
    r"unsupported format string|doesn't define __|does not support ufuncs"
)
_BENEATH = {"numpy", "ml_dtypes", *sys.stdlib_module_names}  # libraries that the simulator calls
_SAID_ON_PURPOSE = ("objects.py", "dtypes.py")  # their TypeErrors are written for the kernel's author


def explain(error: Exception) -> Exception | None:
    """What to raise in place of `error`; None where it is to pass as it is."""
    if isinstance(error, MemoryError):
        return KernelError(
            f"this machine's memory does not hold the kernel's tensors: {error}", code="NCC_EOOM001",
            fix="smaller inputs, or fewer tensors alive at once", place=place_of_traceback(error.__traceback__),
        )  # fmt: skip
    if isinstance(error, VibeServeError | AttributeError | ImportError) and not _inside(error):
        return None
    if isinstance(error, TypeError):
        misused = _misused(error)
        if misused is not None:
            return misused
    found = _inside(error)
    return None if found is None else _judge(error, found)


class _Inside(NamedTuple):
    """Where an error came out of the simulator: the kernel's line, the function that it called, the innermost of ours."""

    place: Place
    called: FrameType
    innermost: FrameType


def _inside(error: Exception) -> _Inside | None:
    frames = []
    lines = []
    at = error.__traceback__
    while at is not None:
        frames.append(at.tb_frame)
        lines.append(at.tb_lineno)
        at = at.tb_next
    while frames and (frames[-1].f_globals.get("__name__") or "").partition(".")[0] in _BENEATH:
        frames.pop()
    if not frames or not is_ours(frames[-1].f_code.co_filename) or frames[-1].f_code.co_name == "__getattr__":
        return None
    if isinstance(error, AttributeError | ImportError) and Path(frames[-1].f_code.co_filename).parent.name == "shim":
        return None  # a name of the vendor's modules that is not there
    first = len(frames) - 1
    while first and is_ours(frames[first - 1].f_code.co_filename):
        first -= 1
    if frames[first].f_code.co_name == "_guarded":  # the call of the kernel itself failed
        return None
    place = NOWHERE
    if first:
        outer = frames[first - 1].f_code
        place = Place(outer.co_filename, lines[first - 1], outer.co_name)
    while isinstance(frames[first].f_locals.get("self"), Op) and first + 1 < len(frames):
        first += 1
    return _Inside(place, frames[first], frames[-1])


def _judge(error: Exception, found: _Inside) -> Exception:
    place, called, innermost = found
    code = called.f_code
    name = f"nisa.{code.co_name}" if code.co_filename.startswith("<nki ") else code.co_name
    given = {
        parameter: called.f_locals[parameter]
        for parameter in code.co_varnames[: code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)]
        if parameter in called.f_locals and parameter != "self"
    }
    text = ", ".join(f"{parameter}={value!r}" for parameter, value in given.items())
    on_purpose = (
        isinstance(error, TypeError | OverflowError | ValueError)
        and Path(innermost.f_code.co_filename).name in _SAID_ON_PURPOSE
    )
    if on_purpose or _calls_back(error, given):
        return KernelError(
            f"{name}: {error}", code="NKI-OPERAND", rule="arguments of the kinds that the function documents",
            operands=text, place=place,
        )  # fmt: skip
    for parameter, value in given.items():
        wanted = _refused(parameter, value, given)
        if wanted:
            return KernelError(
                f"{name}: {parameter} is {type(value).__name__} {value!r}", code="NKI-OPERAND",
                rule=f"{parameter} is {wanted}", operands=text, place=place,
            )  # fmt: skip
    return SimulatorFaultError(name, error, operands=text, place=place)


def _calls_back(error: Exception, given: dict[str, Any]) -> bool:
    """Whether a function that was handed in does not take the arguments that it is called with."""
    names = [getattr(value, "__qualname__", None) for value in given.values() if callable(value)]
    return isinstance(error, TypeError) and any(name and str(error).startswith(f"{name}()") for name in names)


# -- kinds -----------------------------------------------------------------------------------------------------------


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.generic)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "tensor": ("a tensor", lambda v: isinstance(v, NkiTensor)),
    "scalar": ("a number or a tensor", lambda v: _is_number(v) or isinstance(v, NkiTensor)),
    "number": ("a number", _is_number),
    "int": ("an int", _is_int),
    "moving": ("an int, a register or a tensor", lambda v: _is_int(v) or isinstance(v, VirtualRegister | NkiTensor)),
    "ints": ("an int or a tuple of ints", lambda v: _is_int(v) or (_is_list(v) and all(map(_is_int, _flat(v))))),
    "pair": ("a pair of ints", lambda v: _is_list(v) and len(v) == 2 and all(map(_is_int, v))),
    "pairs": (
        "a list of pairs of ints",
        lambda v: _is_list(v) and all(_is_list(p) and len(p) == 2 and all(map(_is_int, p)) for p in v),
    ),
    "flag": ("a bool", lambda v: isinstance(v, bool | int | np.bool_)),
    "text": ("a string", lambda v: isinstance(v, str)),
    "op": ("an operator such as nl.add", lambda v: isinstance(v, Op)),
    "member": ("a member of its enum", lambda v: isinstance(v, enum.Enum)),
    "function": ("a function", callable),
    "list": ("a list", _is_list),
    "dtype": ("an NKI dtype", lambda v: resolve(v, strict=False) is not None),
}
_VALUES = (
    type(None), bool, int, float, str, tuple, list, dict, np.generic, NkiTensor, VirtualRegister, DynamicSlice, Op, DType,
    enum.Enum, slice, type(Ellipsis),
)  # fmt: skip


def _flat(value: Any) -> list[Any]:
    """The items, where a single one may itself be a sequence."""
    return list(value[0]) if len(value) == 1 and _is_list(value[0]) else list(value)


@functools.cache
def _table() -> dict[str, str]:
    """Parameter to kind."""
    text = (Path(__file__).parent / "data" / "kinds.toml").read_text(encoding="utf-8")
    return {parameter: kind for kind, parameters in tomllib.loads(text).items() for parameter in parameters}


def _refused(parameter: str, value: Any, given: dict[str, Any]) -> str:
    """What `parameter` takes, where `value` is not that; else an empty string."""
    kind = _table().get(parameter)
    if parameter == "x" and "y" in given:
        kind = "scalar"
    if value is None and (kind is None or parameter not in _NEEDED):
        return ""
    if kind is None:
        return "" if isinstance(value, _VALUES) or callable(value) else "a value of the language"
    text, fits = _KINDS[kind]
    return "" if fits(value) else text


_NEEDED = {
    "dst", "src", "data", "x", "shape", "dtype", "stationary", "moving", "dim", "size", "body_fun", "start_dim", "end_dim",
    "axis", "src_pattern", "dst_pattern",
}  # fmt: skip


def _misused(error: TypeError) -> KernelError | None:
    from vibeserve.nki.instruction import REGISTRY

    place = place_of_traceback(error.__traceback__)
    text = str(error)
    if "NkiTensor" in text and _ON_VALUES.search(text):
        return KernelError(
            f"Python arithmetic on a tensor: {text}", code="L-LIB",
            rule="tensors are computed with by instructions; Python does not know their values",
            fix="nisa.tensor_tensor / nisa.tensor_scalar / nisa.activation, or nl.add(x, y), nl.exp(x), nl.greater(x, y)",
            place=place,
        )  # fmt: skip
    found = _BINDING.match(text)
    if text.startswith("NkiTensor.") and found is not None:
        parameters = ", ".join(list(inspect.signature(getattr(NkiTensor, found[1])).parameters)[1:])
        return KernelError(
            f"tensor{text[len('NkiTensor') :]}", code="B2-UNKNOWN-KW", rule=f"the parameters are {found[1]}({parameters})",
            place=place,
        )  # fmt: skip
    from vibeserve.nki import isa, language

    if found is None or not (found[1] in REGISTRY or found[1] in vars(language) or found[1] in vars(isa)):
        return None
    if _is_the_kernels(error, found[1]):
        return None
    if found[1] not in REGISTRY and found[1] not in vars(isa):
        masked = found[2] == "mask"
        return KernelError(
            f"nl.{text}", code="B1-MASK" if masked else "B2-UNKNOWN-KW", rule=f"the parameters of nl.{found[1]}", place=place,
            fix="slice the operands: slice(start, min(end, n))" if masked else "",
        )  # fmt: skip
    removed = {
        "pred": ("B1-AFFINE-PRED", "pattern=, channel_multiplier=, offset= and cmp_op="),
        "mask": ("B1-MASK", "slice the operands: slice(start, min(end, n))"),
        "dtype": ("B1-DTYPE-KW", "the output's dtype is that of dst"),
        "psumAccumulateFlag": ("B1-PSUMFLAG", "accumulate="),
        "is_moving_zero": ("B1-MOVING-ZERO", "is_moving_onezero="),
        "dst_rmw_op": ("B2-RMW", "nisa.dma_compute(dst, srcs, reduce_op)"),
        "unique_indices": ("B2-UNIQUE", "the same argument of nisa.dma_compute"),
        "use_gpsimd_dma": ("B2-SENDRECV-BOOL", "dma_engine=nisa.dma_engine.gpsimd_dma"),
        "imm": ("B2-REGMOVE-IMM", "register_move(dst, src)"),
        "num_channels": ("B2-CHANNELS", "channel_ids=[0, 1, ...]"),
        "shape": ("B1-MEMSET-SHAPE", "nisa.memset(dst=..., value=...)"),
    }
    code, fix = removed.get(found[2] or "", ("B2-UNKNOWN-KW", ""))
    if "'dst'" in text:
        code, fix = "B1-DST-FIRST", "allocate dst and pass it first"
    elif "missing" in text and found[1] in REGISTRY and REGISTRY[found[1]].params[0] == "dst":
        fix = "dst comes first: a call without it lacks its last argument"
    known = REGISTRY[found[1]].params if found[1] in REGISTRY else inspect.signature(vars(isa)[found[1]]).parameters
    signature = f"{found[1]}({', '.join(known)})"
    return KernelError(f"nisa.{text}", code=code, rule=f"the parameters are {signature}", fix=fix, place=place)


def _is_the_kernels(error: TypeError, name: str) -> bool:
    """Whether `name`, called with wrong arguments, is a function of the kernel's own that happens to be called so."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    frame = last.tb_frame
    found = frame.f_locals.get(name, frame.f_globals.get(name))
    code = getattr(found, "__code__", None)
    if code is None or is_ours(code.co_filename):
        return False
    call = traceback.extract_tb(last)[-1]
    written = linecache.getline(call.filename, call.lineno or 0)[call.colno or 0 :]
    return written.startswith(name) or not written  # not "nl.name(...)"
