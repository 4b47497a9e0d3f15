"""Loops, program ids, sizes of the target, printing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vibeserve.nki import access, targets
from vibeserve.nki.context import core_or_none, current_core
from vibeserve.nki.errors import KernelError
from vibeserve.nki.memory import MemoryRegion
from vibeserve.nki.registers import VirtualRegister
from vibeserve.nki.tensor import NkiTensor
from vibeserve.nki.views import DynamicSlice


def _static_range(start: Any, stop: Any = None, step: Any = 1) -> range:
    for bound in (start, stop, step):
        if isinstance(bound, VirtualRegister):
            raise KernelError(
                "a register as the bound of an unrolled loop",
                code="V6-LOOPARITH",
                fix="nl.fori_loop or nl.dynamic_range",
            )
        if bound is not None and not isinstance(bound, int | np.integer):
            raise KernelError(f"loop bound {bound!r}", code="NKI-OPERAND", rule="bounds of an unrolled loop are ints")
    if start is None or step is None:
        raise KernelError("a loop bound of None", code="NKI-OPERAND", rule="bounds of an unrolled loop are ints")
    return range(start) if stop is None else range(start, stop, step)


def affine_range(start: Any, stop: Any = None, step: Any = 1) -> range:
    """Python's range, unrolled; kept for old kernels."""
    return _static_range(start, stop, step)


def sequential_range(start: Any, stop: Any = None, step: Any = 1) -> range:
    """Python's range, unrolled; kept for old kernels."""
    return _static_range(start, stop, step)


def static_range(start: Any, stop: Any = None, step: Any = 1) -> range:
    """Python's range, unrolled; kept for old kernels."""
    return _static_range(start, stop, step)


def _bound(value: Any) -> int:
    if isinstance(value, VirtualRegister):
        return value.value()
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise KernelError(f"loop bound {value!r}", code="V6-LOOPSTEP", rule="an int or a register")


def _step(step: Any) -> int:
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 1:
        raise KernelError(
            f"loop step {step!r}", code="V6-LOOPSTEP", rule="a positive int known when the kernel is built"
        )
    return int(step)


def dynamic_range(start: Any, stop: Any = None, step: Any = 1) -> Iterator[VirtualRegister]:
    """A loop on the device; the induction value is a read-only register."""
    core = current_core("nl.dynamic_range")
    low, high = (0, start) if stop is None else (start, stop)
    stride = _step(step)
    _refuse_in_no_reorder(core)
    core.enter_loop()

    def run() -> Iterator[VirtualRegister]:
        core.loop_depth += 1
        try:
            for value in range(_bound(low), _bound(high), stride):
                yield VirtualRegister(value, frozen=True)
        finally:
            core.loop_depth -= 1

    return run()


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], Any], step: Any = 1) -> None:
    """body_fun(i) on the device for i = lower, lower + step, ...; the body returns nothing and keeps state in tensors."""
    core = current_core("nl.fori_loop")
    for index in dynamic_range(lower, upper, step):
        with core.loop_body():
            returned = body_fun(index)
        if returned is not None:
            raise KernelError(
                "a fori_loop body that returns a value",
                code="V6-LOOPSTATE",
                rule="state lives in SBUF or HBM",
                fix="write into a tensor allocated before the loop",
            )


def while_loop(init: Any, body_fun: Callable[[Any], Any]) -> None:
    """r = init; while r != 0: r = body_fun(r), on the device."""
    core = current_core("nl.while_loop")
    _refuse_in_no_reorder(core)
    core.enter_loop()
    register = init if isinstance(init, VirtualRegister) else VirtualRegister(_bound(init))
    core.loop_depth += 1
    try:
        while register.value() != 0:
            core.spend()
            with core.loop_body():
                register = body_fun(register)
            if not isinstance(register, VirtualRegister):
                raise KernelError(
                    "a while_loop body that returns no register",
                    code="V6-LOOPSTATE",
                    rule="it returns the next condition",
                )
    finally:
        core.loop_depth -= 1


def _refuse_in_no_reorder(core: Any) -> None:
    if core.accumulators.get("no_reorder"):
        raise KernelError(
            "a dynamic loop inside nl.no_reorder()",
            code="V6-NOREORDER-DYN",
            fix="put no_reorder inside the loop's body",
        )


