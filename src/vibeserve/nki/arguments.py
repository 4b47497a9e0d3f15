"""Kernel arguments and results: NumPy and torch arrays become HBM tensors and come back; the rest passes through."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np

from vibeserve.nki import races
from vibeserve.nki.context import Session
from vibeserve.nki.dtypes import DType, bool_, by_name, resolve
from vibeserve.nki.errors import NOWHERE, KernelError
from vibeserve.nki.memory import FULL, MemoryRegion, Storage, new_storage
from vibeserve.nki.objects import NKIObject
from vibeserve.nki.tensor import NkiTensor, new_tensor


def is_torch(value: Any) -> bool:
    """Whether a value is a torch tensor (torch is not imported to find out)."""
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach")


def is_array(value: Any) -> bool:
    """Whether a value is a NumPy, torch or JAX array."""
    return isinstance(value, np.ndarray) or is_torch(value) or _is_jax(value)


def _is_jax(value: Any) -> bool:
    return type(value).__module__.split(".")[0] in ("jax", "jaxlib") and hasattr(value, "__array__")


class Inputs:
    """The arrays of one call: each array object is one tensor, written back where the kernel wrote into a copy."""

    def __init__(self, session: Session):
        self.session = session
        self.tensors: dict[int, NkiTensor] = {}
        self.originals: dict[int, Any] = {}
        self.storages: list[Storage] = []  # of arrays that are used as they lie
        self.back: list[tuple[Any, np.ndarray, np.ndarray | None, Storage]] = []
        self.torch = False

    def convert(self, value: Any, where: str, *, held: bool = False) -> Any:
        """An argument as the kernel sees it; `where` names it in messages, `held` says that an object holds it."""
        if is_array(value):
            if getattr(value, "ndim", 1) == 0:
                return value.item()
            return self._tensor(value, where)
        if isinstance(value, np.bool_):
            return bool(value)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, tuple):
            items = [self.convert(item, f"{where}[{i}]") for i, item in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                self._doubtful(where, f"has the keys {list(value)!r}", "B1-DICT-KEY", "string keys")
            return {key: self.convert(item, f"{where}[{key!r}]") for key, item in value.items()}
        if isinstance(value, list):
            if any(is_array(item) for item in value):
                raise KernelError(
                    f"argument {where} is a list of arrays",
                    code="B2-LISTARG",
                    rule="kernel arguments are no lists",
                    fix="pass a tuple",
                )
            if not held:  # an object may hold lists
                self._doubtful(where, f"is the list {value!r}", "B2-LISTARG", "a tuple")
            return value
        if _is_object(value):
            fields = {name: self.convert(item, f"{where}.{name}", held=True) for name, item in _fields(value).items()}
            return _changed(value, fields)
        if isinstance(value, complex | bytes | set | frozenset) or (
            isinstance(value, int) and not -(1 << 31) <= value < 1 << 32
        ):
            self._doubtful(
                where, f"is {value!r}", "L-VALUES",
                "None, bool, 32-bit numbers, strings, tensors, tuples, dicts, enum members, dataclasses and NKIObjects",
            )  # fmt: skip
        return value

    def _doubtful(self, where: str, what: str, code: str, rule: str) -> None:
        """Report an argument that Python runs with and the device's compiler refuses."""
        self.session.report(
            "device-refuses", f"argument {where} {what}: a build for the device fails here", detail=f"allowed: {rule}",
            code=code, fix=f"pass {rule}",
        )  # fmt: skip

    def _tensor(self, value: Any, where: str) -> NkiTensor:
        found = self.tensors.get(id(value))
        if found is not None:
            return self._again(found, where)
        array = value
        if is_torch(value):
            self.torch = True
            array = torch_to_numpy(value, where)
        elif not isinstance(value, np.ndarray):
            array = np.array(value)
        dtype = checked_dtype(array, where)
        if array.size == 0:
            raise KernelError(
                f"argument {where} has shape {array.shape}: nothing in it", code="NKI-SHAPE", rule="sizes are positive"
            )
        region = MemoryRegion.shared_hbm if self.session.cores_per_rank > 1 else MemoryRegion.private_hbm
        inflate = not self.session.precise and dtype.low_precision
        native = array.dtype.isnative
        direct = array.flags.c_contiguous and array.flags.writeable and array.flags.aligned and native and not inflate
        held = array if direct else np.ascontiguousarray(array, None if native else array.dtype.newbyteorder("="))
        if inflate:
            held = held.astype(np.float32)
        elif not direct and np.shares_memory(held, array):
            held = held.copy()
        storage = new_storage(
            region, dtype, array.shape, data=held.reshape(-1).view(np.uint8), name=where, place=NOWHERE, inflate=inflate
        )
        self.session.allocated += 1
        storage.number = self.session.allocated
        if not direct:
            self.back.append((value, array, held.copy(), storage))
        self.originals[storage.number] = (value, held)
        if direct:
            for other in [*self.storages]:
                if np.may_share_memory(storage.data, other.data):
                    races.alias(storage, other)
            self.storages.append(storage)
        tensor = self.tensors[id(value)] = self._told(new_tensor(array.shape, dtype, storage, region, where))
        return tensor

    def _again(self, first: NkiTensor, where: str) -> NkiTensor:
        """A tensor of its own for an array that another argument is as well: the same memory, as far as values go."""
        held = first.storage
        storage = new_storage(
            held.region, held.dtype, first.shape, data=held.data, name=where, place=NOWHERE, inflate=held.inflated
        )
        self.session.allocated += 1
        storage.number = self.session.allocated
        self.originals[storage.number] = self.originals[held.number]
        races.alias(storage, held)
        return self._told(new_tensor(first.shape, first.dtype, storage, first.buffer, where))

    def _told(self, tensor: NkiTensor) -> NkiTensor:
        for observer in self.session.observers:
            observer.allocated(None, tensor.storage)
        return tensor

    def write_back(self) -> None:
        """Put what the kernel wrote into copies of its arguments where it belongs."""
        for value, array, before, storage in self.back:
            now = storage.data.view(storage.held.stored).reshape(array.shape)
            if before is not None and np.array_equal(now.view(np.uint8), before.view(np.uint8)):
                continue
            values = now.astype(array.dtype) if now.dtype != array.dtype else now
            if array.flags.writeable:
                array[...] = values
            elif not is_torch(value):
                raise KernelError(
                    f"the kernel writes its argument '{storage.name}', a read-only array",
                    code="NKI-READONLY",
                    fix="pass a writable copy",
                )

    def result(self, value: Any) -> Any:
        """What the kernel returned as its caller gets it."""
        if isinstance(value, NkiTensor):
            return self._array(value)
        if isinstance(value, tuple | list):
            items = [self.result(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, dict):
            return {key: self.result(item) for key, item in value.items()}
        if _is_object(value):
            return _changed(value, {name: self.result(item) for name, item in _fields(value).items()})
        return value

    def _array(self, tensor: NkiTensor) -> Any:
        storage = tensor.storage
        if not storage.external and storage.region is not MemoryRegion.shared_hbm:
            raise KernelError(
                f"the kernel returns a tensor in {tensor.buffer.value}", code="B2-OUT-HBM", rule="outputs are allocated in nl.shared_hbm",
                operands=f"{tensor!r} allocated at {storage.place}", place=storage.place,
            )  # fmt: skip
        if storage.external and tensor.covers_storage():
            original, _ = self.originals.get(storage.number, (None, None))
            if original is not None and tensor.shape == tuple(original.shape):
                return original
        from vibeserve.nki.access import read, written

        if storage.state != FULL and not written(tensor):
            self._unwritten(tensor)
        values = read(tensor)
        if not self.session.shape_only:
            values = np.array(values)
        if tensor.dtype is bool_:
            values = values.astype(np.bool_)
        return numpy_to_torch(values) if self.torch else values

    def _unwritten(self, tensor: NkiTensor) -> None:
        storage = tensor.storage
        if storage.state == 0:
            raise KernelError(
                f"the kernel returns {storage.label()}, which it never wrote", code="NCC_IGCA090", rule="every output is stored to",
                fix="nisa.dma_copy(dst=output, src=tile)", operands=f"{tensor!r} allocated at {storage.place}", place=storage.place,
            )  # fmt: skip
        storage.poison()
        self.session.report(
            "uninitialised-output", f"part of the output {storage.label()} was never written",
            detail=f"{storage.unwritten} of {storage.count} elements, allocated at {storage.place}", code="NCC_ISIM074",
        )  # fmt: skip


def _is_object(value: Any) -> bool:
    """Whether a value is an object of a dataclass or of a class of the kernel language."""
    return (dataclasses.is_dataclass(value) and not isinstance(value, type)) or isinstance(value, NKIObject)


def _fields(value: Any) -> dict[str, Any]:
    """What an object holds, by name, its slots among it."""
    slots: set[str] = set()
    for cls in type(value).__mro__:
        own = vars(cls).get("__slots__", ())
        slots.update((own,) if isinstance(own, str) else own)
    held = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    return held | getattr(value, "__dict__", {})


def _changed(value: Any, fields: dict[str, Any]) -> Any:
    """A copy of an object with these fields; the object itself where none of them differs."""
    before = _fields(value)
    if all(item is before[name] for name, item in fields.items()):
        return value
    twin = copy.copy(value)
    for name, item in fields.items():
        object.__setattr__(twin, name, item)
    return twin


def checked_dtype(array: np.ndarray, where: str) -> DType:
    """The NKI dtype of an argument in either byte order, or a KernelError that says what to cast it to."""
    dtype = resolve(array.dtype if array.dtype.isnative else array.dtype.newbyteorder("="), strict=False)
    if dtype is None:
        wanted = {"f": "float32", "i": "int32", "u": "uint32"}.get(array.dtype.kind)
        code = (
            "NCC_EVRF004" if array.dtype.kind == "c" else "NCC_EVRF005" if "fnuz" in array.dtype.name else "NCC_ESPP004"
        )
        raise KernelError(
            f"argument {where} has dtype {array.dtype}", code=code, rule="the device has no such element type",
            fix=f"pass {where}.astype(np.{wanted})" if wanted else "pass an array of numbers",
        )  # fmt: skip
    return dtype


_TORCH_BITS = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e8m0fnu": "uint8"}


def torch_to_numpy(tensor: Any, where: str) -> np.ndarray:
    """A torch tensor's memory as a NumPy array (bf16 and fp8 through their bits)."""
    import torch

    plain = tensor.detach()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    name = str(plain.dtype).removeprefix("torch.")
    if name in _TORCH_BITS:
        bits: np.ndarray = plain.view(getattr(torch, _TORCH_BITS[name])).numpy()
        return bits.view(by_name(name).dtype)
    try:
        return plain.numpy()  # type: ignore[no-any-return]
    except TypeError as error:
        raise KernelError(f"argument {where}: {error}", code="NCC_ESPP004") from None


def numpy_to_torch(values: np.ndarray) -> Any:
    """A NumPy array as a torch tensor of the same element type (unknown ones by their bits)."""
    import torch

    name = values.dtype.name
    if name in _TORCH_BITS and hasattr(torch, name):
        bits = torch.from_numpy(np.ascontiguousarray(values).view(np.dtype(_TORCH_BITS[name])))
        return bits.view(getattr(torch, name))
    try:
        return torch.from_numpy(values)
    except TypeError:
        return torch.from_numpy(np.ascontiguousarray(values).view(np.dtype(f"u{values.dtype.itemsize}")))
