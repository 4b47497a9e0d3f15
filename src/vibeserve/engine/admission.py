"""Who is let in: a request whose first token would come too late is refused at once, while the client can go elsewhere.

The time to a request's first token is foreseen from what is ahead of it: prompt tokens that are still to be computed, at
the pace that those who decode leave to prompts, and the answers that must end before a place in the batch is free.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from .errors import OverloadedError
from .pacing import Pace
from .scheduler import LEAST_TOKENS
from .sequence import Sequence, urgency
from .settings import Settings
from .types import Request

_LEARN = 0.1


@dataclass(slots=True)
class Load:
    """What one open request still asks of the engine, in tokens. `answer` is what is expected, at least 1."""

    urgency: float
    prompt: float
    answer: float
    most: int


class Admission:
    """Foresees first tokens. `welcome` may be called from any thread, the rest by the engine's own."""

    def __init__(self, settings: Settings, pace: Pace) -> None:
        self._target_s = settings.ttft_target_ms / 1000
        self._most = settings.max_batch_tokens
        self._max_batch = settings.max_batch
        self._pace = pace
        self._open: dict[str, Load] = {}
        self._lock = threading.Lock()
        self._answered = 1.0
        self._computed = 1.0
        self.refused = 0

    def welcome(self, request: Request, arrival: float) -> None:
        """Take a request in, or raise OverloadedError. One that finds the engine empty is always taken."""
        with self._lock:
            load = Load(
                urgency(request, arrival),
                self._computed * len(request.prompt_ids),
                max(1.0, self._answered * request.params.max_tokens),
                request.params.max_tokens,
            )
            foreseen = self.foresee_s(load)
            if self._target_s and self._open and foreseen > self._target_s:
                self.refused += 1
                raise OverloadedError(
                    f"the answer would begin after about {foreseen:.1f} s, the target is {self._target_s:g} s",
                    retry_after_s=max(1, math.ceil(foreseen - self._target_s)),
                )
            self._open[request.id] = load

    def foresee_s(self, load: Load) -> float:
        """Seconds until the first token of a request that comes now."""
        ahead = [other for other in self._open.values() if other.urgency <= load.urgency]
        places = self._pace.places(self._max_batch)
        rows = min(len(ahead), places)
        most = self._most - rows
        chunk = max(self._pace.tokens(self._pace.steady_s(rows), rows, 0, most), min(LEAST_TOKENS, most), 1)
        step_s = self._pace.seconds(rows + chunk)
        prompts_s = (load.prompt + sum(other.prompt for other in ahead)) / chunk * step_s
        own_s = load.prompt / chunk * step_s
        return max(prompts_s, self._place_s(ahead, places, step_s) + own_s) + step_s

    def _place_s(self, ahead: list[Load], places: int, step_s: float) -> float:
        """Seconds until enough of those ahead have ended that a place is free."""
        leaving = len(ahead) - places + 1
        if leaving <= 0:
            return 0.0
        lasting = sorted(other.answer for other in ahead if not other.prompt)
        if leaving <= len(lasting):
            return lasting[leaving - 1] * step_s
        mean = sum(other.answer for other in ahead) / len(ahead)
        return leaving * mean * step_s / places

    def progress(self, sequence: Sequence, *, first: bool) -> None:
        """A step went on with this sequence; its `first` says how much of its prompt was cached."""
        load = self._open.get(sequence.id)
        if load is None:
            return
        if first:
            share = 1 - sequence.cached_tokens / max(1, sequence.prompt_tokens)
            self._computed += _LEARN * (share - self._computed)
        load.prompt = max(0, sequence.prompt_tokens - sequence.computed)
        load.answer = max(1.0, self._answered * load.most - sequence.sampled)

    def left(self, sequence: Sequence, *, ended: bool) -> None:
        """A request is over; one that came to its own end says how long answers are."""
        with self._lock:
            load = self._open.pop(sequence.id, None)
        if load is not None and ended:
            self._answered += _LEARN * (sequence.sampled / load.most - self._answered)
