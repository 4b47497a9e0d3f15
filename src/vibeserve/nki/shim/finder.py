"""The import hook: `nki` (and its old namespace), a stand-in for `torch_xla`, and `nkilib`, where they are not installed."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_ROOTS = ("nki", "neuronxcc", "torch_xla", "nkilib")


class Loader:
    """Loads one name out of our tables."""

    def __init__(self, table: str):
        self.table = table

    def create_module(self, spec: Any) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self.table == "torch_xla":
            from vibeserve.nki.shim.xla import fill
        elif self.table == "nkilib":
            from vibeserve.nki.shim.nkilib import fill
        else:
            from vibeserve.nki.shim.modules import fill
        module.__path__ = []
        fill(module)


class Finder:
    """Finds those names; put before the path finders for what is forced, behind them for the rest."""

    def __init__(self, roots: tuple[str, ...]):
        self.roots = roots

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        root = name.partition(".")[0]
        if root not in self.roots:
            return None
        if root == "torch_xla":
            if _asked_by_a_library():
                return None
            from vibeserve.nki.shim import xla as tables
        elif root == "nkilib":
            from vibeserve.nki.shim import nkilib as tables  # type: ignore[no-redef]
        else:
            from vibeserve.nki.shim import modules as tables  # type: ignore[no-redef]
        if name not in tables.MODULES:
            return None
        return importlib.machinery.ModuleSpec(name, Loader(root), origin="vibeserve.nki.shim", is_package=True)  # type: ignore[arg-type]


def _asked_by_a_library() -> bool:
    """Whether the import stands in an installed package: those look whether an accelerator is there, and none is."""
    frame = sys._getframe(2)
    while frame.f_back and (frame.f_globals.get("__name__") or "").partition(".")[0] in (
        "importlib",
        "_frozen_importlib",
    ):
        frame = frame.f_back
    parts = Path(frame.f_code.co_filename).parts
    return "site-packages" in parts or "dist-packages" in parts


def install(*, force: bool | None = None) -> bool:
    """Put the hook in; returns whether `nki` is the simulator now.

    A real `nki` that is installed is left alone, unless `force` (or NKI_SIMULATOR=1) asks for the simulator.
    """
    for finder in sys.meta_path:
        if isinstance(finder, Finder):
            return "nki" in finder.roots
    forced = os.environ.get("NKI_SIMULATOR") == "1" if force is None else force
    if forced:
        sys.meta_path.insert(0, Finder(("nki",)))
        sys.meta_path.append(Finder(_ROOTS[1:]))
        return True
    sys.meta_path.append(Finder(_ROOTS))
    return True


def uninstall() -> None:
    """Take the hook out, and forget the modules that it made."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    for name, module in list(sys.modules.items()):
        if getattr(getattr(module, "__spec__", None), "origin", None) == "vibeserve.nki.shim":
            del sys.modules[name]
