"""`NkiTensor`: a typed view over a storage. Views share the storage and cost nothing; writes go through them.

Element (i0, i1, ...) of a view lies `offset + sum(strides[k] * i_k)` elements (of the view's dtype) from the start of
the storage. A view may also move at run time (`moves`), take its rows through an index tensor (`rows`), or gather along
the free dimension (`lanes`); those are resolved when an instruction runs (see `access`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec
import numpy as np

from vibeserve.nki import shapes, views
from vibeserve.nki.dtypes import DType, resolve
from vibeserve.nki.errors import KernelError
from vibeserve.nki.memory import MemoryRegion, Storage
from vibeserve.nki.registers import VirtualRegister


class Move(NamedTuple):
    """A run-time shift: `source` holds an integer in [0, limit); each unit is `step` elements."""

    source: Any
    step: int
    limit: int


class Rows(NamedTuple):
    """Row p of the view is row index[p] of a table of `limit` rows, `step` elements apart."""

    index: Any
    step: int
    limit: int


class Lanes(NamedTuple):
    """Column i of the view in a group of partitions is column index[i % group, i // group] of the base."""

    index: Any
    width: int


class NkiTensor(msgspec.Struct, eq=False):
    """A tensor, or a view of one.

    `shape`, `strides` and `offset` are in elements; `dtype` is an NKI dtype; `buffer` a `MemoryRegion`. Made by
    `nl.ndarray` and by views. (A Struct, since one is made for every view of a run.)
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: DType
    storage: Storage
    buffer: MemoryRegion
    name: str = ""
    moves: tuple[Move, ...] = ()
    rows: Rows | None = None
    lanes: Lanes | None = None
    truth: bool = False
    _array: np.ndarray | None = None
    _key: Any = None

    # -- facts -------------------------------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def on_chip(self) -> bool:
        return self.buffer.on_chip

    @property
    def address(self) -> Any:
        return self.storage.address

    def held(self) -> DType:
        """The element type that its bytes are in (float32 for low precision under NKI_PRECISE_FP=0)."""
        return self.storage.held if self.dtype is self.storage.dtype else self.dtype

    def free_unit(self) -> int:
        """Elements of this view's dtype in one partition of the storage."""
        storage = self.storage
        if self.dtype.itemsize == storage.dtype.itemsize:
            return storage.free
        return storage.free * storage.dtype.itemsize // self.dtype.itemsize

    def start_partition(self) -> int:
        """The first partition that the view touches."""
        unit = self.free_unit()
        return self.offset // unit if unit else 0

    def start(self) -> int:
        """The offset where the view stands now, run-time moves included."""
        offset = self.offset
        for move in self.moves:
            offset += move_value(move) * move.step
        return offset

    def extent(self) -> tuple[int, int]:
        """[low, high) elements from the storage's start between which the view lies."""
        start = self.start()
        reach = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return start, start + reach + 1

    def key(self) -> Any:
        """What rules can depend on, hashable: cached for each view."""
        found = self._key
        if found is None:
            in_psum = self.buffer is MemoryRegion.psum
            found = self._key = (
                self.shape, self.strides, self.dtype.name, self.buffer.label, self.start_partition() if self.on_chip else 0,
                (self.offset % self.free_unit(), self.storage.address) if in_psum else None,
                bool(self.moves), None if self.rows is None else self.rows.index.key(),
                None if self.lanes is None else _place_key(self.lanes.index[0]), self.storage.external,
            )  # fmt: skip
        return found

    def covers_storage(self) -> bool:
        """Whether the view is the whole storage, dense and in order."""
        return (
            self.offset == 0
            and not self.moves
            and self.rows is None
            and self.lanes is None
            and self.size * self.dtype.itemsize == self.storage.count * self.storage.dtype.itemsize
            and views.is_dense(self.shape, self.strides)
        )

    def without_repeats(self) -> NkiTensor:
        """The same elements with each stride-0 dimension taken once."""
        shape = tuple(1 if stride == 0 else size for size, stride in zip(self.shape, self.strides, strict=True))
        return self._view(shape, self.strides, self.start(), plain=True)

    def is_contiguous(self) -> bool:
        """Row-major and dense; on chip the partition dimension is left out."""
        first = 1 if self.on_chip else 0
        return views.is_dense(self.shape[first:], self.strides[first:])

    def is_indirect(self) -> bool:
        """Whether an index tensor or register moves the view at run time."""
        return bool(self.moves) or self.rows is not None or self.lanes is not None

    has_dynamic_access = is_indirect

    def get_pattern(self) -> list[list[int]]:
        """[[stride, count], ...] of the view, in shape order."""
        return [[stride, size] for stride, size in zip(self.strides, self.shape, strict=True)]

    def __repr__(self) -> str:
        name = f" '{self.name or self.storage.name}'" if self.name or (self.storage and self.storage.name) else ""
        return f"{self.buffer.value} {self.dtype}{list(self.shape)}{name}"

    def __getattr__(self, name: str) -> Any:
        from vibeserve.nki.legacy import no_attribute

        raise no_attribute("NkiTensor", name)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        raise KernelError("iterating over a tensor", code="L-LIB", fix="loop over range(tensor.shape[0]) and slice it")

    __array_ufunc__ = None  # numpy leaves its operators to the tensor, which has none

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise KernelError(
            "a tensor handed to NumPy",
            code="L-LIB",
            rule="libraries do not compute with tensors; Python does not know their values",
            fix="instructions, or functions of nki.language such as nl.exp(x), nl.maximum(x, y) and nl.sum(x, axis=1)",
        )

    def __bool__(self) -> bool:
        if self.truth:
            from vibeserve.nki.access import read

            return bool(np.all(read(self) != 0))
        raise KernelError(
            "a tensor used as a condition",
            code="L-TENSOR-TRUTH",
            rule="Python control flow cannot depend on the contents of a tensor",
            fix="to ask whether it was given, write 'tensor is not None'; else select with nl.where",
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        raise KernelError(
            "assignment into a tensor",
            code="B1-RESULT",
            rule="instructions write their dst operand",
            fix="nisa.tensor_copy(dst=tile[...], src=value), or pass dst=tile[...] to the instruction",
        )

    # -- making views ------------------------------------------------------------------------------------------------

    def _view(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        *,
        dtype: DType | None = None,
        plain: bool = False,
    ) -> NkiTensor:
        if dtype is None:
            dtype = self.dtype
        if plain:
            return NkiTensor(shape, strides, offset, dtype, self.storage, self.buffer, self.name, truth=self.truth)
        return NkiTensor(
            shape, strides, offset, dtype, self.storage, self.buffer, self.name, self.moves, self.rows, self.lanes, self.truth
        )  # fmt: skip

    def __getitem__(self, key: Any) -> NkiTensor:
        return views.index(self, key)

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """`t[.., start:end:step, ..]` on one dimension; 0 <= start < end <= shape[dim], step >= 1."""
        return views.slice_dim(self, dim, start, end, step)

    def select(self, dim: int, index: Any) -> NkiTensor:
        """One element of `dim`, which is dropped; `index` is an int, a register or a (1, 1) SBUF tensor."""
        return views.select(self, dim, index)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Row p of the result is row `vector_offset[p]` of this HBM tensor."""
        return views.vector_select(self, dim, vector_offset)

    def ap(
        self,
        pattern: Any = None,
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: Any = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """A raw [[stride, count], ...] view over the storage; see docs/nki.md for offsets."""
        return views.access_pattern(self, pattern, offset, scalar_offset, vector_offset, indirect_dim, dtype)

    def view(self, dtype: Any, shape: Any = None) -> NkiTensor:
        """The bits read as another dtype; the last dimension is scaled by the sizes' ratio, or `shape` says what comes of it.

        Only `dtype` is a parameter today; published kernels give both.
        """
        return views.reinterpret(self, as_dtype(dtype), None if shape is None else _ints(shape, ()))

    def reinterpret_cast(self, dtype: Any) -> NkiTensor:
        """The same as `view`."""
        return views.reinterpret(self, as_dtype(dtype))

    def reshape(self, shape: Any, *sizes: Any) -> NkiTensor:
        """Another shape over the same elements, where that needs no copy; on chip dim 0 stays."""
        return shapes.reshape(self, _ints(shape, sizes))

    def reshape_dim(self, dim: int, shape: Any) -> NkiTensor:
        """Split one dimension; one -1 allowed."""
        return shapes.reshape_dim(self, dim, shape)

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Merge the dimensions from `start_dim` to `end_dim`, both included."""
        return shapes.flatten_dims(self, start_dim, end_dim)

    def permute(self, dims: Any, *others: Any) -> NkiTensor:
        """Reorder the dimensions; on chip dim 0 stays first."""
        return shapes.permute(self, _ints(dims, others))

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """A size-1 dimension repeated `size` times (stride 0)."""
        return shapes.broadcast(self, dim, size)

    def expand_dim(self, dim: int) -> NkiTensor:
        """Insert a size-1 dimension before `dim`."""
        return shapes.expand_dim(self, dim)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Remove a size-1 dimension."""
        return shapes.squeeze_dim(self, dim)

    def rearrange(self, src_pattern: Any, dst_pattern: Any, fixed_sizes: Any = None) -> NkiTensor:
        """Named split, reorder and merge: ("b", ("h", "w")) to (("b", "h"), "w")."""
        return shapes.rearrange(self, src_pattern, dst_pattern, fixed_sizes)

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Gather (or scatter, as dst) along the free dimension by an index tensor; trn3 and later."""
        return views.indirect(self, index, num_elem)


def new_tensor(shape: tuple[int, ...], dtype: DType, storage: Storage, buffer: MemoryRegion, name: str) -> NkiTensor:
    """All of a storage, row-major."""
    return NkiTensor(shape, views.dense_strides(shape), 0, dtype, storage, buffer, name)


def _place_key(tensor: NkiTensor) -> Any:
    """What rules can depend on of an index tensor: its form and which one it is."""
    return (tensor.key(), tensor.storage.number, tensor.offset)


def _ints(first: Any, others: tuple[Any, ...]) -> tuple[int, ...]:
    """A sequence of ints, or ints that were given one by one."""
    items = first if not others and np.iterable(first) else (first, *others)
    return tuple(views.whole(item) for item in items)


def move_value(move: Move) -> int:
    """The integer that a run-time shift holds now."""
    source = move.source
    if isinstance(source, VirtualRegister):
        return source.value()
    from vibeserve.nki.access import read

    return int(read(source).reshape(-1)[0])


def as_dtype(value: Any) -> DType:
    """`value` as an element type, or a KernelError that names the type to write."""
    if type(value) is DType:
        return value
    found = resolve(value, strict=False)
    if found is None:
        raise KernelError(
            f"{value!r} is not an NKI dtype",
            code="NCC_ESPP004",
            rule="64-bit, complex and object types do not exist on the device",
            fix="nl.float32, nl.bfloat16, nl.float16, nl.int32, nl.uint32, nl.uint8, ...",
        )
    return found
