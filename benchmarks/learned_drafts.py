"""Drafts from a small model of the answers so far, on and off, one request at a time: where answers have much in common, and not.

Both engines see the same questions in the same order, in turns that change; the learning one begins with nothing. Answers must be
equal, token for token.
"""

from __future__ import annotations

import random
from typing import Any

from benchmarks._engine import core_of, model_dir, run_all, spread
from benchmarks.rows import Row

ANSWER = 64
COUNTRIES = (
    "France",
    "Italy",
    "Spain",
    "Japan",
    "Norway",
    "Greece",
    "Egypt",
    "Canada",
    "Kenya",
    "Peru",
    "India",
    "Chile",
)
APART = (
    "Tell me about the sea.", "Who wrote Hamlet?", "Explain gravity to a child.", "How does one bake bread?",
    "What is a prime number?", "Why is the sky blue?", "Describe a good chair.", "How do bees make honey?",
    "What is a violin made of?", "Tell me a short story.", "How does a lock work?", "What does a judge do?",
)  # fmt: skip
LOADS = {
    "answers alike": [f"What is the capital of {country}, and what is it known for?" for country in COUNTRIES],
    "answers apart": list(APART),
}


def rows() -> list[Row]:
    """Speed over the plain engine, question by question; the target on the second is for what it may cost."""
    from vibeserve.base.errors import VibeServeError

    try:
        model = model_dir()
    except VibeServeError as error:
        return [Row("learned drafts", None, None, "x", "higher", f"not run: {error}")]
    plain = core_of(model)
    made = []
    for load, questions in LOADS.items():
        learning = core_of(model, plain.backend, learned_drafts=True)
        ratios = _compare(model, {"plain": plain, "learning": learning}, questions)
        stats = learning.stats()
        mean, low, high = spread(ratios)
        note = f"mean {mean:.2f}, 95 % {low:.2f}-{high:.2f}, {len(ratios)} questions; the figure is the lower end; "
        note += f"{stats.accepted_tokens} of {stats.proposed_tokens} drafted tokens taken"
        target = 0.95 if load == "answers apart" else None
        made.append(Row(f"learned drafts, {load}: speed over plain", target, low, "x", "higher", note))
    plain.close()
    return made


def _compare(model: Any, cores: dict[str, Any], questions: list[str]) -> list[float]:
    from vibeserve.engine.tokenizer import Tokenizer
    from vibeserve.engine.types import Request, SamplingParams

    tokenizer, generator, ratios = Tokenizer.load(model), random.Random(1), []
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
    for number, question in enumerate([questions[0], *questions]):
        text = tokenizer.template.render([{"role": "user", "content": question}])  # type: ignore[union-attr]
        request = Request("asked", tuple(tokenizer.encode(text, add_special_tokens=False)), params)
        found = {name: run_all(cores[name], [request]) for name in generator.sample([*cores], 2)}
        if found["plain"][1]["asked"].ids != found["learning"][1]["asked"].ids:
            raise AssertionError(f"drafts changed the answer to {question!r}")
        if number:  # the first is asked twice: it warms up
            ratios.append(found["plain"][0] / found["learning"][0])
    return ratios
