"""Drive an engine by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from vibeserve.engine.core import EngineCore
from vibeserve.engine.types import Output, Request, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def prompt(seed: int, length: int, vocabulary: int = 320) -> tuple[int, ...]:
    """A prompt drawn from a seed."""
    return tuple(int(token) for token in np.random.default_rng(seed).integers(3, vocabulary, length))


def finish(core: EngineCore, limit: int = 10_000) -> dict[str, list[Output]]:
    """Step until nothing is left; outputs by request."""
    outputs: dict[str, list[Output]] = {}
    for _ in range(limit):
        if not core.has_work():
            core.rest()
            return outputs
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("the engine does not come to an end")


def tokens_of(outputs: Iterable[Output]) -> list[int]:
    """All tokens of one request."""
    return [token for output in outputs for token in output.token_ids]


def answer(core: EngineCore, ids: tuple[int, ...], params: SamplingParams = GREEDY, **changes: object) -> list[int]:
    """One request alone."""
    core.add(Request("alone", ids, replace(params, **changes)))  # type: ignore[arg-type]
    return tokens_of(finish(core)["alone"])
