"""Allocating tensors, constants, loading and storing."""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.nki import isa
from vibeserve.nki.context import allocate, core_or_none, current_core
from vibeserve.nki.dtypes import DType, resolve, uint8
from vibeserve.nki.errors import KernelError
from vibeserve.nki.isa.random import uniform
from vibeserve.nki.memory import FULL, MemoryRegion, Storage
from vibeserve.nki.tensor import NkiTensor, as_dtype, new_tensor
from vibeserve.nki.views import dense_strides

_SBUF = MemoryRegion.sbuf
_LARGE = 1 << 28  # bytes of one HBM tensor from which on the machine's free memory is asked for


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape as positive ints, or a KernelError."""
    if type(shape) is tuple and shape:
        for size in shape:
            if type(size) is not int or size < 1:
                break
        else:
            return shape
    sizes = (shape,) if isinstance(shape, int | np.integer) else shape
    try:
        found = tuple(sizes)
    except TypeError:
        raise KernelError(f"shape {shape!r}", code="NKI-SHAPE", rule="a tuple of positive ints") from None
    for size in found:
        if isinstance(size, bool) or not isinstance(size, int | np.integer):
            raise KernelError(
                f"shape {shape!r}: {size!r} is no int",
                code="NKI-SHAPE",
                rule="a tuple of positive ints",
                fix="divide with //",
            )
        if size < 1:
            raise KernelError(f"shape {found}: sizes are positive", code="NKI-SHAPE", fix="leave empty tiles out")
    if not found:
        raise KernelError("an empty shape", code="NKI-SHAPE", rule="at least one dimension")
    return tuple(int(size) for size in found)


def checked_buffer(buffer: Any) -> MemoryRegion:
    """A memory region, or a KernelError."""
    if isinstance(buffer, MemoryRegion):
        return buffer
    raise KernelError(
        f"buffer={buffer!r}",
        code="B2-BUFFER-STR" if isinstance(buffer, str) else "B1-ALLOC",
        rule="a memory region of nki.language",
        fix="nl.sbuf, nl.psum, nl.hbm, nl.private_hbm or nl.shared_hbm",
    )


def ndarray(shape: Any, dtype: Any, buffer: Any = _SBUF, name: str = "", address: Any = None) -> NkiTensor:
    """A tensor whose elements nobody has written yet. `address` is (partition, byte) for a manual place on chip."""
    core = current_core("nl.ndarray")
    sizes, rooms = checked_shape(shape), core.session.rooms
    asked: Any = (sizes, type(dtype), dtype, buffer, address)
    try:
        room = rooms.get(asked)
    except TypeError:  # what cannot be hashed is checked each time
        asked = room = None
    if room is None:
        element, region = as_dtype(dtype), checked_buffer(buffer)
        place = None if address is None else _checked_address(address, region)
        _check_room(core, sizes, element, region, place)
        room = element, region, place, dense_strides(sizes)
        if asked is not None and region.on_chip:
            rooms[asked] = room
    element, region, place, strides = room
    storage = allocate(core, sizes, element, region, name=name or "", address=place)
    return NkiTensor(sizes, strides, 0, element, storage, region, name or "")


def _checked_address(address: Any, region: MemoryRegion) -> tuple[int, int]:
    try:
        partition, free = (int(part) for part in address)
    except (TypeError, ValueError):
        raise KernelError(f"address={address!r}", code="B1-ALLOC", rule="(partition, byte offset)") from None
    if region is MemoryRegion.psum and free % 2048:
        raise KernelError(
            f"PSUM address {free}",
            code="B1-PSUM-ADDR",
            rule="a bank's start: a multiple of 2048 bytes",
            fix=f"{free // 2048 * 2048}",
        )
    return partition, free


def _check_room(
    core: Any, sizes: tuple[int, ...], dtype: DType, region: MemoryRegion, place: tuple[int, int] | None
) -> None:
    target = core.session.target
    total = dtype.itemsize
    for size in sizes:
        total *= size
    if not region.on_chip:
        if total > target.hbm_bytes or (total > _LARGE and not core.session.shape_only and total > _free_bytes()):
            raise KernelError(
                f"{total:,} bytes of HBM for shape {list(sizes)}", code="NCC_EOOM001",
                rule=f"{target.name} has {target.hbm_bytes:,} bytes" if total > target.hbm_bytes else "this machine has less memory free",
            )  # fmt: skip
        return
    capacity = target.sbuf_usable_per_partition if region is _SBUF else target.psum_per_partition
    need = total // sizes[0]
    end = need + (place[1] if place else 0)
    if total > 128 * capacity and end <= capacity:
        raise KernelError(
            f"{total:,} bytes of {region.value} for shape {list(sizes)}",
            code="NCC_IBIR229",
            rule=f"{target.name} has 128 partitions of {capacity:,} bytes in {region.value}",
            fix="tile dimension 0 by nl.tile_size.pmax",
        )
    if end > capacity:
        raise KernelError(
            f"{need:,} bytes in a partition of {region.value}"
            + (f" at byte {place[1]:,}" if place else "")
            + f" for shape {list(sizes)}",
            code="NCC_IBIR229",
            rule=f"{target.name} has {capacity:,} bytes in a partition of {region.value}",
            fix="tile the free dimension",
        )


def _free_bytes() -> int:
    """Bytes of this machine's memory that a tensor can have."""
    import psutil

    return int(psutil.virtual_memory().available)


