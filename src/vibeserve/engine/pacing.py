"""How long a step will take, and so how many prompt tokens it may carry beside the sequences that decode.

A step's time is measured at the start, before the engine is ready, as a curve over its rows, a cost of each key that a
sequence's rows read and a cost of each pair of a query and a key. While requests are served, the measured steps correct
it by one factor. Two limits can be set: the time that one token of an answer may take, which holds in every step, and how
much longer steps may be for the prompts in them, which holds on the average: what a step leaves of it is kept for later
ones, so that prompts come in chunks that are worth their cost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from statistics import median
from time import perf_counter

import numpy as np

from .batch import Backend, StepBatch
from .scheduler import LEAST_TOKENS
from .settings import Settings

REPEATS = 3
PROBE_ROWS = (1, 4, 8, 16, 24, 32, 64, 128, 256, 512)
PROBE_CONTEXT = 2048
PROBE_FEW, PROBE_MANY = 4, 64
WORTHWHILE_TOKENS = 16
"""A chunk of fewer costs nearly as much: its keys and the weights are read all the same."""
MARGIN = 0.9
"""Steps are planned to take this share of the limit: some take longer than was foreseen."""
_LEARN = 0.05


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step by its rows (a broken line through what was measured), a key that is read, a pair of query and key."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    pair_s: float
    key_s: float = 0.0

    def at(self, rows: int, pairs: float = 0.0, keys: float = 0.0) -> float:
        """Seconds of a step of `rows` rows that see `pairs` keys in all, of sequences that have `keys` keys in all."""
        last = len(self.rows) - 1
        right = min(max(bisect_right(self.rows, rows), 1), last)
        x0, x1, y0, y1 = self.rows[right - 1], self.rows[right], self.seconds[right - 1], self.seconds[right]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0) + self.pair_s * pairs + self.key_s * keys


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
    few, many = min(PROBE_FEW, sizes[-1]), min(PROBE_MANY, sizes[-1])
    far = min(room, PROBE_CONTEXT) - many
    pair_s = key_s = 0.0
    if far > many > few:
        a_few, a_many = ((took(rows, far) - took(rows, 0)) / far for rows in (few, many))
        pair_s = max(0.0, a_many - max(0.0, a_few)) / (many - few)
        key_s = max(0.0, a_few - few * pair_s)
    if len(sizes) == 1:
        return StepTimes((1, 2), (rising[0], 2 * rising[0]), pair_s, key_s)
    return StepTimes(tuple(sizes), rising, pair_s, key_s)


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

    def __init__(self, settings: Settings, times: StepTimes, longest: int) -> None:
        self.times = times
        self._tpot_s = settings.tpot_target_ms / 1000
        self._stretch = settings.prefill_stretch_pct / 100
        self._longest = longest
        self._scale = 1.0
        self._alone_scale = 1.0
        self._saved_s = 0.0

    @property
    def scale(self) -> float:
        """How much longer steps take than they did when they were measured."""
        return self._scale

    @property
    def saves(self) -> bool:
        """Whether time for prompts is saved up over several steps."""
        return self._stretch > 0

    def seconds(self, rows: int, pairs: float = 0.0, keys: float = 0.0) -> float:
        """What a step will take."""
        return self._scale * self.times.at(rows, pairs, keys)

    def added_s(self, rows: int, position: int, tokens: int) -> float:
        """What `tokens` of a prompt from `position` on add to a step of `rows` rows."""
        pairs, keys = tokens * (position + tokens / 2), position + tokens
        return self.seconds(rows + tokens, pairs, keys) - self.seconds(rows) if tokens else 0.0

    def room_s(self, decoding: int, keys: float) -> float:
        """Seconds that prompts may add to the next step, in which `decoding` sequences with `keys` keys decode."""
        return self._room_s(decoding, keys, self._saved_s)

    def steady_s(self, decoding: int) -> float:
        """Seconds that prompts may add to each of many steps."""
        return self._room_s(decoding, 0.0, (self._stretch - 1) * self.seconds(decoding))

    def _room_s(self, decoding: int, keys: float, stretched_s: float) -> float:
        if not decoding:
            return inf
        targeted = MARGIN * self._tpot_s - self.seconds(decoding, keys, keys) if self._tpot_s else inf
        return min(targeted, stretched_s if self._stretch else inf)

    def tokens(self, room_s: float, rows: int, position: int, most: int) -> int:
        """The most tokens of a prompt, from `position` on, that add at most `room_s` seconds to a step of `rows` rows."""
        if room_s == inf:
            return most
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.added_s(rows, position, middle) <= room_s:
                low = middle
            else:
                high = middle - 1
        return 0 if self._stretch and low < min(WORTHWHILE_TOKENS, most) else low

    def places(self, most: int) -> int:
        """Sequences that can decode together, with a little of a prompt beside them, within the time a token may take."""
        if not self._tpot_s:
            return most
        fitting = [count for count in range(1, most + 1) if self.seconds(count + LEAST_TOKENS) <= MARGIN * self._tpot_s]
        return max(fitting, default=1)

    def learn(self, rows: int, pairs: float, keys: float, seconds: float) -> None:
        """A step was measured."""
        self._scale = self._learned(self._scale, seconds, self.times.at(rows, pairs, keys))

    def _learned(self, scale: float, seconds: float, foreseen: float) -> float:
        if foreseen <= 0:
            return scale
        return scale + _LEARN * (min(max(seconds / foreseen, scale / 4), scale * 4) - scale)

    def save(self, decoding: int, keys: float, seconds: float, *, alone: bool) -> None:
        """A step in which `decoding` sequences decoded took so long; `alone`: no prompt was in it.

        What is saved, or owed, is at most what a worthwhile chunk of the longest prompt takes.
        """
        if not self._stretch or not decoding:
            return
        most = self.added_s(decoding, self._longest, WORTHWHILE_TOKENS)
        # Learned from steps without a prompt only: what prompts take must not pass for what a step takes without them.
        foreseen = self.times.at(decoding, keys, keys)
        if alone:
            self._alone_scale = self._learned(self._alone_scale, seconds, foreseen)
        allowed = self._stretch * (seconds if alone else self._alone_scale * foreseen)
        self._saved_s = min(max(self._saved_s + allowed - seconds, -most), most)
