"""Whether the tiles that are alive at once fit into SBUF and PSUM.

A tile lives from its first write to its last use in program order, as a compiler that reuses memory sees it. Tiles with
an address of their own were checked when they were made.
"""

from __future__ import annotations

from vibeserve.nki.context import Core
from vibeserve.nki.errors import KernelError
from vibeserve.nki.memory import MemoryRegion, label_of


def peaks(core: Core) -> dict[MemoryRegion, tuple[int, int]]:
    """For sbuf and psum: (peak bytes in a partition, the instruction at which it is reached). For a core that has ended."""
    if core.peaks is None:
        events: dict[MemoryRegion, list[tuple[int, int]]] = {MemoryRegion.sbuf: [], MemoryRegion.psum: []}
        for first, last, size, where, _, _, address in core.lives:
            if address is None and last > first:
                events[where] += ((first, size), (last + 1, -size))
        core.peaks = {region: _peak(found) for region, found in events.items()}
    return core.peaks


def _peak(events: list[tuple[int, int]]) -> tuple[int, int]:
    events.sort()
    live = peak = at = 0
    for when, change in events:
        live += change
        if live > peak:
            peak, at = live, when
    return peak, at


def check(core: Core) -> None:
    """Raise the device's out-of-memory error where a core's live tiles do not fit."""
    target = core.session.target
    limits = {MemoryRegion.sbuf: target.sbuf_usable_per_partition, MemoryRegion.psum: target.psum_per_partition}
    for region, (peak, at) in peaks(core).items():
        if peak <= limits[region] or (core.session.allow_spill and region is MemoryRegion.sbuf):
            continue
        alive = [life for life in core.lives if life[3] is region and life[6] is None and life[0] <= at <= life[1]]
        alive.sort(key=lambda life: -life[2])
        listed = "; ".join(f"{label_of(life[4])} {life[2]:,} B at {life[5]}" for life in alive[:6])
        more = f"; and {len(alive) - 6} more" if len(alive) > 6 else ""
        raise KernelError(
            f"{peak:,} bytes of {region.value} in a partition are alive at once", code="NCC_IGCA046" if region is MemoryRegion.psum else "NCC_IGCA035",
            rule=f"{target.name} has {limits[region]:,}", operands=listed + more, fix="smaller tiles, or fewer of them alive together",
            place=alive[0][5],
        )  # fmt: skip
