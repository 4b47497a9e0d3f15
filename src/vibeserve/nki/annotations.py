"""Small pieces of the vendor's outer modules: type annotations, meta tensors, casts on the host, ahead-of-time compile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from vibeserve.nki.dtypes import DType, from_f32, pack_x4, resolve, to_f32
from vibeserve.nki.errors import NotSimulatedError


@dataclass(frozen=True)
class TensorAnnotation:
    """`nt.tensor[128, 512]`: an annotation of a kernel parameter (also in `nt.tensor | None`); it checks nothing."""

    shape: tuple[Any, ...] = ()
    mutable: bool = False

    def __getitem__(self, shape: Any) -> TensorAnnotation:
        return TensorAnnotation(shape if isinstance(shape, tuple) else (shape,), self.mutable)

    def __call__(self, *shape: Any) -> TensorAnnotation:
        return self[shape]

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007 (these are objects)

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]  # noqa: UP007


tensor = TensorAnnotation()
mutable_tensor = TensorAnnotation(mutable=True)


@dataclass(frozen=True)
class meta_tensor:  # noqa: N801
    """`nki.meta.tensor(shape, dtype)`: a tensor's shape and dtype without its values."""

    shape: tuple[int, ...]
    dtype: Any
    name: str = ""


def static_cast(values: np.ndarray, dtype: Any) -> np.ndarray:
    """A host array cast to an NKI dtype (x4 types pack the last dimension by four)."""
    target = resolve(dtype)
    assert isinstance(target, DType)
    with np.errstate(all="ignore"):
        return _cast(values, target)


def _cast(values: np.ndarray, target: DType) -> np.ndarray:
    if target.kind == "packed":
        return pack_x4(to_f32(values).reshape(*values.shape[:-1], values.shape[-1] // 4, 4), target)
    return np.asarray(values).astype(target.dtype) if target.is_int else from_f32(to_f32(np.asarray(values)), target)


def compile_kernel(function: Callable[..., Any], **options: Any) -> Any:
    """Compiling to a device binary needs the device's compiler."""
    raise NotSimulatedError("nki.compiler.kernel_builder.compile_kernel")
