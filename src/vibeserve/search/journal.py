"""Each step of a run is done once: what is in the journal is read back, what is not is done and written with its facts.

A run that was killed is resumed by running it again from the start: finished steps return what they returned, and the
first unfinished one is done anew. Time counts only inside steps, so a resumed run has the same times and the same
budget as an unbroken one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TypeVar

from vibeserve.base.clock import Clock
from vibeserve.base.jsonio import dumps
from vibeserve.search.store import EvidenceRow, HypothesisRow, RunStore
from vibeserve.search.store.runstore import Row

T = TypeVar("T")


class Step:
    """Collects the facts that a step establishes; they are written together with its value."""

    def __init__(self, began_s: float):
        self.began_s = began_s
        self.rows: list[Row] = []
        self.events: list[tuple[str, str]] = []
        self.hypothesis_states: list[tuple[int, str, str]] = []

    def add(self, row: Row) -> None:
        """One fact; its `at_s` becomes the moment when the step ends."""
        self.rows.append(row)

    def event(self, kind: str, text: str) -> None:
        """A line for the record and for the progress."""
        self.events.append((kind, text))

    def hypothesis_state(self, round_number: int, state: str, mechanism: str = "") -> None:
        """What became of a round's hypothesis, and why."""
        self.hypothesis_states.append((round_number, state, mechanism))


class Journal:
    """The steps of one run, on its store and clock; `tell` shows each event to the user as it is recorded."""

    def __init__(self, store: RunStore, clock: Clock, *, tell: Callable[[float, str, str], None] | None = None):
        self._store = store
        self._clock = clock
        self._tell = tell or (lambda at_s, kind, text: None)
        self._elapsed_s = store.elapsed_s()
        self._start_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds spent in finished steps, over all processes that worked on the run."""
        return self._elapsed_s

    @property
    def now_s(self) -> float:
        """`elapsed_s`, with what the step that is being done has taken so far."""
        return self._elapsed_s + (0.0 if self._start_s is None else self._clock.monotonic_s() - self._start_s)

    def event(self, kind: str, text: str) -> None:
        """A line for the record that belongs to no finished step: something was lost and is done again."""
        self._store.event(self._elapsed_s, kind, text)
        self._tell(self._elapsed_s, kind, text)

    def done(self, key: str) -> bool:
        """Whether the step is in the journal."""
        try:
            self._store.step(key)
        except KeyError:
            return False
        return True

    def once(self, key: str, work: Callable[[Step], T], *, before: Callable[[], object] | None = None) -> T:
        """The value of step `key` (plain JSON values): read back, or worked out now and recorded.

        `before` is called where the step is to be done, and its time counts to no step: in an unbroken run it finds
        all in place, after a resume it starts again the servers that the step needs.
        """
        try:
            return self._store.step(key)
        except KeyError:
            pass
        if before is not None:
            before()
        step = Step(self._elapsed_s)
        self._start_s = start_s = self._clock.monotonic_s()
        try:
            value = work(step)
        finally:
            self._start_s = None
        took_s = self._clock.monotonic_s() - start_s
        end_s = self._elapsed_s + took_s
        with self._store.record(key) as recorder:
            recorder.step(value, began_s=self._elapsed_s, took_s=took_s)
            for row in step.rows:
                recorder.add(_at(row, end_s))
            for number, state, mechanism in step.hypothesis_states:
                recorder.hypothesis_state(number, state, mechanism)
            for kind, text in step.events:
                recorder.event(end_s, kind, text)
        self._elapsed_s = end_s
        for kind, text in step.events:
            self._tell(end_s, kind, text)
        return json.loads(dumps(value))


def _at(row: Row, end_s: float) -> Row:
    return row if isinstance(row, HypothesisRow | EvidenceRow) else dataclasses.replace(row, at_s=end_s)
