"""Counting a PyTorch module: FLOPs of its products, bytes of every operation, in eager mode and ideally fused.

The module runs once on its example inputs while every ATen operation is watched (meta tensors will do: nothing needs to
be computed). Eager, each operation reads its inputs from memory and writes its outputs; ideally fused, the inputs and
parameters that are used cross once, and so do the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

from vibeserve import hardware
from vibeserve.base.errors import InputError, MissingError
from vibeserve.hardware import Machine
from vibeserve.roofline.bounds import Bounds, bounds, roof
from vibeserve.roofline.counting import Numbers


@dataclass(frozen=True, slots=True)
class CountedCall:
    """One operation of the module: its ATen name, its kind, FLOPs, and the bytes that it reads and writes."""

    name: str
    kind: str  # "matmul" | "convolution" | "attention" | "elementwise" | "copy"
    dtype: str
    flops: int
    read_bytes: int
    write_bytes: int


@dataclass(frozen=True, slots=True)
class ModuleCount:
    """A module's counts. `ideal_*` are those of perfect fusion; FLOPs are the same in both."""

    calls: tuple[CountedCall, ...]
    input_bytes: int
    parameter_bytes: int
    output_bytes: int

    def _flops(self, *kinds: str) -> int:
        return sum(call.flops for call in self.calls if call.kind in kinds)

    @property
    def flops(self) -> int:
        """FLOPs of matmuls, convolutions and attention: 2 for each multiply-add."""
        return self._flops("matmul", "convolution", "attention")

    @property
    def elementwise_flops(self) -> int:
        """One for each element that an elementwise operation or a reduction goes through."""
        return self._flops("elementwise")

    @property
    def eager_bytes(self) -> int:
        """Every operation reads its inputs and writes its outputs."""
        return sum(call.read_bytes + call.write_bytes for call in self.calls)

    @property
    def ideal_bytes(self) -> int:
        """Inputs, used parameters and outputs, once."""
        return self.input_bytes + self.parameter_bytes + self.output_bytes

    @property
    def eager_intensity(self) -> float:
        """FLOPs a byte where every operation round-trips."""
        return self.flops / self.eager_bytes

    @property
    def ideal_intensity(self) -> float:
        """FLOPs a byte, ideally fused."""
        return self.flops / self.ideal_bytes

    def numbers(self, fused: bool) -> Numbers:
        """The counts in the form that `bounds` takes."""
        work: dict[str, int | Fraction] = {}
        vector: dict[str, int | Fraction] = {}
        for call in self.calls:
            table = vector if call.kind == "elementwise" else work
            if call.flops:
                table[call.dtype] = table.get(call.dtype, 0) + call.flops
        read = self.input_bytes + self.parameter_bytes if fused else sum(call.read_bytes for call in self.calls)
        write = self.output_bytes if fused else sum(call.write_bytes for call in self.calls)
        return Numbers(1, work, vector, 0, read, write)

    def bounds(self, target: str | Machine, fused: bool) -> Bounds:
        """Intensity, ridge and time bounds on a machine: a GPU whole, of a Neuron device the largest logical core.

        Raises InputError where the machine has no peak for a data type of the module.
        """
        machine = target if isinstance(target, Machine) else hardware.get(target)
        lnc = machine.lnc[-1] if machine.lnc else None
        return bounds(self.numbers(fused), roof(machine, lnc))

    def document(self, target: str | Machine = "") -> dict[str, Any]:
        """The counts as plain data; with a target, its bounds for both forms."""
        found: dict[str, Any] = {
            "flops": self.flops,
            "elementwise_flops": self.elementwise_flops,
            "eager_bytes": self.eager_bytes,
            "ideal_bytes": self.ideal_bytes,
            "by_operation": self.by_operation(),
        }
        for name, fused in (("eager", False), ("ideal", True)) if target else ():
            one = self.bounds(target, fused)
            found[name] = {
                "intensity": float(one.intensity),
                "ridge": float(one.ridge),
                "t_lower_s": float(one.t_lower),
                "t_upper_s": float(one.t_upper),
                "bound": one.bound,
            }
        return found

    def by_operation(self) -> dict[str, dict[str, int]]:
        """Calls, FLOPs and bytes of each ATen operation, the largest traffic first."""
        table: dict[str, dict[str, int]] = {}
        for call in self.calls:
            row = table.setdefault(call.name, {"calls": 0, "flops": 0, "bytes": 0})
            row["calls"] += 1
            row["flops"] += call.flops
            row["bytes"] += call.read_bytes + call.write_bytes
        return dict(sorted(table.items(), key=lambda item: -item[1]["bytes"]))


