"""Constrained JSON: jump-forward against masks alone, and against free decoding of as many tokens, one request at a time.

Schema by schema, every way runs in turn, in an order that changes; a schema's ratio is one way's time to the whole answer
over another's. The interval is the percentile bootstrap's over schemas. Every answer must be valid JSON for its schema.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.predicted_edits import interval
from benchmarks.rows import Row

BUNDLE = Path(__file__).parents[1] / "examples" / "model-serving" / "smollm2-135m-cpu-chat"
THINGS = ["invoice", "ticket", "sensor", "route", "parcel", "recipe", "playlist", "booking"]
FIELDS = [
    "customer_name",
    "total_amount",
    "currency_code",
    "created_at_date",
    "quantity_in_stock",
    "responsible_person",
]
MOST_TOKENS = 160


def schemas(seed: int, count: int) -> list[tuple[str, dict[str, Any]]]:
    """(thing, schema): objects as an application asks for them, with names, choices, whole numbers and a list."""
    generator = random.Random(seed)
    made = []
    for _ in range(count):
        kinds: list[dict[str, Any]] = [
            {"type": "string", "maxLength": 12},
            {"type": "integer", "minimum": 0, "maximum": 9999},
            {"enum": ["draft", "confirmed", "cancelled"]},
            {"type": "boolean"},
        ]
        properties = {name: generator.choice(kinds) for name in generator.sample(FIELDS, 4)}
        properties["history_of_states"] = {"type": "array", "items": kinds[2], "minItems": 2, "maxItems": 3}
        wanted = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
        made.append((generator.choice(THINGS), wanted))
    return made


def rows() -> list[Row]:
    """Ratios of time; targets are for the upper end of each interval."""
    from vibeserve.base.errors import VibeServeError
    from vibeserve.targets import materialize, read_bundle

    try:
        model = materialize(read_bundle(str(BUNDLE)))
    except VibeServeError as error:
        return [Row("constrained JSON", 0.75, None, "x", note=f"not run: {error}")]
    found = []
    for (name, target), ratios in compare(model).items():
        mean, low, high = interval(ratios)
        note = f"mean {mean:.2f}, 95 % {low:.2f}-{high:.2f}, {len(ratios)} schemas; the figure is the upper end"
        found.append(Row(name, target, high, "x", note=note))
    return found


def compare(model: Path, count: int = 16) -> dict[tuple[str, float], list[float]]:
    """Ratios of the time to a whole answer, by what is compared and its target."""
    import jsonschema

    from vibeserve.engine.constraints import grammar_of
    from vibeserve.engine.core import EngineCore
    from vibeserve.engine.settings import Settings
    from vibeserve.engine.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(model)
    cores = {
        jump: EngineCore(
            model,
            Settings(max_model_len=1024, kv_memory_bytes=64 << 20, constrained_decoding=True, jump_forward=jump),
        )
        for jump in (True, False)
    }
    generator = random.Random(1)
    jumped: list[float] = []
    masked: list[float] = []
    free: list[float] = []
    for number, (thing, wanted) in enumerate(schemas(7, count + 1)):
        ask = f"Describe one {thing} as JSON with these fields: {', '.join(wanted['properties'])}."
        text = tokenizer.template.render([{"role": "user", "content": ask}], add_generation_prompt=True, extra={})  # type: ignore[union-attr]
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        grammar = grammar_of("json", wanted, "schema")
        taken: dict[bool, tuple[float, list[int]]] = {}
        for jump in generator.sample((True, False), 2):
            taken[jump] = answer(cores[jump], ids, grammar, MOST_TOKENS)
            jsonschema.validate(json.loads(tokenizer.decode(taken[jump][1])), wanted)
        # As many tokens as the jumping answer has, and as the masked one has, without a grammar.
        unconstrained = {jump: answer(cores[False], ids, "", len(taken[jump][1]))[0] for jump in (True, False)}
        if number:  # the first round warms up
            jumped.append(taken[True][0] / taken[False][0])
            masked.append(taken[False][0] / unconstrained[False])
            free.append(taken[True][0] / unconstrained[True])
    for core in cores.values():
        core.close()
    return {
        ("JSON with jump-forward: time over masks alone", 0.75): jumped,
        ("JSON with jump-forward: time over as many free tokens", 1.1): free,
        ("JSON with masks alone: time over as many free tokens", 1.1): masked,
    }


def answer(core: Any, ids: tuple[int, ...], grammar: str, most: int) -> tuple[float, list[int]]:
    """Seconds and tokens of one greedy answer; a free one has exactly `most` tokens."""
    from vibeserve.engine.types import Request, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=not grammar)
    found: list[int] = []
    began = perf_counter()
    core.add(Request("json", ids, params, grammar=grammar))
    while core.has_work():
        for output in core.step():
            found += output.token_ids
    return perf_counter() - began, found
