"""Rules of the activation family alone."""

from __future__ import annotations

from vibeserve.nki import dtypes as dt
from vibeserve.nki.isa.enums import reduce_cmd
from vibeserve.nki.ops import OPS
from vibeserve.nki.rules import Call
from vibeserve.nki.tensor import NkiTensor


def activation_bias(call: Call) -> None:
    bias = call.args["bias"]
    v2 = call.target.number < 3
    if isinstance(bias, NkiTensor):
        if bias.dtype is dt.tfloat32:
            call.fail("bias is tfloat32", code="S-DTYPE", rule="any other dtype")
    elif bias is not None and v2:
        call.fail(
            f"bias={bias!r} on {call.target.name}",
            code="S-ACT-BIAS",
            rule="a [P, 1] tile before trn2",
            fix="memset a [P, 1] tile and pass that",
        )
    if v2 and bias is not None and call.args["op"] is OPS["reciprocal"]:
        call.fail(f"nl.reciprocal with bias on {call.target.name}", code="S-ACT-BIAS", rule="no bias before trn2")


_STAGES = {
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
}


def activate2_stages(call: Call) -> None:
    pair = (call.args["op0"].name, call.args["op1"].name)
    if pair not in _STAGES:
        call.fail(f"operators {pair}", code="S-OP", rule=", ".join(f"({a}, {b})" for a, b in sorted(_STAGES)))
    for flag, op in (("reverse0", pair[0]), ("reverse1", pair[1])):
        if call.args[flag] and op == "bypass":
            call.fail(f"{flag} with a bypassed stage", code="NKI-OPERAND", rule="a flag of an operator in use")
    first, second = call.tensor("imm0"), call.tensor("imm1")
    if first is not None and second is not None and first.dtype is not second.dtype:
        call.fail("imm0 and imm1 of different dtypes", code="S-DTYPE", rule="one dtype")


def exponential_start(call: Call) -> None:
    loads = call.args["reduce_cmd"] is reduce_cmd.load_reduce
    start = call.args["reduce_init"]
    if not loads and (isinstance(start, NkiTensor) or start != 0.0):
        call.fail("reduce_init without load_reduce", code="S-REDUCE-CMD", rule="leave it 0.0")