def from_torch(module: Any, inputs: Any) -> ModuleCount:
    """Count a module on example inputs: one tensor, a tuple of arguments, or a mapping of keyword arguments.

    Move module and inputs to the `meta` device to count a large one without memory. Raises MissingError without torch
    and InputError where the module cannot be run on these inputs.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingError(
            "torch is not installed: a module cannot be counted",
            hint="pip install 'vibeserve[engine]'; operations in TOML need no torch",
        ) from error
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    watched = _Watch()

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            given = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, torch.Tensor)]
            made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
            watched.call(func, args, given, made)
            return out

    arguments, keywords = _arguments(inputs)
    try:
        with torch.no_grad(), Watching():
            out = module(*arguments, **keywords)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"the module does not run on these inputs: {first}", hint="check shapes and arguments"
        ) from error
    outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    own = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    stored = {id(tensor.untyped_storage()): tensor for tensor in [*module.parameters(), *module.buffers()]}
    keys = {tensor.untyped_storage()._cdata: tensor for tensor in stored.values()}
    used = [tensor for key, tensor in keys.items() if key in watched.read]
    return ModuleCount(
        tuple(watched.calls),
        input_bytes=sum(_bytes(tensor) for tensor in own),
        parameter_bytes=sum(watched.read[tensor.untyped_storage()._cdata] for tensor in used),
        output_bytes=sum(_bytes(tensor) for tensor in outputs),
    )


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), inputs
    return (tuple(inputs), {}) if isinstance(inputs, tuple | list) else ((inputs,), {})


class _Watch:
    """Notes the calls, and of each storage the most that any call read of it."""

    def __init__(self) -> None:
        self.calls: list[CountedCall] = []
        self.read: dict[int, int] = {}

    def call(self, func: Any, args: Any, given: list[Any], made: list[Any]) -> None:
        name = func._schema.name.removeprefix("aten::")
        if _is_view(func, name):
            return
        sizes = [_bytes(tensor) for tensor in given]
        if name in _LOOK_UPS:  # a look-up reads the rows that it takes, not the whole table
            sizes[0] = sum(_bytes(tensor) for tensor in made)
        for tensor, size in zip(given, sizes, strict=True):
            key = tensor.untyped_storage()._cdata
            self.read[key] = max(self.read.get(key, 0), size)
        counter = _PRODUCTS.get(name)
        if counter is not None:
            kind, flops = counter[0], counter[1](args, given, made)
        elif name in _COPIES:
            kind, flops = "copy", 0
        else:
            kind, flops = "elementwise", max((tensor.numel() for tensor in [*given, *made]), default=0)
        written = [tensor for tensor in made if tensor.numel()]
        dtype = str((given or made)[0].dtype).removeprefix("torch.") if given or made else "float32"
        self.calls.append(CountedCall(name, kind, dtype, flops, sum(sizes), sum(map(_bytes, written))))


_LOOK_UPS = {"embedding", "index_select", "index", "gather"}
_COPIES = {
    "clone", "copy_", "_to_copy", "cat", "stack", "index_select", "embedding", "index", "gather", "constant_pad_nd",
    "empty", "empty_like", "new_empty", "zeros", "zeros_like", "ones", "ones_like", "full", "arange", "scalar_tensor",
    "fill_", "zero_", "repeat", "roll", "lift_fresh_copy",
}  # fmt: skip
# Shape changes whose schema does not say that the result shares its storage.
_SHAPE_CHANGES = {"_unsafe_view", "_reshape_alias", "alias", "detach", "lift_fresh"}


def _is_view(func: Any, name: str) -> bool:
    """Whether a call only gives another shape to memory that is there: nothing moves."""
    if name in _SHAPE_CHANGES:
        return True
    returned = [value.alias_info for value in func._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def _bytes(tensor: Any) -> int:
    """Bytes of a tensor's own elements: an expanded one is as large as what it expands."""
    size = tensor.element_size()
    unique = prod(length for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or length == 0)
    return int(unique * size)


def _mm(place: int) -> Callable[[Any, list[Any], list[Any]], int]:
    def flops(args: Any, given: list[Any], made: list[Any]) -> int:
        a, b = args[place], args[place + 1]
        return 2 * int(prod(a.shape)) * int(b.shape[-1])

    return flops


def _mv(place: int) -> Callable[[Any, list[Any], list[Any]], int]:
    return lambda args, given, made: 2 * int(prod(args[place].shape))


def _convolution(args: Any, given: list[Any], made: list[Any]) -> int:
    x, w, transposed = args[0], args[1], bool(args[6])
    points = int(prod((x if transposed else made[0]).shape[2:])) * int(x.shape[0])
    return 2 * points * int(prod(w.shape))


def _attention(args: Any, given: list[Any], made: list[Any]) -> int:
    q, k, v = args[0], args[1], args[2]
    heads = int(prod(q.shape[:-2]))
    scores = heads * int(q.shape[-2]) * int(k.shape[-2])
    return 2 * scores * int(q.shape[-1]) + 2 * scores * int(v.shape[-1])


_PRODUCTS: dict[str, tuple[str, Callable[[Any, list[Any], list[Any]], int]]] = {
    "mm": ("matmul", _mm(0)),
    "addmm": ("matmul", _mm(1)),
    "bmm": ("matmul", _mm(0)),
    "baddbmm": ("matmul", _mm(1)),
    "_int_mm": ("matmul", _mm(0)),
    "_scaled_mm": ("matmul", _mm(0)),
    "mv": ("matmul", _mv(0)),
    "addmv": ("matmul", _mv(1)),
    "dot": ("matmul", _mv(0)),
    "convolution": ("convolution", _convolution),
    "_scaled_dot_product_flash_attention": ("attention", _attention),
    "_scaled_dot_product_flash_attention_for_cpu": ("attention", _attention),
    "_scaled_dot_product_efficient_attention": ("attention", _attention),
    "_scaled_dot_product_cudnn_attention": ("attention", _attention),
    "_scaled_dot_product_fused_attention_overrideable": ("attention", _attention),
}
