"""The NKI kernel language and instruction set on CPU.

Front: `jit`, `simulate(kernel, target=, lnc=)(*arrays)`, `simulate_ranks`, `KernelError`, `Observer`; the language and
the instruction set are `vibeserve.nki.language` and `vibeserve.nki.isa` (also as `nki.language` and `nki.isa` after
`import vibeserve.nki.shim`).

How it is laid out: `tensor` and `views` are what a kernel handles, `memory` the bytes behind, `access` reads and writes
through views. `instruction` is the dispatcher around every instruction; the bodies are in `isa`, their operand rules in
`data/instructions/*.toml`, the rules' vocabulary in `rules` and `special`. `context` is the running kernel, `cores`
runs several deterministically, `kernel` launches, `observe` lets others watch.

To add an instruction: write `body(core, dst, ...)` in a module of `isa` under `@instruction`, export it in
`isa/__init__.py`, give it an entry in `data/instructions/` (reads, writes, engines, rules), and a property test and
rows in `tests/nki/rejections.toml`. `docs/nki.md` has a worked example.
"""

from __future__ import annotations

from typing import Any

_HOMES = {
    "Kernel": "kernel", "KernelError": "errors", "NkiValidationError": "errors", "NotSimulatedError": "errors",
    "Observer": "observe", "Record": "observe", "Simulation": "kernel", "compare": "comparison", "jit": "kernel",
    "profile": "timing", "simulate": "kernel", "simulate_ranks": "kernel", "stages": "comparison",
}  # fmt: skip

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'vibeserve.nki' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"vibeserve.nki.{home}"), name)
