"""What a technique costs where it cannot help: the engine with it switched on, over the one without, on the same requests.

Prompts are random and share nothing, answers are drawn hot, predictions are of something else, nobody asks for a format.
Each technique's engine runs right beside the plain one over one set of weights, first or second by turns. The figure is the
lower end of an interval of the median ratio: a neighbour that disturbs one run of a pair says nothing of the technique.
"""

from __future__ import annotations

import random
from statistics import median
from typing import Any

from benchmarks._engine import core_of, model_dir, prompt, run_all
from benchmarks.rows import Row

PAIRS = 40
AT_ONCE = (1, 4)
PROMPT, ANSWER = 48, 48
TECHNIQUES: dict[str, dict[str, Any]] = {
    "prefix cache": {"prefix_cache": True},
    "chunked prefill": {"chunked_prefill": True},
    "predicted outputs": {"predicted_outputs": True},
    "n-gram lookup": {"ngram_speculation": True},
    "learned drafts": {"learned_drafts": True},
    "swap": {"swap_memory_bytes": 64 << 20},
    "constrained decoding": {"constrained_decoding": True},
    "jump-forward": {"constrained_decoding": True, "jump_forward": True},
    "paced prefill": {"chunked_prefill": True, "prefill_stretch_pct": 135},
    "latency targets": {"chunked_prefill": True, "ttft_target_ms": 1000, "tpot_target_ms": 100},
}


def rows() -> list[Row]:
    """Speed over the plain engine; the target is for the lower end of each interval."""
    from vibeserve.base.errors import VibeServeError

    try:
        model = model_dir()
    except VibeServeError as error:
        return [Row("idle cost", 0.95, None, "x", "higher", f"not run: {error}")]
    plain = core_of(model)
    cores = {name: core_of(model, plain.backend, **changes) for name, changes in TECHNIQUES.items()}
    found = []
    for at_once in AT_ONCE:
        for name, core in cores.items():
            ratios = compare(plain, core, at_once)
            middle, low, high = median_interval(ratios)
            note = f"median {middle:.3f}, 95 % {low:.3f}-{high:.3f}, {len(ratios)} pairs; the figure is the lower end"
            found.append(Row(f"{name}, {at_once} at once: speed over plain", 0.95, low, "x", "higher", note))
    plain.close()
    return found


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """Median and its 95 % interval by order statistics; no distribution is assumed."""
    from scipy.stats import quantile_test

    interval = quantile_test(values, p=0.5).confidence_interval(0.95)
    return median(values), float(interval.low), float(interval.high)


def compare(plain: Any, core: Any, at_once: int) -> list[float]:
    """A technique's speed over the plain engine, pair by pair."""
    from vibeserve.engine.types import Request, SamplingParams

    generator = random.Random(at_once)
    ratios = []
    for number in range(PAIRS + 1):
        asked = [
            Request(
                f"r{index}",
                prompt(generator, PROMPT),
                SamplingParams(temperature=2.0, seed=number, max_tokens=ANSWER, ignore_eos=True),
                prediction_ids=prompt(generator, ANSWER),
            )
            for index in range(at_once)
        ]
        order = [plain, core] if number % 2 else [core, plain]
        taken = {id(one): run_all(one, asked)[0] for one in order}
        if number:  # the first pair warms up
            ratios.append(taken[id(plain)] / taken[id(core)])
    return ratios
