"""Every cheat is caught and no honest server is, by the judge's own probes before and after a load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .candidates import TRICKS
from .further import FURTHER
from .harness import Reference, found_by_gates, found_by_probes
from .honest import HONEST
from .server import Honest, serving
from .zoo import CHEATS

#: Of each kind, these in every run of the tests; the rest with the slow ones.
QUICK = {"CacheByPrompt", "HonestUntilTheCheckerHasGone", "FewBits", "EmptyChunkEarlyAllAtTheEnd", "AnswersOnDisk"}
QUICK |= {"KnowsTheCheckerByItsPace", "SmallModelForLateTokens", "StopIgnored", "TimesOfItsOwn", "SeedIgnored"}
QUICK |= {"plain", "PrefixCache", "LearnsFromItsAnswers", "BoldSpeculation", "knows-openai-alone"}
#: Put through the shipped checker and benchmark too in every run.
QUICK_GATES = {"plain", "Zeros"}
#: Refused by the bundle's checker for what they do not offer, in so many words; that is no accusation.
INCOMPLETE = {"without-usage", "knows-openai-alone", "knows-no-stream-options", "knows-no-seed-and-no-stop"}
#: Earn nothing, and are let pass: what they do shows in no figure of the benchmark, which asks nothing three times.
HARMLESS = {"CacheFromTheThirdTime"}


@pytest.fixture(scope="module")
def oracle() -> Iterator[str]:
    with serving(Reference()) as url:
        yield url


def marked(names: dict[str, type[Honest]], quick: set[str]) -> list[object]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


ALL_CHEATS = {name: kind for name, kind in (CHEATS | FURTHER).items() if name not in HARMLESS}


@pytest.mark.parametrize("name", marked(ALL_CHEATS, QUICK))
def test_a_cheat_is_caught_by_probes(name: str, oracle: str) -> None:
    # Probes of time say nothing sure of a machine whose cores others take: such a session is looked at again.
    assert any(found_by_probes(ALL_CHEATS[name], oracle) for _ in range(3))


@pytest.mark.parametrize("name", marked(HONEST, QUICK))
def test_an_honest_server_is_not(name: str, oracle: str) -> None:
    assert found_by_probes(HONEST[name], oracle) == []


@pytest.mark.parametrize("name", marked(ALL_CHEATS, QUICK_GATES))
def test_a_cheat_is_caught_by_the_gates_of_a_run(name: str, oracle: str) -> None:
    assert found_by_gates(ALL_CHEATS[name], oracle)


@pytest.mark.parametrize(
    "name", marked({name: kind for name, kind in HONEST.items() if name not in INCOMPLETE}, QUICK_GATES)
)
def test_an_honest_server_passes_the_gates_of_a_run(name: str, oracle: str) -> None:
    assert found_by_gates(HONEST[name], oracle) == []


def test_the_figure_that_is_told() -> None:
    """README and decisions tell how many there are; whoever adds one says so there."""
    cheats = len(ALL_CHEATS) + len(TRICKS) + 1  # and the one that has made its answers before
    assert cheats >= 25
    assert len(HONEST) - len(INCOMPLETE) >= 25
    told = Path(__file__).parents[2] / "docs" / "decisions" / "judge-probes.md"
    assert f"{cheats} cheats and {len(HONEST)} honest servers" in " ".join(told.read_text(encoding="utf-8").split())
