"""`nkilib` import paths of the kernel library, where nkilib itself is not installed."""

from __future__ import annotations

import importlib
from types import ModuleType

_UTILS = "nkilib.core.utils"
MODULES: dict[str, tuple[str, ...]] = {
    "nkilib": (),
    "nkilib.core": (),
    _UTILS: (),
    f"{_UTILS}.kernel_assert": ("vibeserve.nki.lib.checks",),
    f"{_UTILS}.kernel_helpers": ("vibeserve.nki.lib.helpers", "vibeserve.nki.lib.checks"),
    f"{_UTILS}.tiled_range": ("vibeserve.nki.lib.tiled_range",),
    f"{_UTILS}.tile_info": ("vibeserve.nki.lib.tile_info",),
    f"{_UTILS}.tensor_view": ("vibeserve.nki.lib.tensor_view",),
    f"{_UTILS}.allocator": ("vibeserve.nki.lib.allocator", "vibeserve.nki.lib.logging"),
    f"{_UTILS}.stream_shuffle_broadcast": ("vibeserve.nki.lib.moving",),
    f"{_UTILS}.tp_broadcast": ("vibeserve.nki.lib.moving",),
    f"{_UTILS}.interleave_copy": ("vibeserve.nki.lib.moving",),
    f"{_UTILS}.cross_partition_copy": ("vibeserve.nki.lib.moving",),
    f"{_UTILS}.common_types": ("vibeserve.nki.lib.types",),
    f"{_UTILS}.logging": ("vibeserve.nki.lib.logging",),
}


def fill(module: ModuleType) -> None:
    """Put into a fresh module what its name promises."""
    for source in MODULES[module.__name__]:
        real = importlib.import_module(source)
        for name, value in vars(real).items():
            if not name.startswith("__"):
                setattr(module, name, value)
