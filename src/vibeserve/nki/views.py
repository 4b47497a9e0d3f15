"""View algebra: what slicing, reshaping, permuting, broadcasting and raw access patterns make of a view."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from vibeserve.nki.dtypes import DType
from vibeserve.nki.errors import KernelError
from vibeserve.nki.registers import VirtualRegister

if TYPE_CHECKING:
    from vibeserve.nki.tensor import NkiTensor

MAX_RANK = 5
_PAIR = 2


class DynamicSlice:
    """`nl.ds(start, size)`: the slice [start, start + size), whose start may be a register."""

    __slots__ = ("size", "start")

    def __init__(self, start: Any, size: int):
        self.start = start
        self.size = size

    def __repr__(self) -> str:
        return f"nl.ds({self.start}, {self.size})"


def fail(tensor: Any, what: str, *, code: str = "S-VIEW", rule: str = "", fix: str = "") -> NoReturn:
    """Refuse a view of `tensor`."""
    raise KernelError(what, code=code, rule=rule, fix=fix, operands=repr(tensor))


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of a dense tensor."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return tuple(strides)


def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Row-major without gaps; dimensions of size 1 do not matter."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def index(tensor: NkiTensor, key: Any) -> NkiTensor:
    """`tensor[key]`: ints, slices, Ellipsis, nl.ds, registers; see `NkiTensor`."""
    if type(key) is tuple:
        quick = _plain_slices(tensor, key)
        if quick is not None:
            return quick
    from vibeserve.nki.tensor import Move

    items = _expand(tensor, key)
    on_chip = tensor.buffer.on_chip
    shape: list[int] = []
    strides: list[int] = []
    offset = tensor.offset
    moves = tensor.moves
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.strides, strict=True)):
        item = items[dim] if dim < len(items) else None
        if item is None:
            shape.append(size)
            strides.append(stride)
            continue
        indexed = (tensor.rows is not None and dim == 0) or (tensor.lanes is not None and dim > 0)
        if indexed and not _is_full(item, size):
            fail(tensor, f"slicing dimension {dim}, which an index tensor moves", rule="it stays whole")
        if isinstance(item, slice):
            start, count, step = _slice_of(tensor, dim, size, item)
            if on_chip and dim == 0 and step != 1:
                fail(
                    tensor,
                    "a strided slice of the partition dimension",
                    code="S-PCONT",
                    rule="partitions are contiguous",
                )
            shape.append(count)
            strides.append(stride * step)
            offset += start * stride
        elif isinstance(item, DynamicSlice):
            count = _static(tensor, item.size)
            if isinstance(item.start, VirtualRegister) or is_tensor(item.start):
                moves = (*moves, Move(item.start, stride, size - count + 1))
            else:
                start = _static(tensor, item.start)
                if start < 0 or count <= 0 or start + count > size:
                    _out_of_range(tensor, dim, f"nl.ds({start}, {count})", size)
                offset += start * stride
            shape.append(count)
            strides.append(stride)
        else:
            if isinstance(item, VirtualRegister):
                moves = (*moves, Move(item, stride, size))
            else:
                position = _static(tensor, item)
                if not -size <= position < size:
                    _out_of_range(tensor, dim, position, size)
                offset += (position % size) * stride
            if on_chip and (dim == 0 or (len(shape) == 1 and dim == len(tensor.shape) - 1)):
                shape.append(1)
                strides.append(stride if dim == 0 else 1)
    if not shape:
        shape, strides = [1], [1]
    new = tensor._view(tuple(shape), tuple(strides), offset)
    new.moves = moves
    return new


def _plain_slices(tensor: NkiTensor, key: tuple[Any, ...]) -> NkiTensor | None:
    """The view for slices between ints in range and ints in free dimensions, the common case; None for anything else."""
    shape, strides = tensor.shape, tensor.strides
    if len(key) > len(shape) or tensor.rows is not None or tensor.lanes is not None:
        return None
    offset = tensor.offset
    if len(key) == len(shape) == _PAIR and key[0].__class__ is key[1].__class__ is slice:  # most of all views
        top, bottom, left, right = key[0].start, key[0].stop, key[1].start, key[1].stop
        plain = key[0].step is key[1].step is None
        if plain and top.__class__ is bottom.__class__ is left.__class__ is right.__class__ is int:
            if 0 <= top < bottom <= shape[0] and 0 <= left < right <= shape[1]:
                return tensor._view(
                    (bottom - top, right - left), strides, offset + top * strides[0] + left * strides[1]
                )
            return None
    sizes = []
    dropped = 0
    for item, size, stride in zip(key, shape, strides, strict=False):
        if type(item) is slice:
            start, stop = item.start, item.stop
            if start is None:
                start = 0
            if stop is None:
                stop = size
            if item.step is not None or type(start) is not int or type(stop) is not int:
                return None
            if not 0 <= start < stop <= size:
                return None
            sizes.append(stop - start)
            offset += start * stride
        elif type(item) is int and sizes and 0 <= item < size:
            dropped += 1
            offset += item * stride
        else:
            return None
    if not dropped:
        return tensor._view((*sizes, *shape[len(key) :]), strides, offset)
    kept = [stride for item, stride in zip(key, strides, strict=False) if type(item) is slice]
    if len(sizes) + len(shape) - len(key) < 2:
        return None
    return tensor._view((*sizes, *shape[len(key) :]), (*kept, *strides[len(key) :]), offset)


def _expand(tensor: NkiTensor, key: Any) -> list[Any]:
    if type(key) is not tuple:
        key = (key,)
    rank = len(tensor.shape)
    if any(item is None for item in key):
        fail(
            tensor, "None in an index", rule="indexes are ints, slices, '...', nl.ds and registers",
            fix="use .expand_dim(dim)",
        )  # fmt: skip
    if any(item is Ellipsis for item in key):
        at = next(i for i, item in enumerate(key) if item is Ellipsis)
        if any(item is Ellipsis for item in key[at + 1 :]):
            fail(tensor, "two '...' in one index", rule="one at most")
        key = (*key[:at], *([None] * (rank - len(key) + 1)), *key[at + 1 :])
    if len(key) > rank:
        fail(tensor, f"{len(key)} indexes for a tensor of rank {rank}", code="S-RANK", rule=f"at most {rank}")
    return list(key)


def _is_full(item: Any, size: int) -> bool:
    return isinstance(item, slice) and item.indices(size) == (0, size, 1)


def whole(value: Any) -> int:
    """`value` as an int, or a KernelError."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise KernelError(f"{value!r} among sizes or dimensions", code="NKI-OPERAND", rule="ints", fix="divide with //")