def _filled(shape: Any, value: Any, dtype: Any, buffer: Any, name: str) -> NkiTensor:
    tensor = ndarray(shape, dtype, buffer=buffer, name=name)
    if tensor.dtype.is_int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if tensor.on_chip:
        isa.memset(tensor, value)
    else:
        held = tensor.held()
        tensor.storage.data.view(held.stored)[...] = np.array(value).astype(held.stored)
        tensor.storage.mark_all()
    return tensor


def zeros(shape: Any, dtype: Any, buffer: Any = _SBUF, name: str = "") -> NkiTensor:
    """A tensor of zeros."""
    return _filled(shape, 0, dtype, buffer, name)


def ones(shape: Any, dtype: Any, buffer: Any = _SBUF, name: str = "") -> NkiTensor:
    """A tensor of ones."""
    return _filled(shape, 1, dtype, buffer, name)


def full(shape: Any, fill_value: Any, dtype: Any, buffer: Any = _SBUF, name: str = "") -> NkiTensor:
    """A tensor of `fill_value`, whose kind fits dtype."""
    return _filled(shape, fill_value, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Zeros in the shape of x; dtype and buffer those of x where not given."""
    return zeros(x.shape, x.dtype if dtype is None else dtype, buffer=x.buffer if buffer is None else buffer, name=name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """An unwritten tensor in the shape of x."""
    return ndarray(
        x.shape, x.dtype if dtype is None else dtype, buffer=x.buffer if buffer is None else buffer, name=name
    )


def constant_tensor(core: Any, values: np.ndarray, region: MemoryRegion, dtype: DType, name: str = "") -> NkiTensor:
    """A tensor that holds `values` from the start."""
    data = np.ascontiguousarray(values)
    storage = allocate(core, data.shape, dtype, region, name=name)
    if core.loop_tensors and core.loop_tensors[-1] is storage:
        core.loop_tensors.pop()  # a constant is there before the loop
    if storage.state != FULL:
        Storage.mark_all(storage)
        storage.data.view(storage.held.stored)[...] = data.reshape(-1).astype(storage.held.stored)
    return new_tensor(data.shape, dtype, storage, region, name)


def shared_constant(constant: Any) -> NkiTensor:
    """A NumPy array, or the .npy file at a path, as a tensor in shared HBM."""
    value = constant
    core = current_core("nl.shared_constant")
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        try:
            value = np.load(value, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise KernelError(
                f"nl.shared_constant({value!r}): {error}", code="NKI-CONSTANT", rule="a .npy file"
            ) from None
    if not isinstance(value, np.ndarray):
        raise KernelError(
            f"nl.shared_constant({type(value).__name__})", code="NKI-CONSTANT", rule="a NumPy array or a .npy path"
        )
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    dtype = resolve(value.dtype, strict=False)
    if dtype is None:
        raise KernelError(f"nl.shared_constant of {value.dtype}", code="NCC_ESPP004", fix="cast it to float32 or int32")
    return constant_tensor(core, value, MemoryRegion.shared_hbm, dtype)


def shared_identity_matrix(n: int, dtype: Any = uint8, dst: Any = None) -> NkiTensor:
    """An n x n identity in SBUF (n <= 128), one for each dtype and size."""
    core = current_core("nl.shared_identity_matrix")
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= 128:
        raise KernelError(f"shared_identity_matrix({n})", code="NKI-SHAPE", rule="1 <= n <= 128")
    element = as_dtype(dtype)
    if dst is not None:
        isa.dma_copy(dst=dst, src=shared_constant(np.eye(n).astype(element.dtype)))
        return dst  # type: ignore[no-any-return]
    key = ("identity", core.index, n, element.name)
    found = core.session.constants.get(key)
    if found is None:
        found = core.session.constants[key] = constant_tensor(
            core, np.eye(n).astype(element.dtype), _SBUF, element, "identity"
        )
    return found  # type: ignore[no-any-return]


def rand(shape: Any, dtype: Any, buffer: Any = _SBUF, name: str = "") -> NkiTensor:
    """Uniform numbers in [0, 1)."""
    from vibeserve.nki import access

    tensor = ndarray(shape, dtype, buffer=buffer, name=name)
    core = core_or_none()
    assert core is not None
    parts = tensor.shape[0]
    access.write(tensor, uniform(core, parts, tensor.size // parts) if parts <= 128 else _host_uniform(core, tensor))
    tensor.storage.mark_all()
    return tensor


def _host_uniform(core: Any, tensor: NkiTensor) -> np.ndarray:
    return np.random.default_rng(core.occurrence("uniform numbers in HBM")).random(tensor.shape, np.float32)


def random_seed(seed: Any) -> None:
    """Seed the generator from a [1, 1] 32-bit tensor."""
    if not isinstance(seed, NkiTensor):
        raise KernelError(
            f"nl.random_seed({seed!r})",
            code="S-NLSEED",
            rule="a [1, 1] tensor of a 32-bit dtype",
            fix="memset a (1, 1) nl.int32 tile",
        )
    isa.set_rng_seed(seed)


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """An HBM view as a new SBUF tile."""
    _needs_hbm("nl.load", src)
    shape = src.shape if len(src.shape) > 1 else (src.shape[0], 1)
    tile = ndarray(shape, src.dtype if dtype is None else dtype)
    isa.dma_copy(dst=tile, src=src)
    return tile


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A 2-D HBM view as a new SBUF tile with its dimensions swapped."""
    _needs_hbm("nl.load_transpose2d", src)
    tile = ndarray(tuple(reversed(src.shape)), src.dtype)
    isa.dma_transpose(dst=tile, src=src)
    if dtype is None or as_dtype(dtype) is src.dtype:
        return tile
    cast = ndarray(tile.shape, dtype)
    isa.tensor_copy(cast, tile)
    return cast


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """An SBUF tile into an HBM view."""
    if isinstance(value, NkiTensor) and value.buffer is MemoryRegion.psum:
        raise KernelError(
            "nl.store of a PSUM tile",
            code="S-NLSTORE-PSUM",
            fix="nisa.tensor_copy into SBUF first",
            operands=repr(value),
        )
    isa.dma_copy(dst=dst, src=value)


def _needs_hbm(what: str, src: Any) -> None:
    if not isinstance(src, NkiTensor) or src.on_chip:
        raise KernelError(
            f"{what} of {src!r}", code="S-SPACE", rule="an HBM tensor", fix="nisa.tensor_copy copies on chip"
        )


def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A tile in SBUF or PSUM as a new SBUF tile."""
    tile = ndarray(x.shape, x.dtype if dtype is None else dtype)
    if x.on_chip:
        isa.tensor_copy(tile, x)
    else:
        isa.dma_copy(tile, x)
    return tile
