"""A shared prefix of 1,024 tokens and 16 requests at once: the same engine with and without its prefix cache.

Each round has a prefix of its own, so the cache is cold when the crowd comes; a second crowd with the same prefix finds it
there. The engines run in turns over one set of weights, in an order that changes. Answers must be equal, token for token.
"""

from __future__ import annotations

import random
from statistics import median
from typing import Any

from benchmarks._engine import core_of, model_dir, prompt, run_all, spread
from benchmarks.rows import Row

SHARED, OWN, ANSWER, AT_ONCE = 1024, 22, 32, 16
ROUNDS = 5


def crowd(seed: int, own_seed: int) -> list[Any]:
    """Requests that begin alike."""
    from vibeserve.engine.types import Request, SamplingParams

    shared, own = prompt(random.Random(seed), SHARED), random.Random(f"{seed}/{own_seed}")
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
    return [Request(f"r{number}", (*shared, *prompt(own, OWN)), params) for number in range(AT_ONCE)]


def rows() -> list[Row]:
    """Ratios of throughput and of the median time to the first token; targets are for the lower ends."""
    from vibeserve.base.errors import VibeServeError

    try:
        model = model_dir()
    except VibeServeError as error:
        return [Row("shared prefix", 4.0, None, "x", "higher", f"not run: {error}")]
    plain = core_of(model, chunked_prefill=True)
    run_all(plain, crowd(-1, 0)[:2])
    generator = random.Random(1)
    ratios: dict[tuple[str, str], list[float]] = {}
    for number in range(ROUNDS):
        # Another engine writes into the same blocks, so a cache lives for one turn.
        found: dict[str, tuple[float, float, dict[str, list[int]]]] = {}
        for name in generator.sample(("plain", "cached"), 2):
            if name == "plain":
                found["plain"] = _run(plain, crowd(number, 0))
                continue
            cached = core_of(model, plain.backend, chunked_prefill=True, prefix_cache=True)
            found["cold"] = _run(cached, crowd(number, 0))
            found["warm"] = _run(cached, crowd(number, 1))
        if found["plain"][2] != found["cold"][2]:
            raise AssertionError("the prefix cache changed an answer")
        for state in ("cold", "warm"):
            ratios.setdefault((state, "throughput"), []).append(found["plain"][0] / found[state][0])
            ratios.setdefault((state, "median TTFT"), []).append(found["plain"][1] / found[state][1])
    plain.close()
    made = []
    for (state, what), values in ratios.items():
        mean, low, high = spread(values)
        note = f"mean {mean:.2f}, 95 % {low:.2f}-{high:.2f}, {len(values)} rounds; the figure is the lower end"
        target = 4.0 if what == "throughput" else 5.0
        made.append(Row(f"{state} cache: {what}, times better", target, low, "x", "higher", note))
    return made


def _run(core: Any, requests: list[Any]) -> tuple[float, float, dict[str, list[int]]]:
    seconds, courses = run_all(core, requests)
    core.rest()
    firsts = [course.ttft_s for course in courses.values() if course.ttft_s is not None]
    return seconds, median(firsts), {name: course.ids for name, course in courses.items()}
