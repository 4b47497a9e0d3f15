"""Views of other shapes over the same elements: reshape, split, merge, permute, repeat, and named rearrangement."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from vibeserve.nki.views import _dim, fail, whole

if TYPE_CHECKING:
    from vibeserve.nki.tensor import NkiTensor


def reshape(tensor: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """See `NkiTensor.reshape`."""
    if -1 in shape:
        known = -math.prod(shape)
        if shape.count(-1) > 1 or known <= 0 or tensor.size % known:
            fail(
                tensor, f"reshape to {shape}", code="V5-RESHAPE", rule="one -1, and the rest divides the element count"
            )
        shape = tuple(tensor.size // known if size == -1 else size for size in shape)
    if math.prod(shape) != tensor.size or not shape or min(shape) < 1:
        fail(
            tensor,
            f"reshape of {tensor.size} elements to {shape}",
            code="V5-RESHAPE",
            rule="the element count stays",
        )
    if tensor.buffer.on_chip and shape[0] != tensor.shape[0]:
        fail(tensor, f"reshape to {shape}", code="S-PCONT", rule="on chip dimension 0 stays as it is")
    if tensor.rows is not None and shape[0] != tensor.shape[0]:
        fail(tensor, f"reshape to {shape}", rule="the dimension that an index tensor moves stays")
    strides = reshape_strides(tensor.shape, tensor.strides, shape)
    if strides is None:
        fail(
            tensor,
            f"reshape of strides {tensor.strides} to {shape}",
            code="V5-RESHAPE",
            rule="only dimensions that are contiguous in memory can be merged",
            fix="copy into a dense tensor first",
        )
    if tensor.buffer.on_chip:
        strides = (tensor.strides[0], *strides[1:])
    return tensor._view(shape, strides, tensor.offset)


def reshape_strides(shape: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides that give the same elements in the same order under another shape; None where that needs a copy."""
    old = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    result = [0] * len(new)
    at = 0
    dims = [dim for dim, size in enumerate(new) if size != 1]
    group: list[int] = []
    total = 1
    for dim in dims:
        group.append(dim)
        total *= new[dim]
        if at >= len(old):
            return None
        have, stop = old[at][0], at + 1
        while have < total and stop < len(old):
            have *= old[stop][0]
            stop += 1
        if have < total or have % total:
            return None
        if have != total:
            continue
        for first, second in zip(old[at : stop - 1], old[at + 1 : stop], strict=True):
            if first[1] != second[0] * second[1]:
                return None
        stride = old[stop - 1][1]
        for inner in reversed(group):
            result[inner] = stride
            stride *= new[inner]
        group, total, at = [], 1, stop
    if group or at != len(old):
        return None
    for dim in range(len(new) - 1, -1, -1):
        if new[dim] == 1:
            result[dim] = result[dim + 1] * new[dim + 1] if dim + 1 < len(new) else 1
    return tuple(result)


