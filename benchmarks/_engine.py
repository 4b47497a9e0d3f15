"""What the benchmarks of the engine share: the model, cores that differ by settings alone, prompts, intervals."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

BUNDLE = "smollm2-135m-cpu-chat"
BASE: dict[str, Any] = {"max_batch": 16, "max_batch_tokens": 512, "prefix_cache": False, "chunked_prefill": False}
"""Plain continuous batching over the compiled kernels, in float32."""


def model_dir() -> Path:
    """The materialised model. Raises VibeServeError where it is not to be had."""
    from vibeserve.targets import materialize, read_bundle

    return Path(materialize(read_bundle(BUNDLE)))


def core_of(model: Path, backend: Any = None, **changes: Any) -> Any:
    """A core of the base settings with changes; on another core's weights and KV memory where `backend` is given."""
    from vibeserve.engine.core import EngineCore
    from vibeserve.engine.settings import Settings

    return EngineCore(model, Settings(**(BASE | changes)), backend)


def prompt(generator: random.Random, tokens: int, vocabulary: int = 49_000) -> tuple[int, ...]:
    """Ids that no other prompt has: nothing of them is ever cached or repeated."""
    return tuple(generator.randrange(100, vocabulary) for _ in range(tokens))


@dataclass
class Course:
    """One request: when it was due, when its tokens came (seconds of one clock), and what they were."""

    due: float
    times: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    refused: bool = False
    ended: bool = False

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token, from when it was due."""
        return self.times[0] - self.due if self.times else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds a further token."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1) if len(self.times) > 1 else None


def take(core: Any, courses: dict[str, Course]) -> None:
    """One step; its tokens are noted."""
    outputs = core.step()
    now = perf_counter()
    for output in outputs:
        course = courses.get(output.request_id)
        if course is None:
            continue
        course.times += [now] * len(output.token_ids)
        course.ids += output.token_ids
        course.ended = course.ended or output.finish_reason in ("stop", "length")


def run_all(core: Any, requests: list[Any]) -> tuple[float, dict[str, Course]]:
    """All at once, to the end: seconds, and each one's course."""
    began = perf_counter()
    courses = {request.id: Course(began) for request in requests}
    for request in requests:
        core.welcome(request)
        core.add(request)
    while core.has_work():
        take(core, courses)
    return perf_counter() - began, courses


def percentile(values: list[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def spread(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean of paired ratios and its 95 % interval (Student's t)."""
    from vibeserve.measure import paired_ratio

    found = paired_ratio([1.0] * len(ratios), ratios)
    return found.ratio, found.low, found.high
