"""The rules on operands: a small vocabulary, applied to an instruction by its entry in the data files.

Each rule is a function `rule(call, argument)`, called with what the entry holds under the rule's name. What only one
instruction needs is in `special`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from vibeserve.nki.context import core_or_none
from vibeserve.nki.dtypes import FP8, X4, DType
from vibeserve.nki.errors import KernelError
from vibeserve.nki.instruction import Spec
from vibeserve.nki.isa import enums as isa_enums
from vibeserve.nki.ops import Op, is_bit
from vibeserve.nki.targets import Target
from vibeserve.nki.tensor import NkiTensor

MAX_PARTITIONS = 128
MAX_FREE_DIMS = 4
MAX_FREE_SBUF = 65536
RULES: dict[str, Callable[[Call, Any], None]] = {}
_FACTS = {
    "reads",
    "writes",
    "engines",
    "engine_since",
    "default_engine",
    "since",
    "dma",
    "scalars",
    "optional",
    "lists",
    "main",
    "control",
    "indirect",
    "no_tensor",
    "sparse",
    "packed",
}


class Call:
    """One instruction as called: its spec, target and arguments by name."""

    def __init__(self, spec: Spec, target: Target, args: tuple[Any, ...]):
        self.spec = spec
        self.target = target
        self.args = dict(zip(spec.params, args, strict=True))
        self.entry = spec.entry
        self.engine = ""

    def tensor(self, name: str) -> NkiTensor | None:
        """The operand called `name`, where it is a tensor."""
        value = self.args.get(name)
        return value if isinstance(value, NkiTensor) else None

    def tensors(self) -> dict[str, NkiTensor]:
        """All tensor operands by name, those in lists as name[i]."""
        found = {}
        for name, value in self.args.items():
            if isinstance(value, NkiTensor):
                found[name] = value
            elif isinstance(value, list | tuple):
                found |= {f"{name}[{i}]": item for i, item in enumerate(value) if isinstance(item, NkiTensor)}
        return found

    def allows(self, code: str) -> bool:
        """Whether a rule is let pass in this launch (NKI_ALLOW)."""
        core = core_or_none()
        return core is not None and code in core.session.allowed

    def main(self) -> NkiTensor | None:
        """The operand that the others are measured against."""
        return self.tensor(self.entry.get("main") or self.spec.params[self.spec.reads[0] if self.spec.reads else 0])

    def fail(self, message: str, *, code: str = "NKI-RULE", rule: str = "", fix: str = "") -> NoReturn:
        """Refuse the call."""
        given = ", ".join(
            f"{name}={value!r}"
            for name, value in self.args.items()
            if not _is_default(value, self.spec.defaults.get(name, _NEVER))
        )
        raise KernelError(f"nisa.{self.spec.name}: {message}", code=code, rule=rule, fix=fix, operands=given)


_NEVER = object()


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and not isinstance(value, np.ndarray) and value == default)


def rule(function: Callable[[Call, Any], None]) -> Callable[[Call, Any], None]:
    """Put a rule into the vocabulary under its name."""
    RULES[function.__name__] = function
    return function


def check(spec: Spec, target: Target, args: tuple[Any, ...]) -> str:
    """Apply every rule to a call; returns the engine that executes it. KernelError for the first rule broken."""
    from vibeserve.nki import special  # noqa: F401  (fills RULES)

    call = Call(spec, target, args)
    entry = spec.entry
    since = entry.get("since", 2)
    if target.number < since:
        names = {3: "trn2", 4: "trn3"}
        call.fail(
            f"not available on {target.name}",
            code="S-GENERATION",
            rule=f"{names[since]} and later",
            fix=f"run for a later target: NEURON_PLATFORM_TARGET_OVERRIDE={names[since]}",
        )
    _operand_kinds(call)
    call.engine = _engine(call)
    for name, tensor in call.tensors().items():
        _operand(call, name, tensor)
    for name, argument in entry.items():
        if name not in _FACTS:
            RULES[name](call, argument)
    return call.engine


def _operand_kinds(call: Call) -> None:
    entry = call.entry
    scalars, optional, lists = entry.get("scalars", ()), entry.get("optional", ()), entry.get("lists", ())
    for at in (*call.spec.reads, *call.spec.writes):
        name = call.spec.params[at]
        value = call.args[name]
        if isinstance(value, NkiTensor) or (value is None and name in optional) or name in lists:
            continue
        if name in scalars and (value is None or isinstance(value, int | float | np.generic)):
            continue
        if isinstance(value, np.ndarray):
            call.fail(
                f"{name} is a NumPy array",
                code="L-LIB",
                rule="operands are tensors",
                fix="pass it to the kernel as an argument",
            )
        code, rule = entry.get("no_tensor", {}).get(name, ("NKI-OPERAND", f"{name} is a tensor"))
        call.fail(
            f"{name} is {_what(value)}",
            code="B1-RESULT" if type(value).__name__ == "NkiInstruction" else code,
            rule=rule + (" or a number" if name in scalars else ""),
        )


def _what(value: Any) -> str:
    if type(value).__name__ == "NkiInstruction":
        return "the handle that an instruction returned"
    return "missing" if value is None else f"{type(value).__name__} {value!r}"


def _engine(call: Call) -> str:
    allowed = call.entry["engines"]
    chosen = call.args.get("engine")
    if chosen is None or chosen is isa_enums.engine.unknown or "engines_free" in call.entry:
        from vibeserve.nki import special

        named = call.entry.get("engine_rule")
        return special.named(named)(call) if named else allowed[0]
    if not isinstance(chosen, isa_enums.engine):
        call.fail(f"engine={chosen!r}", code="B2-INT-ENUM", rule="a member of nisa.engine", fix="nisa.engine.vector")
    since = call.entry.get("engine_since", {}).get(chosen.name, 2)
    if chosen.name not in allowed:
        call.fail(f"engine {chosen.name}", code="S-ENGINE", rule=f"one of {', '.join(allowed)}")
    if call.target.number < since:
        call.fail(
            f"engine {chosen.name} on {call.target.name}", code="S-ENGINE", rule=f"the {chosen.name} engine does this from v{since} on",
            fix="leave engine out, or nisa.activation(op=nl.copy)" if chosen.name == "scalar" else "leave engine out",
        )  # fmt: skip
    return chosen.name


def _operand(call: Call, name: str, tensor: NkiTensor) -> None:
    if tensor.lanes is not None:
        from vibeserve.nki.special.operands import lanes

        lanes(call, name, tensor)
    if tensor.dtype.kind == "packed" and "packed" not in call.entry:
        call.fail(
            f"{name} is {tensor.dtype}", code="S-DTYPE", rule="packed types are copied and multiplied (nc_matmul_mx), never computed with",
            fix="tensor.view(nl.uint32) for its bits; nisa.quantize_mx makes packed values",
        )  # fmt: skip
    if not tensor.buffer.on_chip:
        return
    parts = tensor.shape[0]
    if parts > MAX_PARTITIONS:
        call.fail(
            f"{call.spec.name} {name} partition dimension {parts} exceeds maximum {MAX_PARTITIONS}",
            code="V6-PARTITION",
            rule="an on-chip operand has at most 128 partitions",
            fix="tile dimension 0 by nl.tile_size.pmax",
        )
    if call.entry.get("dma"):
        return
    if call.engine == "gpsimd" and tensor.buffer.value == "psum":
        call.fail(
            f"{name} is in PSUM on the gpsimd engine", code="S-GPS-PSUM", rule="the gpsimd engine reaches SBUF only",
            fix="copy it into SBUF first with nisa.tensor_copy",
        )  # fmt: skip
    start = tensor.start_partition()
    legal = (0,) if parts > 64 else (0, 64) if parts > 32 else (0, 32, 64, 96)
    if start not in legal and not call.entry.get("any_start") and not call.allows("S-PSTART"):
        call.fail(
            f"{name} starts at partition {start} with {parts} partitions",
            code="S-PSTART",
            rule=f"{parts} partitions start at {' or '.join(map(str, legal))}",
            fix="move the rows with nisa.nc_stream_shuffle or a DMA",
        )
    _free_pattern(call, name, tensor)


def _free_pattern(call: Call, name: str, tensor: NkiTensor) -> None:
    dims: list[tuple[int, int]] = []
    for size, stride in zip(tensor.shape[1:], tensor.strides[1:], strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == stride * size:
            dims[-1] = (dims[-1][0] * size, stride)
        else:
            dims.append((size, stride))
    if len(dims) > MAX_FREE_DIMS:
        call.fail(
            f"{name} has {len(dims)} free dimensions",
            code="NCC_INLA001",
            rule=f"at most {MAX_FREE_DIMS}, contiguous ones merged",
        )
    free = tensor.size // tensor.shape[0]
    limit = MAX_FREE_SBUF if tensor.buffer.value == "sbuf" else 16384 // tensor.dtype.itemsize
    if free > limit:
        call.fail(
            f"{name} has {free} elements in a partition",
            code="S-FREE-64K",
            rule=f"at most {limit} in {tensor.buffer.value}",
        )


# -- the vocabulary --------------------------------------------------------------------------------------------------


@rule
def spaces(call: Call, argument: dict[str, list[str]]) -> None:
    """Where an operand may live ("hbm" is private or shared)."""
    for name, allowed in argument.items():
        value = call.args.get(name)
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if not isinstance(tensor, NkiTensor):
                continue
            where = tensor.buffer.value
            if where not in allowed and not ("hbm" in allowed and where.endswith("hbm")):
                fix = "copy it into SBUF first with nisa.tensor_copy" if where == "psum" else ""
                if where.endswith("hbm"):
                    fix = "load it with nisa.dma_copy"
                code = "B2-PSUM-DMA" if call.entry.get("dma") and where == "psum" else "S-SPACE"
                call.fail(f"{name} is in {where}", code=code, rule=f"{name} is in {' or '.join(allowed)}", fix=fix)


def _free(tensor: NkiTensor) -> int:
    return tensor.size // tensor.shape[0]


def _named(call: Call, names: list[str]) -> list[tuple[str, NkiTensor]]:
    return [(name, tensor) for name in names if (tensor := call.tensor(name)) is not None]


@rule
def same_partitions(call: Call, argument: list[str]) -> None:
    """The operands have equally many partitions."""
    found = _named(call, argument)
    for name, tensor in found[1:]:
        if tensor.shape[0] != found[0][1].shape[0]:
            call.fail(
                f"{found[0][0]} has {found[0][1].shape[0]} partitions and {name} {tensor.shape[0]}", code="S-PARTITIONS",
                rule="equal partition counts; no broadcast over partitions",
            )  # fmt: skip


@rule
def same_elements(call: Call, argument: list[str]) -> None:
    """The operands have equally many elements in each partition."""
    found = _named(call, argument)
    for name, tensor in found[1:]:
        if _free(tensor) != _free(found[0][1]):
            call.fail(
                f"{found[0][0]} has {_free(found[0][1])} elements in a partition and {name} {_free(tensor)}", code="S-ELEMENTS",
                rule="equal element counts; a size-1 dimension is repeated with .broadcast(dim, size)",
            )  # fmt: skip


@rule
def same_dtype(call: Call, argument: list[str]) -> None:
    """The operands have one dtype."""
    found = _named(call, argument)
    for name, tensor in found[1:]:
        if tensor.dtype is not found[0][1].dtype:
            call.fail(
                f"{found[0][0]} is {found[0][1].dtype} and {name} {tensor.dtype}", code="S-DTYPE", rule="equal dtypes"
            )


@rule
def not_both_psum(call: Call, argument: list[str]) -> None:
    """At most one of the two inputs of a vector instruction is in PSUM."""
    found = _named(call, argument)
    if len(found) > 1 and all(t.buffer.value == "psum" for _, t in found) and not call.allows("S-BOTH-PSUM"):
        names = " and ".join(name for name, _ in found)
        call.fail(
            f"{names} are both in PSUM",
            code="S-BOTH-PSUM",
            rule="one input in PSUM at most",
            fix="copy one into SBUF first",
        )


@rule
def column(call: Call, argument: list[str]) -> None:
    """A tile operand that is broadcast along the free dimensions is [P, 1]."""
    main = call.main()
    for name, tensor in _named(call, argument):
        if _free(tensor) != 1 or (main is not None and tensor.shape[0] != main.shape[0]):
            parts = main.shape[0] if main is not None else "P"
            call.fail(
                f"{name} has shape {list(tensor.shape)}", code="B2-BIASSHAPE" if name == "bias" else "S-SCALAROP",
                rule=f"one element for each of the {parts} partitions: [{parts}, 1]",
            )  # fmt: skip


@rule
def dtypes(call: Call, argument: dict[str, list[str]]) -> None:
    """The dtypes that an operand may have: names, or the groups float, int (both signs), fp8, x4, four_bytes."""
    for name, allowed in argument.items():
        tensor = call.tensor(name)
        if tensor is not None and not any(in_group(tensor.dtype, group) for group in allowed):
            call.fail(f"{name} is {tensor.dtype}", code="S-DTYPE", rule=f"{name} is one of {', '.join(allowed)}")


def in_group(dtype: DType, group: str) -> bool:
    """Whether a dtype is called `group` or belongs to it."""
    match group:
        case "float":
            return dtype.is_float
        case "int":
            return dtype.is_int
        case "fp8":
            return dtype in FP8
        case "x4":
            return dtype in X4
        case "four_bytes":
            return dtype.itemsize == 4
        case "two_bytes":
            return dtype.itemsize == 2
    return dtype.name == group


@rule
def limits(call: Call, argument: dict[str, dict[str, int]]) -> None:
    """Sizes of an operand: free, min_free, max_free, partitions, multiple_partitions, multiple_free, rank, max_rank."""
    for name, bounds in argument.items():
        tensor = call.tensor(name)
        if tensor is None:
            continue
        free, parts = _free(tensor), tensor.shape[0]
        tests = {
            "free": lambda n, free=free: free == n,
            "min_free": lambda n, free=free: free >= n,
            "max_free": lambda n, free=free: free <= n,
            "partitions": lambda n, parts=parts: parts == n,
            "multiple_partitions": lambda n, parts=parts: parts % n == 0,
            "multiple_free": lambda n, free=free: free % n == 0,
            "rank": lambda n, rank=tensor.ndim: rank == n,
            "max_rank": lambda n, rank=tensor.ndim: rank <= n,
        }
        for what, bound in bounds.items():
            if not tests[what](bound):
                call.fail(
                    f"{name} has shape {list(tensor.shape)}", code="S-SIZE", rule=f"{what.replace('_', ' ')} {bound}"
                )


@rule
def ops(call: Call, argument: dict[str, list[str]]) -> None:
    """The operators that a parameter may be: kinds (arith, compare, bit, unary, reduction, activation) or names."""
    for name, allowed in argument.items():
        value = call.args.get(name)
        if value is None and name in call.entry.get("optional", ()):
            continue
        op = _as_op(call, name, value)
        if not any(_op_in(op, group) for group in allowed):
            _bad_op(call, name, op, allowed)
        if op.since > call.target.number and "activation" not in allowed:
            call.fail(f"{name}={op!r} on {call.target.name}", code="S-GENERATION", rule="trn3 and later")


def _as_op(call: Call, name: str, value: Any) -> Op:
    if isinstance(value, Op):
        return value
    module = getattr(value, "__module__", "") or type(value).__module__
    if isinstance(value, np.ufunc) or str(module).startswith("numpy"):
        short = getattr(value, "__name__", "add")
        call.fail(
            f"{name}={short} is NumPy's",
            code="B1-NUMPY",
            rule="operators are those of nki.language",
            fix=f"{name}=nl.{short}",
        )
    call.fail(f"{name}={value!r}", code="NKI-OPERATOR", rule="an operator of nki.language", fix=f"{name}=nl.add")


def _op_in(op: Op, group: str) -> bool:
    match group:
        case "arith":
            return op.kind in ("arith", "compare")
        case "reduction":
            return op.reducible
        case "activation":
            return op.activation
    return group in (op.kind, op.name)


def _bad_op(call: Call, name: str, op: Op, allowed: list[str]) -> NoReturn:
    if op.name in ("max", "min"):
        call.fail(
            f"{name}={op!r}",
            code="B1-NL-MAX-OP",
            rule="nl.max and nl.min are reductions",
            fix=f"{name}=nl.{op.name}imum",
        )
    if op.kind == "absent":
        call.fail(
            f"{name}={op!r}", code="S-NLDIV", rule="there is no such hardware operator",
            fix="multiply by nisa.reciprocal of the divisor",
        )  # fmt: skip
    code = "S-BITVEC" if is_bit(op) else "S-ACT-OP" if "activation" in allowed else "S-OP"
    call.fail(f"{name}={op!r}", code=code, rule=f"{name} is one of {', '.join(allowed)}")


@rule
def bits_on_integers(call: Call, argument: dict[str, list[str]]) -> None:
    """With a bit operator, these operands have integer dtypes: {op parameter: operands}."""
    for name, operands in argument.items():
        op = call.args.get(name)
        if not isinstance(op, Op) or not is_bit(op):
            continue
        for operand, tensor in _named(call, operands):
            if tensor.dtype.is_float:
                call.fail(
                    f"{operand} is {tensor.dtype} with {op!r}", code="S-BITVEC", rule="bit operators work on integer dtypes",
                    fix=".view(nl.uint32) reads the bits of a float32 tile",
                )  # fmt: skip


@rule
def enums(call: Call, argument: dict[str, str]) -> None:
    """Parameters that are members of an enumeration of nki.isa."""
    from vibeserve.nki.isa import enums as known

    for name, kind in argument.items():
        value = call.args.get(name)
        if not isinstance(value, getattr(known, kind)):
            members = ", ".join(member.name for member in getattr(known, kind))
            call.fail(
                f"{name}={value!r}",
                code="B2-INT-ENUM",
                rule=f"a member of nisa.{kind}: {members}",
                fix=f"nisa.{kind}.{members.split(', ')[0]}",
            )


def _special(call: Call, argument: list[str] | str) -> None:
    from vibeserve.nki import special as module

    for name in [argument] if isinstance(argument, str) else argument:
        module.named(name)(call)


RULES["special"] = _special


@rule
def any_start(call: Call, argument: bool) -> None:
    """The instruction has its own rule on start partitions."""


@rule
def engines_free(call: Call, argument: bool) -> None:
    """The engine parameter says who waits, not who computes."""
