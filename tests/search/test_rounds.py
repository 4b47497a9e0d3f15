"""A round's record, word for word: gates in their order, what each costs, and what becomes of the hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.search.conftest import Scenario

from vibeserve.agents.agent import Edit, Proposal, SearchState, Stop
from vibeserve.base.errors import InputError
from vibeserve.search.lab import Window
from vibeserve.search.scripted import Behaviour, ScriptedAgent, ScriptedLab, ScriptedServer
from vibeserve.search.store import RunView

PROPOSALS = [
    {"techniques": ["batching"]},
    {"techniques": ["cache"]},
    {"techniques": ["late"], "parent": "c0"},
    {"techniques": ["slow", "batching"]},
    {"techniques": ["worse"]},
]
BEHAVIOURS = {
    "c0": Behaviour(25, spread=0.0),
    "c1": Behaviour(250, spread=0.0, facts={"a": 1.0}),
    "c2": Behaviour(120, spread=0.0, probes={"one": True, "two": True}),
    "c3": Behaviour(300, start="no port"),
    "c4": Behaviour(249.9, spread=0.0),
    "c5": Behaviour(250, spread=0.0),
}
#: (seconds, what is told) of round 1.
ROUND_1 = [
    (0, "round 1: try batching. it is faster"),
    (0, "round 1: wrote batching"),
    (5, "round 1: ready after 5.0 s"),
    (15, "round 1: 3 of 3 cases passed"),
    (20, "round 1: 1 probes, none failed"),
    *((25 + 32 * pair, f"pair {pair} of 5: c1 250, c0 25 (10×)") for pair in range(1, 6)),
    (190, "round 1: 1 probes after its pairs, none failed"),
    (198, "round 1: answers under load: as scripted"),
    (208, "round 1: started again after 5.0 s, it has 1× of the value of its pairs"),
    (208, "round 1: kept: 10× (95 % interval 10 to 10, 5 pairs) of c0"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    run = Scenario(tmp_path_factory.mktemp("whole"), BEHAVIOURS, PROPOSALS)
    run.run()
    assert run.directory is not None
    return RunView(run.directory)


def test_what_is_told(whole: RunView) -> None:
    events = [(event["at_s"], event["text"]) for event in whole.events()]
    first = next(place for place, (_, text) in enumerate(events) if text.startswith("round 1"))
    begin_s = events[first][0]
    assert [(at_s - begin_s, text) for at_s, text in events[first : first + len(ROUND_1)]] == ROUND_1
    texts = [text for _, text in events]
    assert "round 2: 2 probes, none failed" in texts
    assert texts.count("round 3: no port") == 0
    assert next(text for text in texts if "c4" in text) == "pair 1 of 5: c4 249.9, c1 250 (1×)"
    assert texts[texts.index("no further round: the script has ended") + 1].startswith("final 1 of 5")


def test_the_steps(whole: RunView) -> None:
    keys = [step["key"] for step in whole.steps()]
    of = {number: [key.partition("/")[2] for key in keys if key.startswith(f"r{number}/")] for number in range(7)}
    pairs = [f"pair/{pair}" for pair in range(5)]
    before = ["propose", "build", "start", "check", "probe", "screen"]
    around = [*before, "integrity before its pairs", *pairs, "integrity after its pairs"]
    assert of[1] == [*around, "probe after its pairs", "answers", "restart", "decide"]
    assert of[2] == [*before, "decide"]
    assert of[3] == [*before[:3], "decide"]
    assert of[4] == of[5] == [*around, "decide"]
    assert of[6] == ["propose"]


def test_the_decisions(whole: RunView) -> None:
    rows = [row for row in whole.decisions() if row.kind == "round"]
    assert [(row.round, row.candidate, row.against, row.verdict, row.pairs) for row in rows] == [
        (0, "c0", "c0", "kept", 0), (1, "c1", "c0", "kept", 5), (2, "c2", "c1", "not-better", 0),
        (3, "c3", "c1", "failed-start", 0), (4, "c4", "c1", "not-better", 5), (5, "c5", "c1", "not-better", 5),
    ]  # fmt: skip
    assert [row.reason for row in rows[1:]] == [
        "10× (95 % interval 10 to 10, 5 pairs) of c0", "a first window shows 0.48× of c1's value", "no port",
        "slower: 1× (95 % interval 1 to 1, 5 pairs) of c1", "the interval holds 1: 1× (95 % interval 1 to 1, 5 pairs) of c1; in this noise gains under 1× may stay unseen",
    ]  # fmt: skip
    assert [row.value for row in rows] == pytest.approx([25, 250, 120, None, 249.9, 250])
    assert [row.ratio for row in rows] == pytest.approx([None, 10, None, None, 0.9996, 1])
    assert [(row.ci_low, row.ci_high) for row in rows[2:4]] == [(None, None)] * 2
    assert (rows[4].ci_low, rows[4].ci_high) == pytest.approx((0.9996, 0.9996))


def test_the_hypotheses(whole: RunView) -> None:
    rows = whole.hypotheses()
    assert [(row.round, row.state) for row in rows] == [
        (1, "proven"), (2, "disproven"), (3, "abandoned"), (4, "disproven"), (5, "disproven")
    ]  # fmt: skip
    reasons = [row.reason for row in whole.decisions() if row.kind == "round"]
    assert [row.mechanism for row in rows] == ["", *reasons[2:]]
    assert {row.proposed_by for row in rows} == {"scripted"}
    assert [row.parent for row in rows] == ["c0", "c1", "c0", "c1", "c1"]


def test_candidates_have_all_techniques_of_their_parents(whole: RunView) -> None:
    rows = whole.candidates()
    assert [row.techniques for row in rows] == [
        (), ("batching",), ("batching", "cache"), ("late",), ("batching", "slow"), ("batching", "worse")
    ]  # fmt: skip
    assert [row.parent for row in rows] == [None, "c0", "c1", "c0", "c1", "c1"]
    assert rows[1].summary == "wrote batching"
    assert len({row.commit for row in rows}) == 6


def test_the_gates(whole: RunView) -> None:
    rows = [(row.name, row.ok, row.detail) for row in whole.gates() if row.candidate == "c1"]
    unchanged = "1 evaluator parts and the weights are unchanged"
    assert rows == [
        ("start", True, "ready after 5.0 s"), ("check", True, "3 of 3 cases passed"),
        ("probe sentinel", True, "as scripted"), ("integrity before its pairs", True, unchanged),
        ("integrity after its pairs", True, unchanged), ("probe sentinel after its pairs", True, "as scripted"),
        ("answers under load", True, "as scripted"),
        ("restart", True, "started again after 5.0 s, it has 1× of the value of its pairs"),
    ]  # fmt: skip
    (failed,) = [row for row in whole.gates() if row.candidate == "c3"]
    assert (failed.name, failed.ok, failed.detail, failed.document) == ("start", False, "no port", {})
    started = next(row for row in whole.gates() if row.candidate == "c1")
    assert started.document == {"ready_s": 5.0}
    (answers,) = [row for row in whole.gates() if row.name == "answers under load"]
    assert answers.document == {"of": "logs/pair-4-c1.json"}


def test_the_screen_is_evidence(whole: RunView) -> None:
    (screen,) = [row for row in whole.measurements("c1") if row.kind == "screen"]
    assert (screen.round, screen.pair, screen.window_s, screen.value) == (1, 0, 4.0, pytest.approx(250))
    assert screen.document == "logs/screen.json"
    assert {row.name: row.value for row in whole.evidence("c1")}["a"] == 1.0


def test_seeds_of_a_round_are_its_own(whole: RunView) -> None:
    seeds = [row.document["seed"] for row in whole.gates() if row.name == "check" and row.round > 0]
    assert len(set(seeds)) == len(seeds) == 4


# ------------------------------------------------------------------------------------------------ special rounds


def reason_of(scenario: Any, behaviour: Behaviour, name: str) -> tuple[str, str]:
    document = scenario({"c0": Behaviour(10, spread=0.0), "c1": behaviour}, PROPOSALS[:1], name).run()
    return document["rounds"][1]["verdict"], document["rounds"][1]["reason"]


def test_reasons(scenario: Any) -> None:
    both = {"sentinel": False, "clock": True, "usage": False}
    assert reason_of(scenario, Behaviour(99, probes=both), "probes") == (
        "rejected-integrity", "probe sentinel: as scripted; probe usage: as scripted"
    )  # fmt: skip
    assert reason_of(scenario, Behaviour(99, check=None), "unrun") == (
        "failed-run", "the checker could not be run: the checker could not run"
    )  # fmt: skip
    assert reason_of(scenario, Behaviour(99, check=False), "wrong") == ("rejected-accuracy", "1 of 3 cases failed")
    verdict, reason = reason_of(scenario, Behaviour(99, next_lives=0.5), "first life")
    assert (verdict, reason[:39]) == ("not-better", "its gain does not outlast a restart: 0.")
    assert reason_of(scenario, Behaviour(99, failed=2), "failing") == (
        "failed-run", "2 requests failed under load"
    )  # fmt: skip
    assert reason_of(scenario, Behaviour(99, answers=False), "answers") == (
        "rejected-accuracy", "answers under load: as scripted"
    )  # fmt: skip


def test_a_caught_winner_keeps_its_comparison(scenario: Any) -> None:
    document = scenario(
        {"c0": Behaviour(10, spread=0.0), "c1": Behaviour(99, spread=0.0, probes_after={"sentinel": False})},
        PROPOSALS[:1],
    ).run()
    entry = document["rounds"][1]
    assert (entry["verdict"], entry["pairs"], entry["ratio"]) == ("rejected-integrity", 5, pytest.approx(9.9))
    assert entry["value"] == pytest.approx(99)
    assert entry["hypothesis_state"] == "disproven"


def test_probes_that_fail_and_probes_that_are_not_run_are_told(scenario: Any) -> None:
    probes: dict[str, Any] = {"one": False, "two": None, "three": True}
    run = scenario({"c0": Behaviour(10), "c1": Behaviour(99, probes=probes)}, PROPOSALS[:1])
    run.run()
    assert "round 1: 2 probes, failed probe one" in run.told
    run = scenario({"c0": Behaviour(10), "c1": Behaviour(99, probes={"one": None})}, PROPOSALS[:1], "unrun")
    run.run()
    assert "round 1: 0 probes, as scripted" in run.told


@pytest.mark.parametrize(("value", "verdict"), [(6.9, "not-better"), (7.0, "not-better"), (7.1, "not-better")])
def test_only_far_behind_is_rejected_at_once(scenario: Any, value: float, verdict: str) -> None:
    document = scenario({"c0": Behaviour(10, spread=0.0), "c1": Behaviour(value, spread=0.0)}, PROPOSALS[:1]).run()
    entry = document["rounds"][1]
    assert entry["verdict"] == verdict
    assert ("a first window" in entry["reason"]) is (value < 7)
    assert (entry["pairs"] > 0) is (value >= 7)


def test_what_was_tried_first_is_screened_against_the_reference(scenario: Any) -> None:
    document = scenario({"c0": Behaviour(10, spread=0.0), "c1": Behaviour(1, spread=0.0)}, PROPOSALS[:1]).run()
    assert document["rounds"][1]["reason"] == "a first window shows 0.1× of c0's value"


def test_a_screen_that_brings_nothing(scenario: Any) -> None:
    document = scenario({"c0": Behaviour(10), "c1": Behaviour(99, silent=(1,))}, PROPOSALS[:1]).run()
    assert document["rounds"][1]["verdict"] == "failed-run"
    assert document["rounds"][1]["reason"] == "c1: nothing was measured"
    (row,) = document["rounds"][1]["measurements"]
    assert (row["kind"], row["value"], row["reason"]) == ("screen", None, "c1: nothing was measured")


@pytest.mark.parametrize(("shows_after_s", "verdict"), [(11.0, "kept"), (13.0, "failed-run")])
def test_a_window_in_which_most_wait_for_a_first_token_is_followed_by_one_of_12_s(
    scenario: Any, shows_after_s: float, verdict: str
) -> None:
    condition = {"fact": "batch.rows_per_step", "op": ">=", "value": 1.5, "why": ""}
    slow = Behaviour(9, facts={"batch.rows_per_step": 6}, shows_after_s=shows_after_s)
    run = scenario({"c0": Behaviour(1), "c1": slow}, [{"techniques": ["a"], "activation": [condition]}])
    entry = run.run()["rounds"][1]
    assert entry["verdict"] == verdict
    screens = [row for row in entry["measurements"] if row["kind"] == "screen"]
    assert [row["document"] for row in screens] == ["logs/screen.json", "logs/screen-longer.json"]


def test_several_conditions_of_activation(scenario: Any) -> None:
    def proposals(*values: float) -> list[dict[str, Any]]:
        conditions = [{"fact": f"f{n}", "op": ">=", "value": value, "why": ""} for n, value in enumerate(values)]
        return [{"techniques": ["a"], "activation": conditions}]

    facts = {"c0": Behaviour(1), "c1": Behaviour(9, facts={"f0": 2.0, "f1": 3.0})}
    assert scenario(facts, proposals(2, 3), "on").run()["rounds"][1]["verdict"] == "kept"
    for place, values in enumerate([(2.5, 3), (2, 3.5)]):
        entry = scenario(facts, proposals(*values), f"off {place}").run()["rounds"][1]
        assert entry["verdict"] == "failed-run"
        seen = (f"f0 should be >= 2.5, is {2.0}", f"f1 should be >= 3.5, is {3.0}")[place]
        assert entry["reason"] == f"the technique was not at work: {seen}"
    silent = {"c0": Behaviour(1), "c1": Behaviour(9, facts={"f0": 2.0})}
    entry = scenario(silent, proposals(2, 3), "silent").run()["rounds"][1]
    assert entry["reason"] == "the technique was not at work: f1 should be >= 3, is not reported"


class Refuses(ScriptedAgent):
    """Cannot build what it has proposed."""

    def edit(self, proposal: Proposal, worktree: Path) -> Edit:
        raise InputError("there is no such part")


class Beside(ScriptedAgent):
    """Three hypotheses at once, then no more."""

    def propose(self, state: SearchState) -> Any:
        if state.round > 1:
            return Stop("plateau", "all is said")
        return tuple(
            Proposal(
                techniques=(name,), title=name, parent="c0", hypothesis="faster", expected_effect="", expected_ratio=2.0,
                falsification="", activation=(), settings={}, why="",
            )
            for name in ("one", "two", "three")
        )  # fmt: skip


def with_agent(
    tmp_path: Path, kind: Callable[[Sequence[Mapping[str, Any]]], ScriptedAgent], behaviours: Any, **rest: Any
) -> Scenario:
    run = Scenario(tmp_path / "agent", behaviours, PROPOSALS[:1], **rest)
    made = run.new_world

    def world(die: Callable[[str], None] = lambda act: None) -> Any:
        found = made(die)
        found.make_agent = lambda: kind(run.proposals)
        return found

    run.new_world = world  # type: ignore[method-assign]
    return run


def test_what_cannot_be_built(tmp_path: Path) -> None:
    document = with_agent(tmp_path, Refuses, {"c0": Behaviour(10)}).run()
    entry = document["rounds"][1]
    assert (entry["verdict"], entry["reason"]) == ("failed-start", "it could not be built: there is no such part")
    assert (entry["commit"], entry["summary"]) == (None, "")


def test_hypotheses_side_by_side_have_a_round_each(tmp_path: Path) -> None:
    behaviours = {"c0": Behaviour(10, spread=0.0)} | {f"c{n}": Behaviour(10.0 * n, spread=0.0) for n in (1, 2, 3)}
    run = with_agent(tmp_path, Beside, behaviours)
    document = run.run()
    assert [entry["technique"] for entry in document["rounds"]] == ["reference", "one", "two", "three"]
    assert [entry["verdict"] for entry in document["rounds"]] == ["kept", "not-better", "kept", "kept"]
    assert [entry["parent"] for entry in document["rounds"]] == [None, "c0", "c0", "c0"]
    first = next(place for place, text in enumerate(run.told) if text == "round 1: one. faster")
    assert run.told[first + 1 : first + 3] == ["round 2: two. faster", "round 3: three. faster"]
    assert "round 2: two (proposed beside round 1)" in run.told
    assert "round 3: three (proposed beside round 2)" in run.told
    assert document["stopped"]["reason"] == "all is said"


def test_hypotheses_whose_round_never_comes_are_parked(tmp_path: Path) -> None:
    run = with_agent(tmp_path, Beside, {"c0": Behaviour(10), "c1": Behaviour(20)}, rounds=1)
    document = run.run()
    assert (document["stopped"]["kind"], document["stopped"]["reason"]) == ("rounds", "all 1 rounds are done")
    assert run.directory is not None
    with RunView(run.directory) as view:
        assert [row.state for row in view.hypotheses()] == ["proven", "parked", "parked"]


def test_servers_that_are_no_longer_needed_are_ended(scenario: Any) -> None:
    run = scenario(BEHAVIOURS, PROPOSALS)
    run.begin()
    seen: list[tuple[str, list[str]]] = []
    run.go_on(die=lambda act: seen.append((act, sorted(run.world.labs[-1].open_servers))))
    running = [names for act, names in seen if act == "start c4"]
    assert running == [["c0", "c1"]]
    assert max(len(names) for _, names in seen) == 3


def test_a_budget_ends_the_search_with_what_it_leaves(scenario: Any) -> None:
    many = [{"techniques": [f"t{number}"]} for number in range(9)]
    behaviours = {f"c{number}": Behaviour(1, spread=0.0) for number in range(10)}
    run = scenario(behaviours, many, budget_s=600.0)
    document = run.run()
    assert document["stopped"]["kind"] == "budget"
    said = document["stopped"]["reason"].split()
    left_s, needed_s = float(said[0]), float(said[-2])
    assert 0 < left_s < needed_s
    assert document["elapsed_s"] + left_s == pytest.approx(600, abs=1)
    tight = scenario(behaviours, many, "tight", budget_s=1.0).run()
    assert len(tight["rounds"]) == 2
    assert tight["stopped"]["reason"].startswith(
        "nothing is left of the budget; a round and the final comparison are expected to take "
    )


def test_what_is_kept_back_of_a_budget_is_enough_for_the_final_comparison(scenario: Any) -> None:
    behaviours = {f"c{number}": Behaviour(1.2**number, spread=0.0) for number in range(6)}
    many = [{"techniques": [f"t{number}"]} for number in range(5)]
    document = scenario(behaviours, many, budget_s=480.0).run()
    assert document["stopped"]["kind"] == "budget"
    assert document["improvement"]["pairs"] == 5
    assert document["elapsed_s"] <= 480


def test_integrity_says_what_has_changed(scenario: Any) -> None:
    run = scenario({"c0": Behaviour(1), "c1": Behaviour(9, tampers=True)}, PROPOSALS[:1])
    with pytest.raises(
        Exception, match=r"c1 changed what it is measured with \(evaluator changed: accuracy_checker/checker"
    ):
        run.run()
    with RunView(run.directory) as view:
        gate = next(row for row in view.gates() if row.name.startswith("integrity"))
    assert (gate.name, gate.ok, gate.detail) == (
        "integrity before its pairs", False, "changed: accuracy_checker/checker.py"
    )  # fmt: skip


class Tampering(ScriptedLab):
    """The evaluator is changed in the last pair."""

    def window(self, server: ScriptedServer, *arguments: Any, **rest: Any) -> Window:
        self._tampered = self._tampered or self.acts.count("window c1") >= 5
        return super().window(server, *arguments, **rest)


def test_a_change_during_the_pairs_shows(tmp_path: Path) -> None:
    run = Scenario(tmp_path / "late", {"c0": Behaviour(1), "c1": Behaviour(9)}, PROPOSALS[:1])
    made = run.new_world

    def world(die: Callable[[str], None] = lambda act: None) -> Any:
        found = made(die)
        found.make_lab = lambda: Tampering(run.behaviours, run.clock, die=die)
        return found

    run.new_world = world  # type: ignore[method-assign]
    with pytest.raises(Exception, match="changed what it is measured with"):
        run.run()
    assert run.directory is not None
    with RunView(run.directory) as view:
        names = [(row.name, row.ok) for row in view.gates() if row.name.startswith("integrity")]
        assert names == [("integrity before its pairs", True), ("integrity after its pairs", False)]
        assert view.decisions()[-1].verdict == "rejected-integrity"
