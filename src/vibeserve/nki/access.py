"""Reading and writing through views: plain, moved at run time, and through index tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.nki import overlaps
from vibeserve.nki.dtypes import float32, from_f32, round_tf32, tfloat32, to_f32
from vibeserve.nki.errors import KernelError
from vibeserve.nki.memory import EMPTY, FULL, GONE, PARTIAL
from vibeserve.nki.tensor import NkiTensor, move_value


class OutOfRangeError(KernelError):
    """A run-time index outside of the tensor."""


def _out_of_range(tensor: NkiTensor, what: str) -> OutOfRangeError:
    return OutOfRangeError(
        f"run-time index out of range: {what}",
        code="NCC_EVRF056",
        rule="0 <= index < size, unless oob_mode=nisa.oob_mode.skip",
        operands=repr(tensor),
    )


def array(tensor: NkiTensor) -> np.ndarray:
    """The elements of a view without index tensors, as a NumPy view that writes through."""
    found = tensor._array
    if found is not None:
        return found
    held = tensor.held()
    size = held.itemsize
    offset = tensor.offset
    if tensor.moves:
        offset = moved(tensor)
    try:
        found = np.ndarray(
            tensor.shape, held.stored, tensor.storage.data, offset * size, tuple([s * size for s in tensor.strides])
        )
    except (ValueError, TypeError):
        raise KernelError(
            f"the view leaves its tensor: {tensor.get_pattern()} at offset {offset}",
            code="NCC_ESMP002",
            operands=repr(tensor),
        ) from None
    if not tensor.moves:
        tensor._array = found
    return found


def moved(tensor: NkiTensor) -> int:
    """The offset after run-time shifts; OutOfRangeError where that leaves the tensor."""
    offset = tensor.offset
    for move in tensor.moves:
        value = move_value(move)
        if not 0 <= value < move.limit:
            raise _out_of_range(tensor, f"{value} is not in [0, {move.limit})" if move.limit < 1 << 60 else f"{value}")
        offset += value * move.step
    storage = tensor.storage
    total = storage.count * storage.dtype.itemsize // tensor.dtype.itemsize
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    if offset < 0 or offset + reach >= total:
        raise _out_of_range(tensor, f"elements {offset}..{offset + reach} of {total}")
    return offset


def table(tensor: NkiTensor, flat: np.ndarray, itemsize: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(table of rows over `flat`, row numbers, which of them are in range) of a view that takes rows by an index."""
    rows = tensor.rows
    assert rows is not None
    numbers = read(rows.index).reshape(rows.index.shape[0], -1).T.reshape(-1).astype(np.int64)[: tensor.shape[0]]
    total = flat.size // itemsize
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape[1:], tensor.strides[1:], strict=True))
    step = rows.step
    fits = (total - 1 - reach - tensor.offset) // step + 1 if step else rows.limit
    count = max(0, min(rows.limit, fits))
    held = tensor.held()
    dtype = held.stored if flat.dtype == np.uint8 else flat.dtype
    strides = tuple(stride * itemsize for stride in (step, *tensor.strides[1:]))
    view = np.ndarray((count, *tensor.shape[1:]), dtype, flat, tensor.offset * itemsize, strides)
    return view, numbers, (numbers >= 0) & (numbers < count)


