"""The kernel language under this library: `nki` where that name resolves (a device's own, or the simulator's import
hook), else the simulator directly. Nothing is put into the import system."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType


def _language() -> tuple[ModuleType, ModuleType]:
    root = "nki" if "nki" in sys.modules or importlib.util.find_spec("nki") is not None else "vibeserve.nki"
    return importlib.import_module(f"{root}.isa"), importlib.import_module(f"{root}.language")


nisa, nl = _language()
