"""Predicted outputs: the same engine with and without, on the code-edit bundle's tasks, one request at a time.

Task by task, every variant runs in turn, in an order that changes with each task; a task's ratio is the plain engine's
time over the variant's. The interval is the percentile bootstrap's over tasks. Answers must be equal, token for token.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.rows import Row

BUNDLE = Path(__file__).parents[1] / "examples" / "model-serving" / "smollm2-135m-cpu-code-edit"
TOKENS = 192


@dataclass(frozen=True, slots=True)
class Variant:
    """An engine and what it is asked. `hopeless`: hot sampling and a prediction that is backwards, so that no draft helps."""

    name: str
    predicted_outputs: bool
    ngram_speculation: bool
    sends_prediction: bool = True
    hopeless: bool = False
    target: float | None = None


VARIANTS = (
    Variant("plain", False, False),
    Variant("predicted outputs", True, False, target=3.0),
    Variant("lookup", False, True),
    Variant("predicted outputs and lookup", True, True, target=3.0),
    Variant("predicted outputs and lookup, none sent", True, True, sends_prediction=False),
    Variant("plain, hopeless", False, False, hopeless=True),
    Variant("predicted outputs and lookup, hopeless", True, True, hopeless=True, target=0.95),
)


def interval(ratios: list[float], seed: int = 0) -> tuple[float, float, float]:
    """Geometric mean and its 95 % interval, by bootstrap."""
    logs = [math.log(ratio) for ratio in ratios]
    generator = random.Random(seed)
    means = sorted(sum(generator.choices(logs, k=len(logs))) / len(logs) for _ in range(2000))
    return math.exp(sum(logs) / len(logs)), math.exp(means[49]), math.exp(means[1949])


def rows() -> list[Row]:
    """Ratios to the plain engine; targets are for the lower end of each interval."""
    from vibeserve.base.errors import VibeServeError
    from vibeserve.targets import materialize, read_bundle

    try:
        model = materialize(read_bundle(str(BUNDLE)))
    except VibeServeError as error:
        return [Row("predicted edits", 3.0, None, "x", "higher", f"not run: {error}")]
    edits = [json.loads(line) for line in (BUNDLE / "benchmark" / "edits.jsonl").read_text().splitlines()]
    found = []
    for variant, ratios in compare(model, edits).items():
        mean, low, high = interval(ratios)
        note = f"mean {mean:.2f}, 95 % {low:.2f}-{high:.2f}, {len(ratios)} tasks; the figure is the lower end"
        found.append(Row(f"{variant.name}: speed over plain", variant.target, low, "x", "higher", note))
    return found


def compare(model: Path, edits: list[dict[str, Any]]) -> dict[Variant, list[float]]:
    """Each variant's speed over the plain engine's, task by task."""
    from vibeserve.engine.core import EngineCore
    from vibeserve.engine.settings import Settings
    from vibeserve.engine.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(model)
    cores = {
        knobs: EngineCore(
            model,
            Settings(
                max_model_len=1024, kv_memory_bytes=64 << 20, predicted_outputs=knobs[0], ngram_speculation=knobs[1]
            ),
        )
        for knobs in {(variant.predicted_outputs, variant.ngram_speculation) for variant in VARIANTS}
    }
    generator = random.Random(1)
    ratios: dict[Variant, list[float]] = {
        variant: [] for variant in VARIANTS if variant.predicted_outputs or variant.ngram_speculation
    }
    for number, edit in enumerate([edits[0], *edits]):
        taken = {
            variant: ask(cores[variant.predicted_outputs, variant.ngram_speculation], tokenizer, variant, edit)
            for variant in generator.sample(VARIANTS, len(VARIANTS))
        }
        for variant, found in ratios.items():
            plain = next(v for v in VARIANTS if v.hopeless == variant.hopeless and v not in ratios)
            if taken[variant][1] != taken[plain][1]:
                raise AssertionError(f"{variant.name}: another answer than the plain engine's to {edit['ask']!r}")
            if number:  # the first round warms up
                found.append(taken[plain][0] / taken[variant][0])
    for core in cores.values():
        core.close()
    return ratios


def ask(core: Any, tokenizer: Any, variant: Variant, edit: dict[str, Any]) -> tuple[float, list[int]]:
    """Seconds and answer of one task."""
    from vibeserve.engine.types import Request, SamplingParams

    text = tokenizer.template.render([{"role": "user", "content": edit["ask"]}], add_generation_prompt=True, extra={})
    ids = tuple(tokenizer.encode(text, add_special_tokens=False))
    predicted = tuple(tokenizer.encode(edit["prediction"], add_special_tokens=False))
    predicted = tuple(reversed(predicted)) if variant.hopeless else predicted
    heat = 2.0 if variant.hopeless else 0.0
    params = SamplingParams(temperature=heat, seed=1, max_tokens=TOKENS, ignore_eos=True)
    core.add(Request("edit", ids, params, prediction_ids=predicted if variant.sends_prediction else ()))
    answer: list[int] = []
    began = perf_counter()
    while core.has_work():
        for output in core.step():
            answer += output.token_ids
    return perf_counter() - began, answer
