"""Rules of the element-by-element and reducing instructions alone."""

from __future__ import annotations

import numpy as np

from vibeserve.nki import dtypes as dt
from vibeserve.nki.isa.enums import reduce_cmd
from vibeserve.nki.ops import Op, is_bit, is_unary
from vibeserve.nki.rules import Call, _free, rule
from vibeserve.nki.special.dma import dma_casts
from vibeserve.nki.special.operands import _psum, _t
from vibeserve.nki.tensor import NkiTensor


def no_packed_cast(call: Call) -> None:
    dma_casts(call)


def memset_value(call: Call) -> None:
    dst, value = _t(call, "dst"), call.args["value"]
    if isinstance(value, bool | np.bool_):
        value = int(value)
    if not isinstance(value, int | float | np.number):
        call.fail(f"value={value!r}", code="NKI-OPERAND", rule="a number known when the kernel is built")
    if dst.dtype.kind == "packed":
        if value != 0:
            call.fail(f"value={value!r} into {dst.dtype}", code="B2-MEMSET-X4", rule="0 only")
        return
    if dst.dtype.is_int and isinstance(value, float | np.floating):
        call.fail(
            f"value={value!r} into {dst.dtype}",
            code="B2-MEMSET-TYPE",
            rule="a literal of the tile's kind",
            fix=f"value={int(value) if np.isfinite(value) else 0}",
        )


def tensor_tensor_engine(call: Call) -> str:
    op = call.args["op"]
    if isinstance(op, Op) and op.name == "power":
        return "gpsimd"
    integers = all(tensor.dtype.name in ("int32", "uint32") for tensor in call.tensors().values())
    bits = isinstance(op, Op) and is_bit(op)
    return "gpsimd" if integers and not bits and not _psum(call) else "vector"


def power_in_sbuf(call: Call) -> None:
    if call.args["op"].name == "power" and _psum(call):
        call.fail(
            "op=nl.power with a PSUM operand", code="S-GPS-PSUM", rule="power runs on gpsimd, which reaches SBUF only",
            fix="copy it into SBUF first with nisa.tensor_copy",
        )  # fmt: skip


def bits_on_vector(call: Call) -> None:
    for name in ("op", "op0", "op1"):
        op = call.args.get(name)
        if isinstance(op, Op) and is_bit(op) and call.engine != "vector":
            call.fail(
                f"{name}={op!r} on the {call.engine} engine",
                code="S-ENGINE",
                rule="bit operators run on the vector engine",
            )


def tensor_scalar_engine(call: Call) -> str:
    names = {op.name for op in (call.args["op0"], call.args["op1"]) if isinstance(op, Op)}
    if "rsqrt" in names:
        if _psum(call):
            call.fail(
                "nl.rsqrt with a PSUM operand",
                code="V5-RSQRT-PSUM",
                rule="rsqrt runs on gpsimd, which reaches SBUF only",
                fix="nisa.activation(op=nl.rsqrt)",
            )
        return "gpsimd"
    return "vector"


def scalar_stages(call: Call) -> None:
    op0, op1 = call.args["op0"], call.args["op1"]
    if op1 is not None and is_bit(op0) != is_bit(op1):
        call.fail(f"op0={op0!r} with op1={op1!r}", code="S-BITVEC", rule="both bit operators, or both arithmetic")
    if op1 is None and call.args["operand1"] is not None:
        call.fail("operand1 without op1", code="NKI-OPERAND", rule="both or neither")
    for op, name in ((op0, "operand0"), (op1, "operand1")):
        value = call.args[name]
        if op is None:
            continue
        if is_unary(op):
            if isinstance(value, NkiTensor) or (value is not None and value != 0):
                call.fail(f"{name}={value!r} with the unary {op!r}", code="NKI-OPERAND", rule="None or 0")
        elif value is None:
            call.fail(f"{op!r} without {name}", code="NKI-OPERAND", rule="a number or a [P, 1] tile")
        elif is_bit(op) and isinstance(value, float | np.floating):
            call.fail(f"{name}={value!r} with {op!r}", code="S-BITVEC", rule="an integer")


