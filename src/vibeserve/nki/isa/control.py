"""Registers, barriers, exchange between cores, and what a kernel can ask about its target."""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.nki import access, races, targets
from vibeserve.nki.context import Core, current_core
from vibeserve.nki.errors import KernelError
from vibeserve.nki.instruction import instruction
from vibeserve.nki.isa.enums import dma_engine as _dma_engine
from vibeserve.nki.isa.enums import engine as _engine
from vibeserve.nki.isa.enums import nc_version
from vibeserve.nki.registers import VirtualRegister
from vibeserve.nki.tensor import NkiTensor


def register_alloc(x: Any = None) -> VirtualRegister:
    """A new register, holding x where it is an integer."""
    current_core("nisa.register_alloc")
    if x is not None and (isinstance(x, bool) or not isinstance(x, int | np.integer)):
        raise KernelError(
            f"register_alloc({x!r})",
            code="NKI-OPERAND",
            rule="x is None or an int",
            fix="nisa.register_load for a tensor",
        )
    register = VirtualRegister()
    if x is not None:
        register.set(x)
    return register


def _register(value: Any, what: str) -> VirtualRegister:
    if not isinstance(value, VirtualRegister):
        raise KernelError(f"{what} is {value!r}", code="NKI-OPERAND", rule="a register of nisa.register_alloc")
    return value


def register_move(dst: VirtualRegister, src: Any) -> None:
    """dst = src, a register or an integer."""
    current_core("nisa.register_move").spend()
    if isinstance(src, VirtualRegister):
        src.value()  # refuses one that holds nothing
        value = src.state  # all 32 bits: a float stays one
    elif isinstance(src, int | np.integer) and not isinstance(src, bool):
        value = int(src)
    else:
        raise KernelError(
            f"register_move src={src!r}", code="B2-REGMOVE-IMM", rule="a register or an int", fix="nisa.register_load"
        )
    _register(dst, "dst").set(value)


@instruction
def register_load(core: Core, dst: VirtualRegister, src: NkiTensor) -> None:
    """dst = the one element of src."""
    if core.session.shape_only:
        raise KernelError(
            "a register takes its value from data",
            code="NKI-SHAPE-ONLY",
            rule="no values are computed",
            fix="run it in full",
        )
    value = access.read(src).reshape(-1)[0]
    _register(dst, "dst").set(float(value) if src.dtype.is_float else int(value))


@instruction
def register_store(core: Core, dst: NkiTensor, src: VirtualRegister) -> None:
    """The one element of dst = src."""
    register = _register(src, "src")
    register.value()
    if dst.dtype.is_int:
        bits = np.array([int(register.state) & 0xFFFFFFFF], np.uint32).astype(np.dtype(f"u{dst.dtype.itemsize}"))
        access.write(dst, bits.view(dst.dtype.stored))
    else:
        access.write(dst, np.array([register.state], np.float32))


@instruction
def core_barrier(core: Core, data: NkiTensor, cores: Any, engine: Any = _engine.gpsimd, name: Any = None) -> None:
    """Every listed core waits for the others; what they wrote to shared HBM before is visible after."""
    base = core.rank * core.session.cores_per_rank
    parties = [base + int(which) for which in cores]
    key = ("barrier", core.rank, tuple(parties), core.occurrence("barrier"))
    own = core.session.sequence
    core.meet(key, None, parties, "nisa.core_barrier")
    races.barrier(core, data, key, own)


@instruction
def sendrecv(
    core: Core,
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: Any = _dma_engine.dma,
    name: Any = None,
) -> None:
    """Send src to the peer core and receive its src in dst; both cores call it."""
    base = core.rank * core.session.cores_per_rank
    parties = (base, base + 1)
    key = ("sendrecv", core.rank, pipe_id, core.occurrence(("sendrecv", pipe_id)))
    own = core.session.sequence
    brought = core.meet(
        key, (access.read(src).copy(), src.dtype, src.shape), parties, f"nisa.sendrecv(pipe_id={pipe_id})"
    )
    races.meeting(core, key, own, (src.storage.number,), (dst.storage.number,))
    values, dtype, shape = brought[base + int(recv_from_rank)]
    if dtype is not dst.dtype or tuple(shape) != dst.shape:
        raise KernelError(
            f"nisa.sendrecv: the peer sends {dtype}{list(shape)} into {dst!r}",
            code="S-SENDRECV",
            rule="equal dtype and shape on both cores",
        )
    access.write(dst, values)


def get_nc_version() -> nc_version:
    """The generation of the target: nc_version.gen2, gen3 or gen4."""
    return nc_version(targets.generation())


def get_nc_sub_version() -> int:
    """The silicon revision; 0, the first."""
    return 0
