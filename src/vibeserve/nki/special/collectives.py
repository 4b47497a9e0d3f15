"""Rules of the collectives alone."""

from __future__ import annotations

from typing import Any

from vibeserve.nki.rules import Call
from vibeserve.nki.tensor import NkiTensor


def _listed(call: Call, *names: str) -> list[NkiTensor]:
    found: list[NkiTensor] = []
    for name in names:
        value = call.args[name]
        if not isinstance(value, list | tuple) or not value:
            call.fail(f"{name}={value!r}", code="NKI-COLLECTIVE", rule="a list of tensors")
        for item in value:
            found.extend(item if isinstance(item, list | tuple) else [item])
    return found


def collective_operands(call: Call) -> None:
    tensors = _listed(call, "srcs", "dsts")
    if len(call.args["srcs"]) != len(call.args["dsts"]):
        call.fail("as many srcs as dsts", code="NKI-COLLECTIVE")
    if len({tensor.on_chip for tensor in tensors}) > 1 or any(tensor.buffer.value == "psum" for tensor in tensors):
        call.fail("tensors in different memories", code="NKI-COLLECTIVE", rule="all in HBM, or all in SBUF")
    if tensors[0].on_chip and len(call.args["srcs"]) > 1:
        call.fail("several SBUF tensors in a call", code="NKI-COLLECTIVE", rule="one; several only in HBM")
    _not_inputs(call, call.args["srcs"])


def _not_inputs(call: Call, sources: Any) -> None:
    for source in sources:
        if source.storage.external:
            call.fail(
                "a kernel input as source",
                code="NKI-COLLECTIVE",
                rule="sources are tensors of the kernel",
                fix="copy it with nisa.dma_copy first",
            )


def gather_dim(call: Call) -> None:
    dim = call.args["collective_dim"]
    on_chip = call.args["srcs"][0].on_chip
    if dim not in ((0, 1) if on_chip else (0,)):
        call.fail(f"collective_dim={dim!r}", code="NKI-COLLECTIVE", rule="0 in HBM; 0 or 1 in SBUF")


def dim_zero(call: Call) -> None:
    if call.args["collective_dim"] != 0:
        call.fail(f"collective_dim={call.args['collective_dim']!r}", code="NKI-COLLECTIVE", rule="0")


def single_tensors(call: Call) -> None:
    if len(call.args["srcs"]) != 1:
        call.fail("several tensors in a call", code="NKI-COLLECTIVE", rule="one src and one dst")


def channels(call: Call) -> None:
    ids = list(call.args["channel_ids"])
    if ids != list(range(len(ids))) or not 1 <= len(ids) <= 4:
        call.fail(f"channel_ids={ids}", code="NKI-COLLECTIVE", rule="consecutive from 0, at most 4")
    for name in call.args:
        if name.startswith("srcs"):
            _not_inputs(call, _listed(call, name))
