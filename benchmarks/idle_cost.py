"""What a technique costs where it cannot help: the engine with it switched on, over the one without, on the same requests.

Prompts are random and share nothing, answers are drawn hot, predictions are of something else, nobody asks for a format.
All engines run in turns over one set of weights, in an order that changes with each round.
"""

from __future__ import annotations

import random
from typing import Any

from benchmarks._engine import core_of, model_dir, prompt, run_all, spread
from benchmarks.rows import Row

ROUNDS = 16
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
    cores = {"plain": plain} | {name: core_of(model, plain.backend, **changes) for name, changes in TECHNIQUES.items()}
    found = []
    for at_once in AT_ONCE:
        for name, ratios in compare(cores, at_once).items():
            mean, low, high = spread(ratios)
            note = f"mean {mean:.3f}, 95 % {low:.3f}-{high:.3f}, {len(ratios)} rounds; the figure is the lower end"
            found.append(Row(f"{name}, {at_once} at once: speed over plain", 0.95, low, "x", "higher", note))
    plain.close()
    return found


def compare(cores: dict[str, Any], at_once: int) -> dict[str, list[float]]:
    """Each technique's speed over the plain engine, round by round."""
    from vibeserve.engine.types import Request, SamplingParams

    generator = random.Random(at_once)
    ratios: dict[str, list[float]] = {name: [] for name in cores if name != "plain"}
    for number in range(ROUNDS + 1):
        asked = [
            Request(
                f"r{index}",
                prompt(generator, PROMPT),
                SamplingParams(temperature=2.0, seed=number, max_tokens=ANSWER, ignore_eos=True),
                prediction_ids=prompt(generator, ANSWER),
            )
            for index in range(at_once)
        ]
        taken = {name: run_all(cores[name], asked)[0] for name in generator.sample(list(cores), len(cores))}
        for name, found in ratios.items():
            if number:  # the first round warms up
                found.append(taken["plain"] / taken[name])
    return ratios
