"""`TensorView`: chains of slices, splits, merges, permutations and broadcasts of a tensor, without a copy."""

from __future__ import annotations

from typing import Any

from vibeserve.nki.lib.binding import nl
from vibeserve.nki.lib.checks import kernel_assert


class TensorView(nl.NKIObject):  # type: ignore[misc, name-defined]
    """A view of a tensor in HBM, SBUF or PSUM.

    Each method gives a new view; the tensor's bytes stay where they are. `get_view()` is what an instruction takes.
    On chip, dimension 0 is the partition: it stays first, whole in number, and is never merged, split or broadcast.
    """

    def __init__(self, base_tensor: Any):
        nested = isinstance(base_tensor, TensorView)
        self.base_tensor: Any = base_tensor.base_tensor if nested else base_tensor
        self._at: Any = base_tensor.get_view() if nested else base_tensor

    def _moved(self, at: Any) -> TensorView:
        view = TensorView(self.base_tensor)
        view._at = at
        return view

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._at.shape)

    @property
    def sizes(self) -> list[int]:
        return list(self._at.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next, by dimension."""
        return tuple(self._at.strides)

    @property
    def offset(self) -> int:
        """Elements from the tensor's start to the view's."""
        return int(self._at.offset)

    @property
    def dtype(self) -> Any:
        return self._at.dtype

    @property
    def buffer(self) -> Any:
        return self._at.buffer

    def get_dim(self) -> int:
        """The number of dimensions."""
        return len(self._at.shape)

    def get_view(self) -> Any:
        """The tensor to hand to an instruction."""
        return self._at

    def is_sbuf(self) -> bool:
        return bool(self.buffer == nl.sbuf)

    def is_psum(self) -> bool:
        return bool(self.buffer == nl.psum)

    def is_hbm(self) -> bool:
        return self.buffer in (nl.hbm, nl.shared_hbm, nl.private_hbm)

    def has_dynamic_access(self) -> bool:
        """Whether a value of run time moves the view."""
        return bool(self._at.has_dynamic_access())

    @staticmethod
    def get_trivial_strides(sizes: Any, base_stride: int = 1) -> tuple[int, ...]:
        """The row-major strides of a dense tensor of these sizes."""
        strides: list[int] = []
        step = base_stride
        for size in reversed(tuple(sizes)):
            strides.insert(0, step)
            step *= size
        return tuple(strides)

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> TensorView:
        """Every `step`-th element of `dim` from `start` to `end` (exclusive)."""
        self._check(dim)
        kernel_assert(0 <= start < end <= self.shape[dim], f"slice [{start}:{end}] of dim {dim} of {self.shape}")
        return self._moved(self._at.slice(dim, start, end, step))

    def permute(self, dims: Any) -> TensorView:
        """The dimensions in another order."""
        order = tuple(dims)
        kernel_assert(sorted(order) == list(range(self.get_dim())), f"permute {order} of {self.shape}")
        return self._moved(self._at.permute(order))

    def broadcast(self, dim: int, size: int) -> TensorView:
        """A dimension of size 1, repeated."""
        self._check(dim)
        kernel_assert(self.shape[dim] == 1, f"broadcast of dim {dim} of {self.shape}: its size is not 1")
        return self._moved(self._at.broadcast(dim, size))

    def reshape_dim(self, dim: int, shape: Any) -> TensorView:
        """One dimension split into several; one of them may be -1."""
        self._check(dim)
        return self._moved(self._at.reshape_dim(dim, tuple(shape)))

    def flatten_dims(self, start_dim: int, end_dim: int) -> TensorView:
        """The dimensions from `start_dim` to `end_dim` (included) merged into one."""
        self._check(start_dim)
        self._check(end_dim)
        return self._moved(self._at.flatten_dims(start_dim, end_dim))

    def expand_dim(self, dim: int) -> TensorView:
        """A dimension of size 1 put before `dim`."""
        return self._moved(self._at.expand_dim(dim))

    def squeeze_dim(self, dim: int) -> TensorView:
        """A dimension of size 1 taken out."""
        self._check(dim)
        kernel_assert(self.shape[dim] == 1, f"squeeze of dim {dim} of {self.shape}: its size is not 1")
        return self._moved(self._at.squeeze_dim(dim))

    def select(self, dim: int, index: Any) -> TensorView:
        """One element of `dim`, which is dropped; `index` is an int, a register or a (1, 1) tensor in SBUF."""
        self._check(dim)
        return self._moved(self._at.select(dim, index.get_view() if isinstance(index, TensorView) else index))

    def vector_select(self, dim: int, vector_offset: Any) -> TensorView:
        """Row p of the view is row `vector_offset[p]` of the tensor in HBM."""
        return self._moved(self._at.vector_select(dim, vector_offset))

    def rearrange(self, src_pattern: Any, dst_pattern: Any, fixed_sizes: Any = None) -> TensorView:
        """Named split, reorder and merge: ("b", ("h", "w")) to (("b", "h"), "w")."""
        return self._moved(self._at.rearrange(src_pattern, dst_pattern, fixed_sizes))

    def reshape(self, shape: Any) -> TensorView:
        """Another shape over the same elements, where that needs no copy."""
        return self._moved(self._at.reshape(tuple(shape)))

    def reinterpret_cast(self, dtype: Any) -> TensorView:
        """The bits read as another dtype."""
        return self._moved(self._at.reinterpret_cast(dtype))

    def _check(self, dim: int) -> None:
        kernel_assert(0 <= dim < self.get_dim(), f"dim {dim} of a view of {self.get_dim()} dimensions")
