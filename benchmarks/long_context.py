"""A prompt near the model's limit beside short requests: what it costs them, and the memory that was said beforehand.

Short requests come one after the other, so many at once. Their time per token alone is measured before the long prompt
comes and after it has gone, so that a machine that gets slower on the way favours neither. Per round and engine: the
short ones' time per token until the long prompt's first token, over that alone.
"""

from __future__ import annotations

import contextlib
import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

from benchmarks._engine import Course, core_of, model_dir, prompt, spread, take
from benchmarks.rows import Row

LONG = 7_936
SHORT, ANSWER, AT_ONCE = 48, 96, 3
ALONE_S = 4.0
ROUNDS = {"whole prompts": 5, "chunks of 512": 5, "paced": 8}  # an interval needs 5
ENGINES: dict[str, dict[str, Any]] = {
    "whole prompts": {},
    "chunks of 512": {"chunked_prefill": True},
    "paced": {"chunked_prefill": True, "prefill_stretch_pct": 135},
}


class Shorts:
    """Short requests, so many at once for as long as they are wanted."""

    def __init__(self, core: Any, seed: int) -> None:
        self.core = core
        self.generator = random.Random(seed)
        self.courses: dict[str, Course] = {}
        self.made = 0

    def fill(self) -> None:
        """As many as there shall be."""
        from vibeserve.engine.types import Request, SamplingParams

        going = sum(not course.ended for course in self.courses.values())
        for _ in range(AT_ONCE - going):
            name = f"s{self.made}"
            self.made += 1
            params = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
            self.courses[name] = Course(perf_counter())
            self.core.add(Request(name, prompt(self.generator, SHORT), params))

    def gap_s(self, since: float, until: float) -> float:
        """Mean seconds between two tokens of one answer, of those gaps that end between the two moments."""
        gaps = [
            later - sooner
            for course in self.courses.values()
            for sooner, later in zip(course.times, course.times[1:], strict=False)
            if since < later <= until
        ]
        return mean(gaps) if gaps else float("nan")


def visit(core: Any, seed: int) -> tuple[float, float, float, float]:
    """Seconds: a short one's token alone, and beside the long prompt; their TTFT beside it; the long one's TTFT."""
    from vibeserve.engine.types import Request, SamplingParams

    shorts = Shorts(core, seed)
    alone = [_alone(core, shorts)]
    came = perf_counter()
    long = {"long": Course(came)}
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    core.add(Request("long", prompt(random.Random(seed), LONG), params))
    while not long["long"].times:
        shorts.fill()
        take(core, long | shorts.courses)
    over = long["long"].times[0]
    beside = shorts.gap_s(came, over)
    begun = [course.ttft_s or over - course.due for course in shorts.courses.values() if came < course.due < over]
    core.abort_all()
    core.rest()
    alone.append(_alone(core, Shorts(core, seed + 1_000)))
    core.abort_all()
    core.rest()
    return mean(alone), beside, mean(begun) if begun else float("nan"), over - came


def _alone(core: Any, shorts: Shorts) -> float:
    """Seconds of a short one's token while nothing else is there."""
    began = perf_counter()
    while perf_counter() - began < ALONE_S:
        shorts.fill()
        take(core, shorts.courses)
    return shorts.gap_s(began, perf_counter())


def rows() -> list[Row]:
    """Ratios of the short ones' time per token; the target is for the upper end of the interval."""
    from vibeserve.base.errors import VibeServeError

    try:
        model = model_dir()
    except VibeServeError as error:
        return [Row("long context", 1.5, None, "x", note=f"not run: {error}")]
    cores: dict[str, Any] = {}
    for name, changes in ENGINES.items():
        cores[name] = core_of(model, next(iter(cores.values())).backend if cores else None, **changes)
    generator = random.Random(1)
    seen: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in cores}
    for number in range(max(ROUNDS.values())):
        for name in generator.sample(list(cores), len(cores)):
            if number < ROUNDS[name]:
                seen[name].append(visit(cores[name], number))
    found = []
    for name, visits in seen.items():
        middle, low, high = spread([beside / alone for alone, beside, _, _ in visits])
        note = f"mean {middle:.2f}, 95 % {low:.2f}-{high:.2f}, {len(visits)} rounds; {1e3 * mean(v[0] for v in visits):.0f} ms alone"
        note += f"; beside it a short one begins after {mean(v[2] for v in visits):.2f} s, the long one after {mean(v[3] for v in visits):.1f} s"
        target = 1.5 if name == "paced" else None
        found.append(Row(f"{name}: short ones' time per token, beside over alone", target, high, "x", note=note))
    next(iter(cores.values())).close()
    return [*found, *_memory(model)]


def _memory(model: Path) -> list[Row]:
    """What one engine takes for the long prompt beside short ones over what it said at its start, each in a process of its own."""
    found = []
    for name in ("whole prompts", "paced"):
        with ProcessPoolExecutor(1, get_context("spawn")) as child:
            taken, said = child.submit(_taken, model, ENGINES[name]).result()
        if taken is not None:
            note = f"{taken / 1e6:.0f} MB taken at the peak, {said / 1e6:.0f} MB said at the start"
            found.append(Row(f"{name}: memory, taken over what was said", 1.0, taken / said, "x", note=note))
    return found


def _taken(model: Path, changes: dict[str, Any]) -> tuple[int | None, int]:
    """Bytes by which this process grew to its peak while serving, and bytes that the engine had announced."""
    import torch  # noqa: F401 - what the libraries take is not the engine's

    before = _resident()
    core = core_of(model, **changes)
    said = sum(core.stats().memory_bytes.values())
    _reset_peak()
    visit(core, 0)
    peak = _resident(peak=True)
    core.close()
    return (None if peak is None or before is None else peak - before), said


def _resident(*, peak: bool = False) -> int | None:
    """Resident memory of this process, or its peak; None where the system does not tell."""
    name = "VmHWM:" if peak else "VmRSS:"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None


def _reset_peak() -> None:
    """The peak begins anew: loading a model takes its weights twice for a moment."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
