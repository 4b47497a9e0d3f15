"""The vendor's module names, and what stands behind each."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from vibeserve.nki.errors import NotSimulatedAttributeError
from vibeserve.nki.legacy import gone


def _top(module: ModuleType) -> None:
    from vibeserve.nki import kernel
    from vibeserve.nki.objects import NKIObject

    module.jit = kernel.jit  # type: ignore[attr-defined]
    module.simulate = kernel.simulate  # type: ignore[attr-defined]
    module.NKIObject = NKIObject  # type: ignore[attr-defined]
    module.__version__ = "0.6.0"  # type: ignore[attr-defined]

    def missing(name: str) -> Any:
        raise gone("nki", name)

    module.__getattr__ = missing  # type: ignore[method-assign]


def _mirror(source: str) -> Callable[[ModuleType], None]:
    def fill(module: ModuleType) -> None:
        real = importlib.import_module(source)
        for name, value in vars(real).items():
            if not name.startswith("__") or name in ("__getattr__", "__all__", "__doc__"):
                setattr(module, name, value)

    return fill


def _typing(module: ModuleType) -> None:
    from vibeserve.nki.annotations import mutable_tensor, tensor

    module.tensor = tensor  # type: ignore[attr-defined]
    module.mutable_tensor = mutable_tensor  # type: ignore[attr-defined]


def _meta(module: ModuleType) -> None:
    from vibeserve.nki.annotations import meta_tensor

    module.tensor = meta_tensor  # type: ignore[attr-defined]


def _experimental(module: ModuleType) -> None:
    from vibeserve.nki.language import while_loop

    module.while_loop = while_loop  # type: ignore[attr-defined]


def _kernel_module(module: ModuleType) -> None:
    from vibeserve.nki.kernel import Kernel

    module.Kernel = module.GenericKernel = module.UnifiedKernel = module.CompileKernel = Kernel  # type: ignore[attr-defined]


def _dtypes(module: ModuleType) -> None:
    from vibeserve.nki import dtypes
    from vibeserve.nki.annotations import static_cast

    for dtype in dtypes.ALL:
        setattr(module, dtype.name, dtype)
    module.DType = dtypes.DType  # type: ignore[attr-defined]
    module.static_cast = static_cast  # type: ignore[attr-defined]


def _builder(module: ModuleType) -> None:
    from vibeserve.nki.annotations import compile_kernel

    module.compile_kernel = compile_kernel  # type: ignore[attr-defined]
    _partial(module)


def _partial(module: ModuleType) -> None:
    """A part of the compiler: what it has beyond what is put into it here is not simulated."""

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSimulatedAttributeError(f"{module.__name__}.{name}")

    module.__getattr__ = missing  # type: ignore[method-assign]


def _old_compiler(module: ModuleType) -> None:
    """Allocators of 0.1.0: importable, and each name says what took its place."""

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise gone(module.__name__, name)

    module.__getattr__ = missing  # type: ignore[method-assign]


def _errors(module: ModuleType) -> None:
    from vibeserve.nki.errors import NkiValidationError

    module.NkiValidationError = NkiValidationError  # type: ignore[attr-defined]


def _empty(module: ModuleType) -> None:
    """A package that only holds others."""


MODULES: dict[str, Callable[[ModuleType], None]] = {
    "nki": _top,
    "nki.language": _mirror("vibeserve.nki.language"),
    "nki.isa": _mirror("vibeserve.nki.isa"),
    "nki.isa.constants": _mirror("vibeserve.nki.isa.enums"),
    "nki.collectives": _mirror("vibeserve.nki.collectives"),
    "nki.typing": _typing,
    "nki.meta": _meta,
    "nki.dtype": _dtypes,
    "nki.experimental": _experimental,
    "nki.compile": _kernel_module,
    "nki.framework": _empty,
    "nki.framework.kernel": _kernel_module,
    "nki.framework.compiled": _kernel_module,
    "nki.compiler": _partial,
    "nki.compiler.kernel_builder": _builder,
    "nki.compiler.backends": _empty,
    "nki.compiler.backends.neuron": _empty,
    "nki.compiler.backends.neuron.FrameworkKernel": _kernel_module,
    "nki.simulator": _top,
    "nki.errors": _errors,
}

_OLD_NAMESPACE = {
    "neuronxcc": _empty,
    "neuronxcc.nki": _top,
    "neuronxcc.nki.language": MODULES["nki.language"],
    "neuronxcc.nki.isa": MODULES["nki.isa"],
    "neuronxcc.nki.isa.constants": MODULES["nki.isa.constants"],
    "neuronxcc.nki.compiler": _old_compiler,
    "neuronxcc.nki.typing": _typing,
    "neuronxcc.nki.collectives": MODULES["nki.collectives"],
}
MODULES |= _OLD_NAMESPACE
# What has all of its documented names: an unknown one is a slip, not something that waits to be simulated.
COMPLETE = ("nki.language", "nki.isa", "nki.isa.constants", "nki.collectives", "nki.typing", "nki.meta", "nki.dtype")
_told: set[str] = set()


def fill(module: ModuleType) -> None:
    """Put into a fresh module what its name promises."""
    name = module.__name__
    if name.startswith("neuronxcc.nki") and "neuronxcc" not in _told:
        _told.add("neuronxcc")
        print(
            "nki: neuronxcc.nki is the old name (an error from 0.4.0 on); the same as 'import nki' here",
            file=sys.stderr,
        )
    MODULES[name](module)
    own = getattr(module, "__getattr__", None)

    def found(attribute: str) -> Any:
        full = f"{name}.{attribute}"
        if full in MODULES:  # `nisa.constants.engine` with only nki.isa imported
            return importlib.import_module(full)
        if own is not None:
            return own(attribute)
        raise AttributeError(f"module '{name}' has no attribute '{attribute}'", name=attribute)

    module.__getattr__ = found  # type: ignore[method-assign]
