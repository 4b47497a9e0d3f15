"""Operands of a call, for the rules that one instruction has alone, and what holds for indirect ones."""

from __future__ import annotations

from vibeserve.nki.rules import Call
from vibeserve.nki.tensor import NkiTensor


def _t(call: Call, name: str) -> NkiTensor:
    tensor = call.tensor(name)
    assert tensor is not None
    return tensor


def _psum(call: Call) -> bool:
    return any(tensor.buffer.value == "psum" for tensor in call.tensors().values())


def lanes(call: Call, name: str, tensor: NkiTensor) -> None:
    """What holds for an operand that an index tensor takes apart along the free dimension."""
    allowed = call.entry.get("indirect", ())
    if name not in allowed:
        call.fail(f"{name} is indirect", code="S-TI", rule=f"only {', '.join(allowed) or 'no operand'} can be")
    assert tensor.lanes is not None
    index = tensor.lanes.index[0]
    if index.start_partition() % 32:
        call.fail(
            f"the index of {name} starts at partition {index.start_partition()}", code="S-TI", rule="a multiple of 32"
        )
    written = call.spec.params.index(name) in call.spec.writes
    if not written and index.start_partition() != tensor.start_partition():
        call.fail(
            f"{name} starts at partition {tensor.start_partition()}, its index at {index.start_partition()}", code="S-TI",
            rule="both at the same partition",
        )  # fmt: skip
    if written and call.engine == "scalar" and tensor.buffer.value == "psum":
        call.fail(f"{name} is indirect in PSUM on the scalar engine", code="S-TI", rule="a scattered dst in SBUF")
