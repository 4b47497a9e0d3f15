"""Races on HBM between the cores of a grid: the same bytes touched by two cores with no barrier between, one writing.

Cores run one after the other between barriers, so a race never changes values from run to run here; on the device it
would. Each shared storage keeps two bits an element for each core (has written, has read) since the last barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vibeserve.nki import access
from vibeserve.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from vibeserve.nki.context import Core


def before_write(core: Core, tensor: NkiTensor) -> np.ndarray | None:
    """What another core wrote there since the last barrier (writing the same again is no race); None where none did."""
    marks = tensor.storage.conflicts
    if marks is None or tensor.rows is not None or tensor.dtype.itemsize != tensor.storage.dtype.itemsize:
        return None
    slot = core.index % core.session.cores_per_rank
    view = np.ndarray(tensor.shape, np.uint8, marks, tensor.start(), tensor.strides)
    return access.array(tensor).copy() if (view & np.uint8(0x0F & ~(1 << slot))).any() else None


def note(core: Core, tensor: NkiTensor, *, write: bool, before: np.ndarray | None = None) -> None:
    """Note an access of `core`, and report it where another core's access since the last barrier conflicts."""
    storage = tensor.storage
    if not (storage.external or storage.region.value == "shared_hbm"):
        return
    if tensor.rows is not None or tensor.dtype.itemsize != storage.dtype.itemsize:
        return
    marks = storage.conflicts
    session = core.session
    if marks is None:
        marks = storage.conflicts = np.zeros(storage.count, np.uint8)
        session.shared.setdefault("tracked", []).append(storage)  # type: ignore[union-attr,arg-type]
    slot = core.index % session.cores_per_rank
    if slot > 3:
        return
    mine = np.uint8((1 if write else 16) << slot)
    others = np.uint8((0xFF if write else 0x0F) & ~(17 << slot))
    if before is not None and np.array_equal(
        before.view(np.uint8), access.array(tensor).view(np.uint8).reshape(before.view(np.uint8).shape)
    ):
        others &= np.uint8(0xF0)
    view = np.ndarray(tensor.shape, np.uint8, marks, tensor.start(), tensor.strides)
    if (view & others).any():
        session.report(
            "race",
            f"two cores touch {storage.label()} with no barrier between",
            detail=f"core {slot} {'writes' if write else 'reads'} {tensor!r}",
            code="NKI-RACE",
            fix="nisa.core_barrier(tensor, (0, 1)) between the write and the other core's access",
        )
    view |= mine


def barrier(core: Core) -> None:
    """All cores of a rank have met: accesses before and after are ordered."""
    for storage in core.session.shared.get("tracked", ()):  # type: ignore[attr-defined]
        storage.conflicts[...] = 0