def gather(tensor: NkiTensor, *, skip: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
    """(values, valid rows or None for all) of any view, in the dtype its bytes are in."""
    if tensor.rows is None:
        return read(tensor), None
    view, numbers, valid = table(tensor, tensor.storage.data, tensor.held().itemsize)
    if not valid.all():
        if not skip:
            bad = int(np.argmin(valid))
            raise _out_of_range(tensor, f"row {numbers[bad]} (lane {bad}) is not in [0, {view.shape[0]})")
        values = np.zeros((numbers.size, *view.shape[1:]), view.dtype)
        values[valid] = view[numbers[valid]]
        return values, valid
    return view[numbers], None


def scatter(tensor: NkiTensor, values: np.ndarray, *, skip: bool = False) -> None:
    """Write rows where the index tensor of the view says; later lanes win."""
    view, numbers, valid = table(tensor, tensor.storage.data, tensor.held().itemsize)
    if not valid.all() and not skip:
        bad = int(np.argmin(valid))
        raise _out_of_range(tensor, f"row {numbers[bad]} (lane {bad}) is not in [0, {view.shape[0]})")
    view[numbers[valid]] = values[valid]
    storage = tensor.storage
    if storage.state == FULL:
        return
    if tensor.dtype.itemsize != storage.dtype.itemsize:
        storage.mark_all()
        return
    if storage.state == EMPTY:
        storage.mask, storage.state = np.zeros(storage.count, np.bool_), PARTIAL
    mask, _, _ = table(tensor, storage.mask, 1)  # type: ignore[arg-type]
    mask[numbers[valid]] = True


def lane_columns(tensor: NkiTensor, group: int) -> np.ndarray:
    """[P, count] column numbers of a view that gathers along the free dimension, `group` partitions together."""
    assert tensor.lanes is not None
    index_tensor, _ = tensor.lanes.index
    index = read(index_tensor).reshape(index_tensor.shape[0], -1).astype(np.int64)
    parts, count = tensor.shape[0], tensor.lanes.width
    if count > min(group, parts) * index.shape[1]:
        raise KernelError(
            f"{count} elements by {index.shape[1]} index columns",
            code="S-TI",
            rule=f"at most {min(group, parts)} for each column: the index of {group} partitions is shared",
            fix="num_elem= of .indirect(), or more index columns",
            operands=repr(tensor),
        )
    columns = np.empty((parts, count), np.int64)
    for first in range(0, parts, group):
        block = index[first : first + group]
        columns[first : first + group] = block.T.reshape(-1)[:count]
    return columns


def lane_base(tensor: NkiTensor) -> np.ndarray:
    """[P, F] elements that a free-dimension gather takes from (a NumPy view)."""
    assert tensor.lanes is not None
    _, base = tensor.lanes.index
    found = array(base)
    return found if found.ndim == 2 else found.reshape(found.shape[0], -1)


def read(tensor: NkiTensor) -> np.ndarray:
    """The elements of any view in the dtype its bytes are in (a NumPy view where that is possible: do not write)."""
    if tensor.rows is not None:
        return gather(tensor)[0]
    if tensor.lanes is not None:
        return np.take_along_axis(lane_base(tensor), lane_columns(tensor, 16), axis=1)
    return array(tensor)


def read_f32(tensor: NkiTensor) -> np.ndarray:
    """The elements as float32."""
    values = read(tensor)
    return values if values.dtype == np.float32 else values.astype(np.float32)


def write(tensor: NkiTensor, values: np.ndarray, *, skip: bool = False) -> None:
    """Write values through a view: raw where they have the dtype of the bytes, else rounded from float32."""
    held = tensor.held()
    if values.dtype != held.stored:
        values = from_f32(to_f32(values), held)
    elif held is tfloat32:
        values = round_tf32(values)
    if values.shape != tensor.shape:
        values = values.reshape(tensor.shape)
    if tensor.rows is not None:
        scatter(tensor, values, skip=skip)
    elif tensor.lanes is not None:
        np.put_along_axis(lane_base(tensor), lane_columns(tensor, 16), values, axis=1)
    else:
        array(tensor)[...] = values


def written(tensor: NkiTensor) -> bool:
    """Whether every element that a read of the view would take was written."""
    storage = tensor.storage
    if storage.state == FULL:
        return True
    if storage.state == GONE:
        storage.refuse_gone()
    if tensor.lanes is not None:
        return True
    if tensor.rows is not None:
        if storage.state == EMPTY:
            return False
        if tensor.dtype.itemsize != storage.dtype.itemsize:
            return True
        mask, numbers, valid = table(tensor, storage.mask, 1)  # type: ignore[arg-type]
        return bool(mask[numbers[valid]].all())
    return storage.all_written(tensor)


def mark(tensor: NkiTensor) -> None:
    """Note that the view was written (rows through an index are noted by `scatter`)."""
    storage = tensor.storage
    if storage.state == FULL or tensor.rows is not None:
        return
    if tensor.lanes is not None:
        storage.mark_all()
    else:
        storage.mark(tensor)


def keep_unwritten(tensor: NkiTensor) -> None:
    """Before an instruction that leaves part of dst as it was: what nobody wrote holds poison, not chance bytes."""
    if tensor.storage.overlap is not None:
        overlaps.fetch(tensor)
    if tensor.storage.state != FULL:
        tensor.storage.poison()


def mark_where(tensor: NkiTensor, chosen: np.ndarray) -> None:
    """Note that only the chosen elements ([P, elements]), or whole partitions ([P]), of a plain view were written."""
    storage = tensor.storage
    if storage.state == FULL:
        return
    if tensor.rows is not None or tensor.lanes is not None or tensor.dtype.itemsize != storage.dtype.itemsize:
        storage.mark_all()
        return
    if storage.state == EMPTY:
        storage.mask, storage.state = np.zeros(storage.count, np.bool_), PARTIAL
    elements = storage._elements(tensor)
    elements[chosen if chosen.ndim == 1 else chosen.reshape(tensor.shape)] = True


def scalar(value: Any, parts: int) -> Any:
    """A scalar operand for arithmetic: a Python number as float32, or a [P, 1] tile as float32 [P, 1]."""
    if isinstance(value, NkiTensor):
        return read_f32(value).reshape(parts, 1)
    return np.float32(value)


__all__ = [
    "OutOfRangeError", "array", "float32", "gather", "mark", "moved", "read", "read_f32", "scalar", "scatter", "write",
    "written",
]  # fmt: skip