def reshape_dim(tensor: NkiTensor, dim: int, shape: Any) -> NkiTensor:
    """See `NkiTensor.reshape_dim`."""
    dim = _dim(tensor, dim)
    if isinstance(shape, int) or not np.iterable(shape):
        fail(tensor, f"reshape_dim({dim}, {shape!r})", rule="the sizes are a tuple, with one -1 at most")
    sizes = [whole(size) for size in shape]
    size = tensor.shape[dim]
    if sizes.count(-1) == 1:
        known = -math.prod(sizes)
        if known == 0 or size % known:
            fail(
                tensor,
                f"dimension {dim} of size {size} split into {tuple(sizes)}",
                code="V5-RESHAPE",
                rule="the rest divides it",
            )
        sizes = [size // known if part == -1 else part for part in sizes]
    if math.prod(sizes) != size or min(sizes, default=0) < 1:
        fail(
            tensor,
            f"dimension {dim} of size {size} split into {tuple(sizes)}",
            code="V5-RESHAPE",
            rule="the product stays",
        )
    if dim == 0 and (tensor.buffer.on_chip or tensor.rows is not None) and sizes[0] != size:
        fail(tensor, "the partition dimension split", code="S-PCONT", rule="on chip dimension 0 stays as it is")
    stride = tensor.strides[dim]
    inner = []
    for part in reversed(sizes):
        inner.append(stride)
        stride *= part
    strides = (*tensor.strides[:dim], *reversed(inner), *tensor.strides[dim + 1 :])
    return tensor._view((*tensor.shape[:dim], *sizes, *tensor.shape[dim + 1 :]), strides, tensor.offset)


def flatten_dims(tensor: NkiTensor, start_dim: int, end_dim: int) -> NkiTensor:
    """See `NkiTensor.flatten_dims`."""
    first, last = _dim(tensor, start_dim), _dim(tensor, end_dim)
    if first > last:
        fail(tensor, f"flatten of dimensions {start_dim} to {end_dim}", rule="the first is not after the last")
    if first == 0 and last > 0 and (tensor.buffer.on_chip or tensor.rows is not None):
        fail(tensor, "the partition dimension merged", code="S-PCONT", rule="on chip dimension 0 stays as it is")
    merged = math.prod(tensor.shape[first : last + 1])
    inner = reshape_strides(tensor.shape[first : last + 1], tensor.strides[first : last + 1], (merged,))
    if inner is None:
        fail(
            tensor, f"flatten of dimensions {first} to {last} with strides {tensor.strides[first : last + 1]}",
            code="V5-RESHAPE", rule="merged dimensions are contiguous in memory",
        )  # fmt: skip
    shape = (*tensor.shape[:first], merged, *tensor.shape[last + 1 :])
    return tensor._view(shape, (*tensor.strides[:first], *inner, *tensor.strides[last + 1 :]), tensor.offset)


def permute(tensor: NkiTensor, dims: tuple[int, ...]) -> NkiTensor:
    """See `NkiTensor.permute`."""
    if sorted(dims) != list(range(len(tensor.shape))):
        fail(tensor, f"permute {dims}", rule="each dimension once")
    if dims[0] != 0 and (tensor.buffer.on_chip or tensor.rows is not None):
        fail(tensor, f"permute {dims} moves the partition dimension", code="S-PCONT", fix="nisa.nc_transpose")
    return tensor._view(
        tuple(tensor.shape[dim] for dim in dims), tuple(tensor.strides[dim] for dim in dims), tensor.offset
    )


def broadcast(tensor: NkiTensor, dim: int, size: int) -> NkiTensor:
    """See `NkiTensor.broadcast`."""
    dim = _dim(tensor, dim)
    if tensor.shape[dim] != 1:
        fail(
            tensor, f"broadcast of dimension {dim} of size {tensor.shape[dim]}", rule="only a size-1 dimension repeats"
        )
    if dim == 0 and tensor.buffer.on_chip:
        fail(tensor, "broadcast over partitions", code="S-PCONT", fix="a matmul with ones, nc_stream_shuffle, or a DMA")
    shape = (*tensor.shape[:dim], int(size), *tensor.shape[dim + 1 :])
    return tensor._view(shape, (*tensor.strides[:dim], 0, *tensor.strides[dim + 1 :]), tensor.offset)


def expand_dim(tensor: NkiTensor, dim: int) -> NkiTensor:
    """See `NkiTensor.expand_dim`."""
    dim = _dim(tensor, dim, extra=1)
    if dim == 0 and tensor.buffer.on_chip:
        fail(
            tensor,
            "a dimension in front of the partition dimension",
            code="S-PCONT",
            rule="on chip partitions are dimension 0",
        )
    stride = tensor.strides[dim] * tensor.shape[dim] if dim < len(tensor.shape) else 1
    shape = (*tensor.shape[:dim], 1, *tensor.shape[dim:])
    return tensor._view(shape, (*tensor.strides[:dim], stride, *tensor.strides[dim:]), tensor.offset)


def squeeze_dim(tensor: NkiTensor, dim: int) -> NkiTensor:
    """See `NkiTensor.squeeze_dim`."""
    dim = _dim(tensor, dim)
    if tensor.shape[dim] != 1:
        fail(tensor, f"squeeze of dimension {dim} of size {tensor.shape[dim]}", rule="only a size-1 dimension goes")
    if dim == 0 and tensor.buffer.on_chip:
        fail(tensor, "the partition dimension dropped", code="S-PCONT", rule="on chip partitions are dimension 0")
    shape = tensor.shape[:dim] + tensor.shape[dim + 1 :]
    strides = tensor.strides[:dim] + tensor.strides[dim + 1 :]
    return tensor._view(shape or (1,), strides or (1,), tensor.offset)


def rearrange(tensor: NkiTensor, source: Any, target: Any, fixed: Any = None) -> NkiTensor:
    """See `NkiTensor.rearrange`."""
    if not isinstance(fixed, dict | None) or not all(isinstance(names, tuple | list) for names in (source, target)):
        fail(
            tensor,
            f"rearrange: src_pattern is {source!r}, dst_pattern {target!r}, fixed_sizes {fixed!r}",
            rule="tuples of names, and a dict of sizes",
        )
    sizes = dict(fixed or {})
    groups = [group if isinstance(group, tuple | list) else (group,) for group in source]
    if len(groups) != len(tensor.shape):
        fail(
            tensor,
            f"rearrange from {source!r}: {len(groups)} dimensions named",
            code="S-RANK",
            rule=f"the tensor has {tensor.ndim}",
        )
    result = tensor
    names: list[str] = []
    for dim in range(len(groups) - 1, -1, -1):
        group = groups[dim]
        parts = [sizes.get(name, -1) for name in group]
        if len(group) == 1:
            parts = [tensor.shape[dim]]
        if parts.count(-1) > 1:
            fail(tensor, f"rearrange: more than one unknown size in {group!r}", fix="give fixed_sizes")
        if len(group) != 1:
            result = reshape_dim(result, dim, parts)
        names[:0] = list(group)
    wanted = [group if isinstance(group, tuple | list) else (group,) for group in target]
    flat = [name for group in wanted for name in group]
    if sorted(flat) != sorted(names):
        fail(tensor, f"rearrange from {source!r} to {target!r}", rule="the same names on both sides")
    result = permute(result, tuple(names.index(name) for name in flat))
    for at, group in enumerate(wanted):
        if len(group) > 1:
            result = flatten_dims(result, at, at + len(group) - 1)
    return result