@contextlib.contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions inside keep program order (here they always do); dynamic loops are refused inside."""
    core = current_core("nl.no_reorder")
    before = core.accumulators.get("no_reorder", 0)
    core.accumulators["no_reorder"] = before + 1
    if not before:
        core.accumulators["no_reorder_since"] = core.session.sequence
    try:
        yield
    finally:
        core.accumulators["no_reorder"] = before


def ds(start: Any, size: int) -> DynamicSlice:
    """The slice [start, start + size) for indexing; start may be a register, size is static."""
    return DynamicSlice(start, size)


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tensor's values where the device would."""
    core = current_core("nl.device_print")
    if not isinstance(tensor, NkiTensor):
        raise KernelError(
            f"device_print of {type(tensor).__name__}",
            code="NKI-OPERAND",
            rule="a tensor",
            fix="print() for Python values",
        )
    values = access.read(tensor)
    print(f"{print_prefix} core {core.index}: {tensor!r}\n{values}", flush=True)


def program_id(axis: int = 0) -> int:
    """This core's index in the launch grid along `axis`; 0 without a grid."""
    core = core_or_none()
    (axis,) = _axes(axis)[:1] or (0,)
    if core is None:
        return 0
    return core.coordinates[axis] if -len(core.coordinates) <= axis < len(core.coordinates) else 0


def num_programs(axes: Any = 0) -> int:
    """The grid's size along `axes` (an axis, or several multiplied); 1 without a grid."""
    core = core_or_none()
    grid = core.session.grid if core is not None else ()
    total = 1
    for axis in _axes(axes):
        total *= grid[axis] if -len(grid) <= axis < len(grid) else 1
    return total


def _axes(axes: Any) -> tuple[int, ...]:
    """One axis or several as a tuple; a KernelError for anything else."""
    found = axes if isinstance(axes, tuple | list) else (axes,)
    if not all(isinstance(axis, int | np.integer) for axis in found):
        raise KernelError(f"grid axis {axes!r}", code="NKI-OPERAND", rule="ints")
    return tuple(found)


def program_ndim() -> int:
    """The rank of the launch grid; 0 without one."""
    core = core_or_none()
    return len(core.session.grid) if core is not None else 0


def _region(buffer: Any) -> Any:
    return getattr(buffer, "buffer", buffer)


def is_hbm(buffer: Any) -> bool:
    """Whether a buffer is hbm, private_hbm or shared_hbm."""
    region = _region(buffer)
    return isinstance(region, MemoryRegion) and region.is_hbm


def is_sbuf(buffer: Any) -> bool:
    """Whether a buffer is sbuf."""
    return _region(buffer) is MemoryRegion.sbuf


def is_psum(buffer: Any) -> bool:
    """Whether a buffer is psum."""
    return _region(buffer) is MemoryRegion.psum


def is_on_chip(buffer: Any) -> bool:
    """Whether a buffer is sbuf or psum."""
    region = _region(buffer)
    return isinstance(region, MemoryRegion) and region.on_chip


class TileSize:
    """Sizes of the current target (read when asked for)."""

    pmax = 128
    psum_fmax = 512
    psum_bank_fmax = 512
    psum_bank_fmax_bytes = 2048
    gemm_stationary_fmax = 128
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def psum_num_banks(self) -> int:
        """8; 7 where DMA transposes go over the tensor engine."""
        reserved = os.environ.get("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "").lower() in ("1", "true")
        return 7 if reserved and targets.generation() >= 3 else 8

    @property
    def gemm_moving_fmax(self) -> int:
        """Columns of a moving operand: 512."""
        return 512

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Usable bytes in a partition of SBUF."""
        return targets.current().sbuf_usable_per_partition

    total_available_sbuf_size = sbuf_fmax_bytes

    @property
    def sbuf_fmax(self) -> int:
        """Usable float32 elements in a partition of SBUF."""
        return self.sbuf_fmax_bytes // 4

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF."""
        return 128 * targets.current().sbuf_per_partition

    def __repr__(self) -> str:
        return "nl.tile_size"


tile_size = TileSize()