def scalar_operand_dtypes(call: Call) -> None:
    op0 = call.args["op0"]
    if isinstance(op0, Op) and is_bit(op0):
        return
    data = call.tensor("data")
    for name in ("operand0", "operand1"):
        tensor = call.tensor(name)
        if tensor is None or tensor.dtype is dt.float32:
            continue
        addresses = (
            tensor.dtype.name in ("int32", "uint32") and data is not None and data.dtype.name in ("int32", "uint32")
        )
        if not addresses:
            call.fail(
                f"{name} is {tensor.dtype}", code="S-SCALAROP", rule="a float32 [P, 1] tile (32-bit integers with 32-bit integer data)",
                fix="copy it into a float32 tile with nisa.tensor_copy",
            )  # fmt: skip


_SCALAR_PAIRS = {("multiply", "add"), ("multiply", None), ("add", None)}


def scalar_engine_pairs(call: Call) -> None:
    op0, op1 = call.args["op0"], call.args["op1"]
    pair = (op0.name, None if op1 is None else op1.name)
    if call.engine == "scalar" and pair not in _SCALAR_PAIRS:
        call.fail(f"operators {pair} on the scalar engine", code="S-ENGINE", rule="(multiply, add), (multiply), (add)")
    if call.engine == "gpsimd" and "rsqrt" not in pair and "power" not in pair:
        call.fail(
            f"operators {pair} on the gpsimd engine",
            code="S-ENGINE",
            rule="rsqrt only",
            fix="engine=nisa.engine.vector",
        )


def reduce_axes(call: Call) -> None:
    data, dst, axis = _t(call, "data"), _t(call, "dst"), call.args["axis"]
    given = [axis] if isinstance(axis, int) else axis
    if not isinstance(given, list | tuple) or not given or not all(isinstance(a, int) for a in given):
        call.fail(f"axis={axis!r}", code="B2-REDUCE-AXIS", rule="an int, or a list of ints")
    rank = data.ndim
    if any(not -rank <= a < rank for a in given):
        call.fail(f"axis={axis!r} for rank {rank}", code="B2-REDUCE-AXIS", rule="axes of data")
    axes = sorted(a % rank for a in given)
    if axes[0] == 0:
        call.fail(
            "axis 0, the partition dimension",
            code="B2-REDUCE-AXIS",
            rule="free axes only",
            fix="nisa.nc_matmul with ones, or nisa.tensor_partition_reduce",
        )
    if axes != list(range(rank - len(axes), rank)):
        call.fail(
            f"axis={axis!r} for rank {rank}",
            code="B2-REDUCE-AXIS",
            rule=f"a trailing run of axes, ending with {rank - 1}",
            fix="permute the view so that the reduced axes come last",
        )
    kept = int(np.prod(data.shape[1 : axes[0]], dtype=np.int64))
    if _free(dst) != kept:
        call.fail(
            f"dst has {_free(dst)} elements in a partition", code="S-ELEMENTS", rule=f"{kept}, the kept axes of data"
        )
    op = call.args["op"]
    if call.args["negate"] and is_bit(op):
        call.fail("negate with a bit operator", code="S-BITVEC", rule="arithmetic only")


def no_reverse0(call: Call) -> None:
    if call.args["reverse0"]:
        call.fail("reverse0=True", code="NKI-OPERAND", rule="not supported by this instruction")


@rule
def reduce_cmds(call: Call, argument: list[str]) -> None:
    """The accumulator commands of the instruction."""
    command = call.args["reduce_cmd"]
    if command.name not in argument:
        call.fail(f"reduce_cmd={command.name}", code="S-REDUCE-CMD", rule=f"one of {', '.join(argument)}")


@rule
def engine_rule(call: Call, argument: str) -> None:
    """Applied when the engine is chosen (see `rules._engine`)."""


def reduce_init_pair(call: Call) -> None:
    loads = call.args["reduce_cmd"] is reduce_cmd.load_reduce
    if loads != (call.args["reduce_init"] is not None):
        call.fail("reduce_init and reduce_cmd=load_reduce", code="S-REDUCE-CMD", rule="one needs the other")


def cumulative_start(call: Call) -> None:
    if call.args["reduce_cmd"] is reduce_cmd.load_reduce and call.args["imm1"] is None:
        call.fail("load_reduce without imm1", code="S-REDUCE-CMD", rule="imm1 is the start value")
