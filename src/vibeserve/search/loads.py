"""A window of load as it is asked for, and as a row of the store."""

from __future__ import annotations

from dataclasses import dataclass

from vibeserve.search.context import Run
from vibeserve.search.lab import Window
from vibeserve.search.store import MeasurementRow


@dataclass(frozen=True)
class Load:
    """One window: its round, its kind (baseline, screen, pair, final, curve), its number there, seed and length.

    `pair` is the pair's number from 0; for a curve it is the concurrency. `place` is 0 for the side that ran first.
    """

    round: int
    kind: str
    pair: int
    seed: int
    window_s: float
    place: int = 0


def measurement(run: Run, load: Load, candidate: str, window: Window) -> MeasurementRow:
    """What a window yielded, as a row."""
    return MeasurementRow(
        round=load.round,
        candidate=candidate,
        kind=load.kind,
        pair=load.pair,
        place=load.place,
        metric=run.goal.metric,
        unit=run.goal.unit,
        value=window.value,
        window_s=load.window_s,
        seed=load.seed,
        failed=window.failed,
        noisy=window.noisy,
        reason=window.reason,
        document=window.document,
    )
