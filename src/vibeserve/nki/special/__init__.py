"""Rules that one instruction has alone; named under `special` (or `engine_rule`) in the data files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vibeserve.nki.special import collectives, control, dma, scalar, selection, tensor, vector

_MODULES = (dma, vector, scalar, tensor, selection, control, collectives)


def named(name: str) -> Callable[..., Any]:
    """The rule called `name`."""
    for module in _MODULES:
        found = vars(module).get(name)
        if found is not None:
            return found  # type: ignore[no-any-return]
    raise KeyError(name)