def is_tensor(value: Any) -> bool:
    """Whether `value` is an NkiTensor."""
    return type(value).__name__ == "NkiTensor"


def _static(tensor: NkiTensor, item: Any) -> int:
    if isinstance(item, int | np.integer) and not isinstance(item, bool):
        return int(item)
    if is_tensor(item):
        fail(
            tensor, "a tensor used as an index", code="B1-DYN-INDEX", rule="indexes are integers, slices, nl.ds or registers",
            fix=".select(dim, index_tile), .vector_select(0, index_tile) or .ap(scalar_offset=index_tile)",
        )  # fmt: skip
    fail(
        tensor,
        f"{type(item).__name__} {item!r} used as an index",
        code="B1-ARANGE",
        rule="indexes are integers, slices or nl.ds",
    )


def _slice_of(tensor: NkiTensor, dim: int, size: int, item: slice) -> tuple[int, int, int]:
    step = 1 if item.step is None else _static(tensor, item.step)
    if step < 1:
        fail(tensor, f"slice step {step}", code="S-PCONT" if dim == 0 else "S-VIEW", rule="steps are positive")
    start = 0 if item.start is None else _static(tensor, item.start)
    stop = size if item.stop is None else _static(tensor, item.stop)
    low = start + size if start < 0 else start
    high = stop + size if stop < 0 else stop
    if low < 0 or high > size or high <= low:
        _out_of_range(tensor, dim, f"{start}:{stop}", size)
    return low, -(-(high - low) // step), step


def _out_of_range(tensor: NkiTensor, dim: int, what: Any, size: int) -> NoReturn:
    fail(
        tensor,
        f"index {what} is out of range for dimension {dim} of size {size}",
        code="NCC_ESMP002",
        rule="0 <= start < end <= size",
        fix="clamp the last tile: min(start + tile, size)",
    )


def _dim(tensor: NkiTensor, dim: int, extra: int = 0) -> int:
    rank = len(tensor.shape) + extra
    if not -rank <= dim < rank:
        fail(
            tensor,
            f"dimension {dim} of a tensor of rank {len(tensor.shape)}",
            code="S-RANK",
            rule=f"-{rank} to {rank - 1}",
        )
    return dim % rank


def slice_dim(tensor: NkiTensor, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
    """See `NkiTensor.slice`."""
    dim = _dim(tensor, dim)
    return index(tensor, (*([slice(None)] * dim), slice(start, end, step)))


def select(tensor: NkiTensor, dim: int, which: Any) -> NkiTensor:
    """See `NkiTensor.select`."""
    from vibeserve.nki.tensor import Move

    dim = _dim(tensor, dim)
    size, stride = tensor.shape[dim], tensor.strides[dim]
    shape = tensor.shape[:dim] + tensor.shape[dim + 1 :]
    strides = tensor.strides[:dim] + tensor.strides[dim + 1 :]
    if isinstance(which, VirtualRegister) or is_tensor(which):
        if tensor.moves or tensor.rows is not None:
            fail(tensor, "a second run-time select", rule="a view moves at run time in one dimension")
        if tensor.buffer.on_chip and dim == 0:
            fail(tensor, "a run-time select of the partition dimension", code="S-PCONT", rule="free dimensions, or HBM")
        if is_tensor(which) and which.size != 1:
            fail(which, "a run-time index of more than one element", fix="a (1, 1) SBUF tensor")
        new = tensor._view(shape, strides, tensor.offset)
        new.moves = (*tensor.moves, Move(which, stride, size))
        return new
    position = _static(tensor, which)
    if not 0 <= position < size:
        _out_of_range(tensor, dim, position, size)
    if tensor.rows is not None and dim == 0:
        fail(tensor, "a select of the dimension that an index tensor moves", rule="it stays whole")
    if tensor.buffer.on_chip and dim == 0 and len(shape) >= 1:
        return index(tensor, position)
    if not shape:
        shape, strides = (1,), (1,)
    return tensor._view(shape, strides, tensor.offset + position * stride)


def vector_select(tensor: NkiTensor, dim: int, vector_offset: NkiTensor) -> NkiTensor:
    """See `NkiTensor.vector_select`."""
    if dim != 0:
        fail(tensor, f"vector_select of dimension {dim}", code="S-VOFF", rule="only dimension 0")
    if not is_tensor(vector_offset):
        fail(tensor, f"vector_select by {vector_offset!r}", code="S-VOFF", fix="a (P, 1) SBUF tensor of row numbers")
    return access_pattern(tensor, None, None, None, vector_offset, 0, None, count=vector_offset.shape[0])


def access_pattern(
    tensor: NkiTensor,
    pattern: Any,
    offset: Any,
    scalar_offset: Any,
    vector_offset: Any,
    indirect_dim: int,
    dtype: Any,
    *,
    count: int | None = None,
) -> NkiTensor:
    """See `NkiTensor.ap`."""
    from vibeserve.nki.tensor import Move, Rows, as_dtype

    new_dtype = tensor.dtype if dtype is None else as_dtype(dtype)
    old_size, new_size = tensor.dtype.itemsize, new_dtype.itemsize
    if new_dtype is not tensor.dtype:
        _may_reinterpret(tensor, new_dtype)
    pairs = tensor.get_pattern() if pattern is None else _pairs(tensor, pattern)
    if pattern is not None and not _is_box(tensor):
        _passes_over(tensor, pattern)
    if count is not None:
        pairs[0][1] = count
    shape = tuple(pair[1] for pair in pairs)
    strides = tuple(pair[0] for pair in pairs)
    base, rest = divmod(tensor.offset * old_size, new_size)
    if rest:
        fail(
            tensor,
            f"the view starts inside an element of {new_dtype}",
            code="S-AP",
            rule="views start at whole elements",
        )
    new = tensor._view(shape, strides, base + (0 if offset is None else _static(tensor, offset)), dtype=new_dtype)
    new.moves, new.rows, new.lanes = tensor.moves, None, None
    if scalar_offset is not None and vector_offset is not None:
        fail(tensor, "both scalar_offset and vector_offset", code="S-VOFF", rule="a view moves at run time in one way")
    if scalar_offset is not None:
        dim = _dim(tensor, indirect_dim)
        step = math.prod(tensor.shape[dim + 1 :]) * old_size // new_size
        if isinstance(scalar_offset, VirtualRegister) or is_tensor(scalar_offset):
            if is_tensor(scalar_offset):
                _index_tile(scalar_offset, "scalar_offset")
                if scalar_offset.size != 1:
                    fail(
                        scalar_offset,
                        "scalar_offset of more than one element",
                        fix="a (1, 1) SBUF tensor or a register",
                    )
            new.moves = (Move(scalar_offset, step, 1 << 62),)
        else:
            new.offset += _static(tensor, scalar_offset) * step
    elif vector_offset is not None:
        if tensor.buffer.on_chip or indirect_dim != 0:
            fail(
                tensor, "vector_offset on chip, or with indirect_dim other than 0", code="S-VOFF", rule="HBM rows only"
            )
        if not is_tensor(vector_offset):
            fail(tensor, f"vector_offset {vector_offset!r}", code="S-VOFF", fix="a (P, 1) SBUF tensor of row numbers")
        _index_tile(vector_offset, "vector_offset")
        if vector_offset.size < shape[0]:
            fail(
                vector_offset, f"vector_offset of shape {list(vector_offset.shape)} for {shape[0]} rows", code="S-VOFF",
                rule=f"({shape[0]}, 1), one for each row",
            )  # fmt: skip
        step = math.prod(tensor.shape[1:]) * old_size // new_size
        new.rows = Rows(vector_offset, step, tensor.shape[0])
        new.moves = ()
    _check_pattern(tensor, new)
    return new


def _is_box(tensor: NkiTensor) -> bool:
    """Whether a view is a box of neighbours in memory order: no steps, no repeats, nothing permuted."""
    least = 1
    first = 1 if tensor.buffer.on_chip else 0
    for at, (size, stride) in enumerate(
        zip(reversed(tensor.shape[first:]), reversed(tensor.strides[first:]), strict=True)
    ):
        if size == 1:
            continue
        if stride < least or (at == 0 and stride != 1):
            return False
        least = stride * size
    return True


def _passes_over(tensor: NkiTensor, pattern: Any) -> None:
    """Advise that `.ap` takes the offset of a view but neither its shape nor its strides."""
    from vibeserve.nki.context import core_or_none

    core = core_or_none()
    if core is not None:
        core.session.report(
            "ap-on-a-view", f".ap({pattern}) on a view with the pattern {tensor.get_pattern()}, which it does not compose with",
            code="S-AP-COMPOSE", fix="one .ap over the whole tensor, or view methods alone", soft=True,
        )  # fmt: skip


def _index_tile(tile: NkiTensor, what: str) -> None:
    """Refuse an index tile that does not hold 32-bit integers in SBUF."""
    if tile.buffer.value != "sbuf" or not tile.dtype.is_int or tile.dtype.itemsize != 4:
        fail(tile, f"{what} in {tile.buffer.value} of {tile.dtype}", code="S-VOFF", rule="int32 or uint32 in SBUF")


def _pairs(tensor: NkiTensor, pattern: Any) -> list[list[int]]:
    try:
        pairs = [[_static(tensor, stride), _static(tensor, count)] for stride, count in pattern]
    except (TypeError, ValueError):
        fail(tensor, f"access pattern {pattern!r}", code="S-AP", rule="a list of [stride, count] pairs")
    if not pairs:
        fail(tensor, "an empty access pattern", code="S-AP", rule="at least one [stride, count] pair")
    return pairs


def _check_pattern(tensor: NkiTensor, new: NkiTensor) -> None:
    if min(new.shape) < 1:
        fail(
            tensor, f"access pattern {new.get_pattern()} with a count below 1", code="S-AP", rule="counts are positive"
        )
    if len(new.shape) > MAX_RANK and tensor.buffer.on_chip:
        fail(tensor, f"access pattern of rank {len(new.shape)}", code="S-RANK", rule=f"at most {MAX_RANK} dimensions")
    if tensor.buffer.on_chip:
        unit = new.free_unit()
        if new.shape[0] > 1 and new.strides[0] != unit:
            fail(
                tensor,
                f"partition stride {new.strides[0]} in access pattern {new.get_pattern()}",
                code="S-AP-PSTRIDE",
                rule=f"on chip the first stride is the free element count of the storage, {unit}",
                fix=f"[[{unit}, {new.shape[0]}], ...]",
            )
        if new.shape[0] == 1:
            new.strides = (unit, *new.strides[1:])
    if new.rows is None and not new.moves:
        storage = new.storage
        total = storage.count * storage.dtype.itemsize // new.dtype.itemsize
        reach = sum((size - 1) * stride for size, stride in zip(new.shape, new.strides, strict=True))
        if new.offset < 0 or new.offset + reach >= total:
            fail(
                tensor,
                f"access pattern {new.get_pattern()} at offset {new.offset} leaves the tensor of {total} elements",
                code="NCC_ESMP002",
                rule="offset + sum((count - 1) * stride) < elements",
            )


def _may_reinterpret(tensor: NkiTensor, dtype: DType) -> None:
    if tensor.storage.inflated and dtype.itemsize != 4:
        fail(
            tensor, f"reading {tensor.dtype} bits as {dtype} under NKI_PRECISE_FP=0", code="NKI-PRECISE-FP",
            rule="low precision is kept in float32 there, so it has no 16- or 8-bit pattern", fix="NKI_PRECISE_FP=1",
        )  # fmt: skip


def reinterpret(tensor: NkiTensor, dtype: DType, shape: tuple[int, ...] | None = None) -> NkiTensor:
    """See `NkiTensor.view`."""
    if shape is not None:
        from vibeserve.nki import shapes

        if is_dense(tensor.shape[1:], tensor.strides[1:]) and len(tensor.shape) > 2:
            tensor = shapes.flatten_dims(tensor, 1, len(tensor.shape) - 1)  # so that any last dimension is a whole one
        return shapes.reshape(reinterpret(tensor, dtype), shape)
    if dtype is tensor.dtype:
        return tensor
    if tensor.is_indirect() and (tensor.rows is not None or tensor.lanes is not None):
        fail(tensor, "view after vector_select", code="V5-VIEW-VSEL", rule="reinterpret first, then select")
    _may_reinterpret(tensor, dtype)
    old, new = tensor.dtype.itemsize, dtype.itemsize
    if old == new:
        return tensor._view(tensor.shape, tensor.strides, tensor.offset, dtype=dtype)
    if tensor.strides[-1] != 1 and tensor.shape[-1] != 1:
        fail(
            tensor,
            f"{tensor.dtype} to {dtype} over a last dimension with stride",
            rule="the last dimension is contiguous",
        )
    scaled = (*tensor.strides[:-1], tensor.offset, *(move.step for move in tensor.moves))
    if tensor.shape[-1] * old % new or any(value * old % new for value in scaled):
        fail(
            tensor,
            f"{tensor.dtype} to {dtype}",
            rule="the last dimension and all strides are whole numbers of elements",
        )
    shape = (*tensor.shape[:-1], tensor.shape[-1] * old // new)
    strides = (*(stride * old // new for stride in tensor.strides[:-1]), 1)
    result = tensor._view(shape, strides, tensor.offset * old // new, dtype=dtype)
    result.moves = tuple(move._replace(step=move.step * old // new) for move in tensor.moves)
    return result


def indirect(tensor: NkiTensor, index_tensor: NkiTensor, num_elem: int | None) -> NkiTensor:
    """See `NkiTensor.indirect`."""
    from vibeserve.nki.targets import generation
    from vibeserve.nki.tensor import Lanes

    if generation() < 4:
        fail(tensor, "tensor indirection", code="S-TI", rule="trn3 and later")
    if not is_tensor(index_tensor) or index_tensor.buffer.value != "sbuf" or index_tensor.shape[0] != tensor.shape[0]:
        fail(tensor, f"indirect index {index_tensor!r}", code="S-TI", rule="an SBUF tensor of as many partitions")
    columns = index_tensor.size // index_tensor.shape[0]
    count = int(num_elem) if num_elem is not None else min(16, tensor.shape[0]) * columns
    new = tensor._view((tensor.shape[0], count), (tensor.strides[0], 0), tensor.offset)
    new.lanes = Lanes((index_tensor, tensor), count)
    return new
