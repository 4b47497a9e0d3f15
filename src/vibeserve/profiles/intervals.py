"""Spans of time: union, clipping, overlap. Times are whole nanoseconds; a span is [start, end).

Engines pipeline and 16 DMA engines run side by side, so the sum of durations says nothing about wall-clock time: a union
is needed everywhere. All functions are vectorised and order-free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def clip(starts: Ints, ends: Ints, window: tuple[int, int] | None) -> tuple[Ints, Ints]:
    """The spans cut to `window`; what is empty after that is dropped (zero-length spans always)."""
    import numpy as np

    starts = np.asarray(starts, dtype=np.int64)
    ends = np.asarray(ends, dtype=np.int64)
    if window is not None:
        starts = np.maximum(starts, window[0])
        ends = np.minimum(ends, window[1])
    keep = starts < ends
    if keep.all():
        return starts, ends
    return starts[keep], ends[keep]


def merge(starts: Ints, ends: Ints, window: tuple[int, int] | None = None) -> tuple[Ints, Ints]:
    """The union of the spans as disjoint spans in order; spans that touch are joined."""
    import numpy as np

    starts, ends = clip(starts, ends, window)
    if len(starts) == 0:
        return starts, ends
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.empty(len(starts), dtype=bool)
    first[0] = True
    np.greater(starts[1:], reach[:-1], out=first[1:])
    heads = np.flatnonzero(first)
    tails = np.append(heads[1:] - 1, len(starts) - 1)
    return starts[heads], reach[tails]


def union_ns(starts: Ints, ends: Ints, window: tuple[int, int] | None = None) -> int:
    """How much time the spans cover together, in ns."""
    merged_starts, merged_ends = merge(starts, ends, window)
    return int((merged_ends - merged_starts).sum())


def overlap_ns(a: tuple[Ints, Ints], b: tuple[Ints, Ints]) -> int:
    """How much time both families of spans cover at once, in ns."""
    import numpy as np

    both = union_ns(*a) + union_ns(*b)
    together = union_ns(np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]]))
    return both - together
