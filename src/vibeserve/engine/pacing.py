"""How long a step will take, and so how many prompt tokens it may carry beside the sequences that decode.

A step's time is measured at the start, before the engine is ready, as a curve over its rows and a cost of each pair of a
query and a key. While requests are served, the measured steps correct it by one factor. Two limits can be set: the time
that one token of an answer may take, and how much longer a step with prompt rows may be than one without.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Sequence as Numbers
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from .batch import Backend, StepBatch
from .settings import Settings

REPEATS = 3
PROBE_ROWS = (1, 4, 8, 16, 24, 32, 64, 128, 256, 512)
PROBE_CONTEXT = 2048
LEAST_TOKENS = 4
"""A prompt that has begun goes on by so many tokens a step, whatever the limits."""
MARGIN = 0.9
"""Steps are planned to take this share of the limit: some take longer than was foreseen."""
_LEARN = 0.05


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step by its rows (a broken line through what was measured) and seconds a pair of query and key."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    pair_s: float

    def at(self, rows: int, pairs: float = 0.0) -> float:
        """Seconds of a step of `rows` rows that attend to `pairs` keys in all."""
        last = len(self.rows) - 1
        right = min(max(bisect_right(self.rows, rows), 1), last)
        x0, x1, y0, y1 = self.rows[right - 1], self.rows[right], self.seconds[right - 1], self.seconds[right]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0) + self.pair_s * pairs


def measure(
    backend: Backend,
    blocks: int,
    block_size: int,
    max_len: int,
    most_rows: int,
    clock: Callable[[], float] = perf_counter,
) -> StepTimes:
    """Time steps of several sizes on blocks that nobody holds yet. Takes a second or so."""

    def took(rows: int, first: int) -> float:
        batch = _probe(rows, first, block_size)
        spent = []
        for _ in range(REPEATS):
            began = clock()
            backend.forward(batch)
            spent.append(clock() - began)
        return median(spent)

    room = min(max_len, blocks * block_size)
    sizes = [rows for rows in PROBE_ROWS if rows <= min(room, most_rows)] or [1]
    if len(sizes) == 1:
        sizes = [1, min(room, 2)] if room > 1 else [1]
    took(sizes[-1], 0)  # the first step of a process is slow
    seconds = [took(rows, 0) for rows in sizes]
    # More rows are never faster: what says so is noise.
    rising = tuple(float(value) for value in np.maximum.accumulate(seconds))
    rows = min(16, sizes[-1])
    far = min(room, PROBE_CONTEXT) - rows
    pair_s = max(0.0, took(rows, far) - took(rows, 0)) / (rows * far) if far > rows else 0.0
    if len(sizes) == 1:
        return StepTimes((1, 2), (rising[0], 2 * rising[0]), pair_s)
    return StepTimes(tuple(sizes), rising, pair_s)


def _probe(rows: int, first: int, block_size: int) -> StepBatch:
    """One sequence of `rows` tokens at positions `first`, …; its keys are whatever the cache holds."""
    return StepBatch(
        tokens=np.zeros(rows, dtype=np.int32),
        positions=np.arange(first, first + rows, dtype=np.int32),
        row_starts=np.array([0, rows], dtype=np.int32),
        tables=np.arange(-(-(first + rows) // block_size), dtype=np.int32)[None],
        logit_rows=np.array([rows - 1], dtype=np.int32),
        full_logits=False,
    )


class Pace:
    """Prompt tokens of a step, within the limits of the settings."""

    def __init__(self, settings: Settings, times: StepTimes) -> None:
        self.times = times
        self._tpot_s = settings.tpot_target_ms / 1000
        self._stretch = settings.prefill_stretch_pct / 100
        self._scale = 1.0

    @property
    def scale(self) -> float:
        """How much longer steps take than they did when they were measured."""
        return self._scale

    def seconds(self, rows: int, pairs: float = 0.0) -> float:
        """What a step will take."""
        return self._scale * self.times.at(rows, pairs)

    def tokens(self, decoding: int, pairs: float, position: int, most: int) -> int:
        """Prompt tokens beside `decoding` rows that attend to `pairs` keys; the prompt goes on at `position`."""
        limit = self._limit_s(decoding, pairs)
        if not decoding or limit is None:
            return most
        low, high = min(LEAST_TOKENS, most), most
        while low < high:
            middle = (low + high + 1) // 2
            if self.seconds(decoding + middle, pairs + middle * (position + middle / 2)) <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def _limit_s(self, decoding: int, pairs: float) -> float | None:
        limits = []
        if self._tpot_s:
            limits.append(MARGIN * self._tpot_s)
        if self._stretch:
            limits.append(self._stretch * self.seconds(decoding, pairs))
        return min(limits, default=None)

    def places(self, most: int) -> int:
        """Sequences that can decode together, with a little of a prompt beside them, within the time a token may take."""
        if not self._tpot_s:
            return most
        fitting = [count for count in range(1, most + 1) if self.seconds(count + LEAST_TOKENS) <= MARGIN * self._tpot_s]
        return max(fitting, default=1)

    def learn(self, rows: int, pairs: float, seconds: float) -> None:
        """A step was measured."""
        foreseen = self.times.at(rows, pairs)
        if foreseen > 0:
            ratio = min(max(seconds / foreseen, self._scale / 4), self._scale * 4)
            self._scale += _LEARN * (ratio - self._scale)


def pairs_of(counts: Numbers[tuple[int, int]]) -> float:
    """Pairs of query and key of (rows, position of the first) each."""
    return float(sum(rows * (first + rows / 2) for rows, first in counts))
