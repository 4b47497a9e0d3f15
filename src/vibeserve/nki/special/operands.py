"""Operands of a call, for the rules that one instruction has alone."""

from __future__ import annotations

from vibeserve.nki.rules import Call
from vibeserve.nki.tensor import NkiTensor


def _t(call: Call, name: str) -> NkiTensor:
    tensor = call.tensor(name)
    assert tensor is not None
    return tensor


def _psum(call: Call) -> bool:
    return any(tensor.buffer.value == "psum" for tensor in call.tensors().values())
