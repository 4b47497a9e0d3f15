"""The import hook: `nki` (and its old namespace), a stand-in for `torch_xla`, and `nkilib`, where they are not installed."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import linecache
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

ORIGIN = "vibeserve.nki.shim"
_ROOTS = ("nki", "neuronxcc", "torch_xla", "torch_neuronx", "nkilib")
_TORCH = ("torch_xla", "torch_neuronx")


class Loader:
    """Loads one name out of our tables."""

    def __init__(self, table: str):
        self.table = table

    def create_module(self, spec: Any) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self.table in _TORCH:
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
        if root in _TORCH:
            if _asked_by_a_library() or (root == "torch_neuronx" and (_only_asks() or _guarded(_importer()))):
                return None
            from vibeserve.nki.shim import xla as tables
        elif root == "nkilib":
            from vibeserve.nki.shim import nkilib as tables  # type: ignore[no-redef]
        else:
            from vibeserve.nki.shim import modules as tables  # type: ignore[no-redef]
        if name not in tables.MODULES:
            if root not in _TORCH:
                _explain_missing(name)
            return None
        return importlib.machinery.ModuleSpec(name, Loader(root), origin=ORIGIN, is_package=True)  # type: ignore[arg-type]


class Ahead(Finder):
    """Stands before the path finders, and takes a root only from a folder that happens to have its name.

    A folder "nki" without `__init__.py` on the path would else be `nki` (a namespace package), where with an installed
    one it is not.
    """

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name not in self.roots:
            return None
        found = importlib.machinery.PathFinder.find_spec(name)
        return super().find_spec(name, path, target) if found is not None and found.loader is None else None


def _explain_missing(name: str) -> None:
    """Raise for a name under one of our modules that is gone, or that is not simulated; pass where neither is known."""
    parent, _, leaf = name.rpartition(".")
    if getattr(getattr(sys.modules.get(parent), "__spec__", None), "origin", None) != ORIGIN or _only_asks():
        return
    from vibeserve.nki.errors import NotSimulatedModuleError
    from vibeserve.nki.legacy import hint, text_of
    from vibeserve.nki.shim.modules import COMPLETE

    listed = parent.replace("neuronxcc.nki", "nki") if parent != "neuronxcc.nki.compiler" else parent
    if hint(listed, leaf):
        raise ImportError(text_of(listed, leaf), name=parent)
    if listed not in COMPLETE and not leaf.startswith("__"):
        raise NotSimulatedModuleError(name)


def _only_asks() -> bool:
    """Whether this is `importlib.util.find_spec`, which wants to know and not to import."""
    frame = sys._getframe(1)
    passed = (__name__, "importlib._", "_frozen_importlib")
    while frame.f_back and (frame.f_globals.get("__name__") or "").startswith(passed):
        frame = frame.f_back
    return frame.f_globals.get("__name__") == "importlib.util"


def _asked_by_a_library() -> bool:
    """Whether the import stands in an installed package: those look whether an accelerator is there, and none is."""
    parts = Path(_importer().f_code.co_filename).parts
    return "site-packages" in parts or "dist-packages" in parts


def _importer() -> FrameType:
    """The frame that the import stands in."""
    frame = sys._getframe(2)
    passed = (__name__, "importlib", "_frozen_importlib")
    while frame.f_back and (frame.f_globals.get("__name__") or "").startswith(passed):
        frame = frame.f_back
    return frame


def _guarded(frame: FrameType) -> bool:
    """Whether the import stands in a `try` that goes on without it: that asks for a device, and there is none."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and node.body[0].lineno <= frame.f_lineno <= (node.body[-1].end_lineno or 0):
            caught = " ".join("Exception" if h.type is None else ast.unparse(h.type) for h in node.handlers)
            if any(name in caught for name in ("ImportError", "ModuleNotFoundError", "Exception")):
                return True
    return False


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
    sys.meta_path.insert(0, Ahead(_ROOTS[:2]))
    sys.meta_path.append(Finder(_ROOTS))
    return True


def uninstall() -> None:
    """Take the hook out, and forget the modules that it made."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    for name, module in list(sys.modules.items()):
        if getattr(getattr(module, "__spec__", None), "origin", None) == ORIGIN:
            del sys.modules[name]
