"""A CPU stand-in for the parts of `torch_xla` that device scripts use, where torch_xla is not installed.

`torch_neuronx` is importable too, since kernel files import it without need; nothing in it is simulated. An import that is
guarded by `try` finds none: it asks for a device.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

_told: list[bool] = []


def _say() -> None:
    if not _told:
        _told.append(True)
        print(
            "nki: torch_xla is not installed; its device is the CPU, and kernels run on the simulator", file=sys.stderr
        )


def _device(*_: Any, **__: Any) -> Any:
    import torch

    _say()
    return torch.device("cpu")


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _core_model(module: ModuleType) -> None:
    module.xla_device = _device  # type: ignore[attr-defined]
    module.mark_step = module.wait_device_ops = module.rendezvous = _nothing  # type: ignore[attr-defined]
    module.xrt_world_size = lambda *_: 1  # type: ignore[attr-defined]
    module.get_ordinal = lambda *_: 0  # type: ignore[attr-defined]
    module.is_master_ordinal = lambda *_: True  # type: ignore[attr-defined]


def _root(module: ModuleType) -> None:
    module.device = _device  # type: ignore[attr-defined]
    module.sync = _nothing  # type: ignore[attr-defined]
    module.__version__ = "0.0+cpu.stand.in"  # type: ignore[attr-defined]


def _neuronx(module: ModuleType) -> None:
    from vibeserve.nki.errors import NotSimulatedAttributeError

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSimulatedAttributeError(f"torch_neuronx.{name}")

    module.__getattr__ = missing  # type: ignore[method-assign]


MODULES: dict[str, Any] = {
    "torch_xla": _root,
    "torch_xla.core": _nothing,
    "torch_xla.core.xla_model": _core_model,
    "torch_xla.runtime": _nothing,
    "torch_neuronx": _neuronx,
}


def fill(module: ModuleType) -> None:
    """Put into a fresh module what its name promises."""
    MODULES[module.__name__](module)
