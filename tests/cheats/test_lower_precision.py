"""Where a bundle allows a lower precision: what keeps to its share passes, what goes below it does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from .harness import BUNDLE, Reference, living, probed
from .llama import SMALL, Model
from .server import Ask, Honest, Tokens, serving

ALLOWS = replace(BUNDLE, dtypes=("float32", "bfloat16"), near_tie_margin=0.05, min_top1=0.9)


def in_bfloat16() -> Model:
    """The model with its weights in bfloat16."""
    model = Model()
    model.weights = {name: w.astype(ml_dtypes.bfloat16).astype(np.float32) for name, w in model.weights.items()}
    return model


class Computes(Honest):
    """Serves another model than the reference's."""

    model: Model

    def tokens(self, ask: Ask) -> Tokens:
        for token in self.model.tokens(ask.prompt, ask.count):
            time.sleep(self.step_s)
            yield token

    def sampled(self, ask: Ask) -> Tokens:
        for token in self.model.sampled(ask.prompt, ask.count, ask.body["temperature"], ask.body.get("seed")):
            time.sleep(self.step_s)
            yield token


#: Shares of tokens, teacher-forced: 99 %, 100 %, 97 %, 97 %.
KEEPS = {
    "bfloat16": in_bfloat16(), "12 bits": Model(bits=12), "10 bits": Model(bits=10), "cache in 8 bits": Model(cache_bits=8),
}  # fmt: skip
#: 48 %, 21 %, 60 %, and another model.
BREAKS = {"5 bits": Model(bits=5), "4 bits": Model(bits=4), "cache in 4 bits": Model(cache_bits=4), "small": SMALL}


@pytest.fixture(scope="module")
def oracle() -> Iterator[str]:
    with serving(Reference()) as url:
        yield url


def held(model: Model, oracle: str) -> list[str]:
    kind = type("OneModel", (Computes,), {"model": model})
    with living(kind) as life:
        return probed(life, oracle, 11, bundle=ALLOWS) or probed(life, oracle, 13, bundle=ALLOWS)


@pytest.mark.parametrize("name", KEEPS)
def test_within_the_allowance(name: str, oracle: str) -> None:
    assert held(KEEPS[name], oracle) == []


@pytest.mark.parametrize("name", BREAKS)
def test_beyond_it(name: str, oracle: str) -> None:
    assert any(words.startswith("top1") for words in held(BREAKS[name], oracle))
