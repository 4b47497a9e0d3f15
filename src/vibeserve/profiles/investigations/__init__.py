"""Investigations: each finds one kind of inefficiency, says what it costs, and points at the source lines.

One file each: a module with a `NAME`, a `GAP` (the bound at whose gap it looks) and `run(profile, bounds) -> Finding`. A new
one is a new file here; nothing else needs to know of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from types import ModuleType

from vibeserve.base.errors import InputError
from vibeserve.profiles.bounds import Bounds, bounds
from vibeserve.profiles.investigations.finding import Finding
from vibeserve.profiles.profile import Profile

__all__ = ["Finding", "investigate", "names"]


@cache
def _modules() -> dict[str, ModuleType]:
    found = {}
    for item in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{item.name}")
        if hasattr(module, "NAME"):
            found[module.NAME] = module
    return dict(sorted(found.items(), key=lambda pair: (pair[1].ORDER, pair[0])))


def names() -> list[str]:
    """Every investigation that there is."""
    return list(_modules())


def investigate(
    profile: Profile,
    which: Iterable[str] = (),
    span: tuple[int, int] | None = None,
    pcore: int | None = None,
    held: Bounds | None = None,
) -> list[Finding]:
    """Run investigations (all, or those named) on a profile, most relevant to its bottleneck first.

    Each answers: that it found something, that it found nothing, or that it could not run and why. Raises InputError for an
    unknown name.
    """
    chosen = list(which) or names()
    unknown = [name for name in chosen if name not in _modules()]
    if unknown:
        raise InputError(f"no investigation '{unknown[0]}'", hint=f"there are {', '.join(names())}")
    held = held or bounds(profile, span, pcore)
    found = [_modules()[name].run(profile, held) for name in chosen]
    return sorted(found, key=lambda item: _relevance(item, held))


def _relevance(finding: Finding, held: Bounds) -> tuple[int, float]:
    on_bottleneck = finding.engine in held.bottleneck
    return (
        0 if finding.found and on_bottleneck else 1 if finding.found else 2 if finding.ran else 3,
        -(finding.cost_s or 0.0),
    )
