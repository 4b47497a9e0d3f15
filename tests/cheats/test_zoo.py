"""Every cheat is caught and no honest server is, by the judge's own probes before and after a load."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .adversary import ADVERSARY
from .candidates import TRICKS
from .further import FURTHER
from .harness import Reference, found_by_gates, found_by_probes, living, probed
from .honest import HONEST
from .insider import INSIDER
from .server import Honest, serving
from .zealous import ZEALOUS
from .zoo import CHEATS

#: Of each kind, these in every run of the tests; the rest with the slow ones.
QUICK = {"CacheByPrompt", "HonestUntilTheCheckerHasGone", "FewBits", "EmptyChunkEarlyAllAtTheEnd", "AnswersOnDisk"}
QUICK |= {"KnowsTheCheckerByItsPace", "SmallModelForLateTokens", "StopIgnored", "TimesOfItsOwn", "SeedIgnored"}
QUICK |= {
    "HalfAnAnswerByTheFirstIds",
    "HonestAtFirstOnEachConnection",
    "GrowingPieces",
    "FewerBitsInBigBatches",
    "SmallModelWhenSampling",
    "TwoSamplesKept",
    "QuickWhereNoIdsAreAsked",
    "PenaltiesIgnored",
    "CoalescesWhatIsInFlight",
    "LoopsNotComputed",
    "ComputesAllThenPaces",
    "PacesInCompany",
    "LoopsDraftedAndVerified",
    "HoldsTwoTokens",
}
QUICK |= {"plain", "PrefixCache", "LearnsFromItsAnswers", "BoldSpeculation", "knows-openai-alone"}
#: Put through the shipped checker and benchmark too in every run.
QUICK_GATES = {"plain", "Zeros"}
#: Refused by the bundle's checker for what they do not offer, in so many words; that is no accusation.
INCOMPLETE = {"without-usage", "knows-openai-alone", "knows-no-stream-options", "knows-no-seed-and-no-stop"}
#: Earn nothing, and are let pass: what they do shows in no figure of the benchmark, which asks nothing three times.
HARMLESS = {"CacheFromTheThirdTime"}


@pytest.fixture(scope="module")
def oracle() -> Iterator[str]:
    """The reference. Servers and judge are threads of one process here: they take turns more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    with serving(Reference()) as url:
        yield url
    sys.setswitchinterval(before)


def marked(names: dict[str, type[Honest]], quick: set[str]) -> list[object]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


#: Answer rightly, and are slow where nobody is thought to look: what they are measured at tells, not what they say.
MEASURED = {"FastInItsFirstLife"}

#: Earn where a benchmark asks otherwise than the shipped one, which has no words for it.
OTHER_BENCHMARK = {"QuickWhereNoIdsAreAsked", "PenaltiesIgnored"}

EVERY = CHEATS | FURTHER | ADVERSARY | ZEALOUS | INSIDER
ALL_CHEATS = {name: kind for name, kind in EVERY.items() if name not in HARMLESS}
GATED = {name: kind for name, kind in ALL_CHEATS.items() if name not in OTHER_BENCHMARK}
LIARS = {name: kind for name, kind in ALL_CHEATS.items() if name not in MEASURED}


@pytest.mark.parametrize("name", marked(LIARS, QUICK))
def test_a_cheat_is_caught_by_probes(name: str, oracle: str) -> None:
    # Probes of time say nothing sure of a machine whose cores others take: such a session is looked at again.
    assert any(found_by_probes(LIARS[name], oracle) for _ in range(3))


@pytest.mark.parametrize("name", marked(HONEST, QUICK))
def test_an_honest_server_is_not(name: str, oracle: str) -> None:
    assert found_by_probes(HONEST[name], oracle) == []


@pytest.mark.parametrize("name", sorted(OTHER_BENCHMARK))
def test_who_is_asked_so_and_heeds_it_is_not_accused(name: str, oracle: str) -> None:
    kind = ALL_CHEATS[name]
    with living(type("Heeds", (Honest,), {"fields": kind.fields, "lacks": kind.lacks})) as life:
        assert probed(life, oracle, 11) == []


@pytest.mark.parametrize("name", marked(GATED, QUICK_GATES))
def test_a_cheat_is_caught_by_the_gates_of_a_run(name: str, oracle: str) -> None:
    assert found_by_gates(GATED[name], oracle)


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
    root = Path(__file__).parents[2]
    told = {
        root / "docs" / "decisions" / "judge-probes.md": (
            f"{cheats} cheats and {len(HONEST)} honest servers",
            f"Caught {cheats} of {cheats}, false alarms 0 of {len(HONEST)}",
            f"{len(LIARS)} of {len(LIARS)}, and {len(HONEST)} of {len(HONEST)} pass",
            f"{len(GATED)} of {len(GATED)}, and {len(HONEST) - len(INCOMPLETE)} of",
        ),
        root / "README.md": (
            f"caught {cheats} of {cheats} servers that cheat, with false alarms on 0 of {len(HONEST)} honest ones",
        ),
    }
    for path, words in told.items():
        text = " ".join(path.read_text(encoding="utf-8").split())
        assert [each for each in words if each not in text] == [], path
