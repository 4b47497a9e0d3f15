"""Preemption: requests that give way set aside, against computed again, where memory holds half of what is asked at once.

Both engines run in turns over one set of weights, in an order that changes. Answers must be equal, token for token.
"""

from __future__ import annotations

import random
from typing import Any

from benchmarks._engine import core_of, model_dir, percentile, prompt, run_all, spread
from benchmarks.rows import Row

AT_ONCE, PROMPT, ANSWER = 8, 256, 160
ROUNDS = 5
MEMORY = 80 << 20
"""1,820 tokens; the requests come to 3,328."""
ENGINES: dict[str, dict[str, Any]] = {"recompute": {}, "swap": {"swap_memory_bytes": 256 << 20}}


def rows() -> list[Row]:
    """The ratio, with what gave way."""
    from vibeserve.base.errors import VibeServeError

    try:
        model = model_dir()
    except VibeServeError as error:
        return [Row("preemption", None, None, "x", "higher", f"not run: {error}")]
    first = core_of(model, chunked_prefill=True, kv_memory_bytes=MEMORY)
    cores = {
        name: core_of(model, first.backend, chunked_prefill=True, kv_memory_bytes=MEMORY, **changes)
        for name, changes in ENGINES.items()
    }
    generator, ratios, lasts = random.Random(1), [], []
    for number in range(ROUNDS + 1):
        found = {name: run_all(cores[name], crowd(number)) for name in generator.sample([*ENGINES], 2)}
        answers = {name: {key: course.ids for key, course in courses.items()} for name, (_, courses) in found.items()}
        if answers["swap"] != answers["recompute"]:
            raise AssertionError("preemption by swap changed an answer")
        if number:  # the first round warms up
            ratios.append(found["recompute"][0] / found["swap"][0])
            lasts.append(percentile([c.ttft_s or 0.0 for c in found["swap"][1].values()], 1.0))
    stats = {name: core.stats() for name, core in cores.items()}
    first.close()
    mean, low, high = spread(ratios)
    note = f"95 % {low:.2f}-{high:.2f}, {ROUNDS} rounds; "
    note += "; ".join(
        f"{name}: {one.preemptions} gave way, {one.swapped} set aside, {one.prefill_tokens} prompt tokens computed"
        for name, one in stats.items()
    )
    return [
        Row("swap over recompute: speed", None, mean, "x", "higher", note),
        Row("longest wait for a first token, with swap", None, max(lasts), "s"),
    ]


def crowd(seed: int) -> list[Any]:
    """Requests that do not fit the memory together."""
    from vibeserve.engine.types import Request, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
    generator = random.Random(f"preemption/{seed}")
    return [Request(f"r{number}", prompt(generator, PROMPT), params) for number in range(AT_ONCE)]
