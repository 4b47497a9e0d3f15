"""Rules of random numbers, registers and cores alone."""

from __future__ import annotations

from vibeserve.nki import dtypes as dt
from vibeserve.nki.isa.enums import dma_engine
from vibeserve.nki.rules import Call, _free
from vibeserve.nki.special.operands import _t
from vibeserve.nki.tensor import NkiTensor


def dropout_prob(call: Call) -> None:
    prob = call.tensor("prob")
    if prob is not None and not prob.dtype.is_float:
        call.fail(f"prob is {prob.dtype}", code="S-DTYPE", rule="a float dtype")
    if prob is not None and _t(call, "data").dtype.is_int and prob.dtype is not dt.float32:
        call.fail(f"prob is {prob.dtype} with integer data", code="S-DTYPE", rule="float32")


def rand2_range(call: Call) -> None:
    low, high = call.args["min"], call.args["max"]
    if isinstance(low, int | float) and isinstance(high, int | float) and low >= high:
        call.fail(f"min={low} and max={high}", code="NKI-OPERAND", rule="min < max")


def rand_state_size(call: Call) -> None:
    tensor = next(iter(call.tensors().values()))
    wanted = 24 if call.engine == "vector" else 6
    if _free(tensor) != wanted:
        call.fail(f"{tensor!r} for the {call.engine} engine", code="S-SIZE", rule=f"[P, {wanted}] uint32")


def one_element(call: Call) -> None:
    for name, tensor in call.tensors().items():
        if tensor.size != 1:
            call.fail(f"{name} has {tensor.size} elements", code="S-SIZE", rule="exactly one")


def two_cores(call: Call) -> None:
    from vibeserve.nki.context import current_core

    count = current_core(f"nisa.{call.spec.name}").session.cores_per_rank
    if count != 2:
        call.fail(f"with LNC {count}", code="NCC_EARG001", rule="LNC 2", fix="launch with kernel[2](...)")


def barrier_operands(call: Call) -> None:
    cores, data = call.args["cores"], call.args["data"]
    if not isinstance(cores, list | tuple) or list(cores) not in ([0, 1], [1, 0]):
        call.fail(f"cores={cores!r}", code="NKI-OPERAND", rule="(0, 1)")
    if not isinstance(data, NkiTensor) or data.buffer.value != "shared_hbm":
        call.fail(
            f"data is {data!r}", code="S-SPACE", rule="a tensor in shared HBM: the one that both cores touch",
            fix="buffer=nl.shared_hbm",
        )  # fmt: skip


def sendrecv_shapes(call: Call) -> None:
    src, dst = _t(call, "src"), _t(call, "dst")
    for name in ("send_to_rank", "recv_from_rank"):
        if call.args[name] not in (0, 1):
            call.fail(f"{name}={call.args[name]!r}", code="NKI-OPERAND", rule="0 or 1")
    if src.shape != dst.shape:
        call.fail(f"src {list(src.shape)} and dst {list(dst.shape)}", code="S-SENDRECV", rule="equal shapes")
    if call.args["dma_engine"] is dma_engine.gpsimd_dma:
        limit = 256 * src.dtype.itemsize
        if _free(src) * src.dtype.itemsize > limit:
            call.fail(
                f"{_free(src) * src.dtype.itemsize} bytes in a partition by gpsimd_dma",
                code="S-SENDRECV",
                rule=f"at most {limit}",
            )
