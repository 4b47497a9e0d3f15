"""Every cheat is caught, no honest server is: the judge's own probes before and after a load, and answers sampled from it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vibeserve.judge import probe
from vibeserve.judge.client import CHAT, Client
from vibeserve.judge.probes.agreement import shared
from vibeserve.judge.prompts import draw
from vibeserve.targets import Bundle, Metric, ModelMeta

from .server import Honest, serving
from .zoo import CHEATS, HONEST

HERE = Path(__file__).parent
BUNDLE = Bundle(
    path=None,
    slug="zoo",
    reference=HERE,
    checker=HERE,
    benchmark=HERE,
    objective=None,
    metric=Metric("output_tokens_per_s", "tokens/s", "higher"),
    meta=ModelMeta("none"),
    api="openai-chat",
)
LENGTHS = {"prompt_tokens": 40, "output_tokens": 24}
#: Of each kind, these in every run of the tests; the rest with the slow ones.
QUICK = {"CacheByPrompt", "CacheByPrefixHash", "HonestUntilTheCheckerHasGone", "SmallModelUnderLoad", "FewBits"}
QUICK |= {"EmptyChunkEarlyAllAtTheEnd", "EarlyEndPaddedInUsage", "plain", "PrefixCache", "LearnsFromItsAnswers"}
QUICK |= {"Speculation", "knows-openai-alone"}


class Reference(Honest):
    step_s = 0.0


@pytest.fixture(scope="module")
def oracle() -> Iterator[str]:
    with serving(Reference()) as url:
        yield url


def probed(url: str, oracle: str, seed: int) -> list[str]:
    """What the probes hold against a server."""
    results = probe(BUNDLE, url, seed=seed, oracle_url=oracle, timeout_s=20.0, **LENGTHS)
    return [f"{result.name}: {result.detail}" for result in results if result.ok is False]


def loaded(url: str, oracle: str, seed: int) -> list[str]:
    """What sampled answers of a load of four requests at once hold against it."""
    prompts = draw(seed, 16, LENGTHS["prompt_tokens"])
    client, truth = Client(url, CHAT, 20.0), Client(oracle, CHAT, 20.0)
    client.ask(prompts[0], 2)  # finds out which fields it knows
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda prompt: client.ask(prompt, LENGTHS["output_tokens"]), prompts))
    wrong = [answer.error for answer in answers if answer.error]
    for answer in answers[::3]:
        if not answer.error and shared(truth.ask(answer.prompt, answer.asked, stream=False), answer) < 1.0:
            wrong.append("a sampled answer is not the reference's")
    return [f"load: {words}" for words in wrong]


def found(kind: type[Honest], oracle: str) -> list[str]:
    """Everything that is held against a server, in the order of a run: probes, load, other probes."""
    with serving(kind()) as url:
        return probed(url, oracle, 11) or loaded(url, oracle, 12) or probed(url, oracle, 13)


def marked(names: dict[str, type[Honest]]) -> list[object]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", marked(CHEATS))
def test_a_cheat_is_caught(name: str, oracle: str) -> None:
    assert found(CHEATS[name], oracle)


@pytest.mark.parametrize("name", marked(HONEST))
def test_an_honest_server_is_not(name: str, oracle: str) -> None:
    assert found(HONEST[name], oracle) == []


def test_the_zoo_is_large_enough() -> None:
    assert len(CHEATS) >= 25
    assert len(HONEST) >= 25
    assert set(CHEATS) | set(HONEST) >= QUICK
