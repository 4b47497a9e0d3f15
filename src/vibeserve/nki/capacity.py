"""Whether the tiles that are alive at once fit into SBUF and PSUM.

A tile lives from its first write to its last use in program order, as a compiler that reuses memory sees it. Tiles with
an address of their own were checked when they were made.
"""

from __future__ import annotations

from vibeserve.nki.context import Core
from vibeserve.nki.errors import KernelError
from vibeserve.nki.memory import MemoryRegion


def peaks(core: Core) -> dict[MemoryRegion, tuple[int, int]]:
    """For sbuf and psum: (peak bytes in a partition, the instruction at which it is reached)."""
    found = {}
    for region in (MemoryRegion.sbuf, MemoryRegion.psum):
        events: list[tuple[int, int]] = []
        for first, last, size, where, _, _, address in core.lives:
            if where is region and address is None and last > first:
                events.append((first, size))
                events.append((last + 1, -size))
        events.sort()
        live = peak = at = 0
        for when, change in events:
            live += change
            if live > peak:
                peak, at = live, when
        found[region] = (peak, at)
    return found


def check(core: Core) -> None:
    """Raise the device's out-of-memory error where a core's live tiles do not fit."""
    target = core.session.target
    limits = {MemoryRegion.sbuf: target.sbuf_usable_per_partition, MemoryRegion.psum: target.psum_per_partition}
    for region, (peak, at) in peaks(core).items():
        if peak <= limits[region] or (core.session.allow_spill and region is MemoryRegion.sbuf):
            continue
        alive = [life for life in core.lives if life[3] is region and life[6] is None and life[0] <= at <= life[1]]
        alive.sort(key=lambda life: -life[2])
        listed = "; ".join(f"{life[4]} {life[2]:,} B at {life[5]}" for life in alive[:6])
        more = f"; and {len(alive) - 6} more" if len(alive) > 6 else ""
        raise KernelError(
            f"{peak:,} bytes of {region.value} in a partition are alive at once", code="NCC_IGCA046" if region is MemoryRegion.psum else "NCC_IGCA035",
            rule=f"{target.name} has {limits[region]:,}", operands=listed + more, fix="smaller tiles, or fewer of them alive together",
            place=alive[0][5],
        )  # fmt: skip
