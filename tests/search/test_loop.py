"""The loop on a logical clock, with a scripted laboratory and agent."""

from __future__ import annotations

from typing import Any

import pytest

from vibeserve.base.errors import CheckError, InputError
from vibeserve.search.document import summary
from vibeserve.search.scripted import Behaviour
from vibeserve.search.store import RunView

TWO = [{"techniques": ["batching"]}, {"techniques": ["cache"]}]


def verdicts(document: dict[str, Any]) -> list[str]:
    return [entry["verdict"] for entry in document["rounds"]]


def test_what_is_better_is_kept_and_measured_again_on_fresh_pairs(scenario: Any) -> None:
    run = scenario({"c0": Behaviour(25), "c1": Behaviour(250), "c2": Behaviour(300)}, TWO)
    document = run.run()
    assert verdicts(document) == ["kept", "kept", "kept"]
    assert document["best"]["candidate"] == "c2"
    assert document["improvement"]["pairs"] == 5
    low, high = document["improvement"]["ci95"]
    assert 11.5 < low < high < 12.5
    assert document["baseline"]["value"] * document["improvement"]["ratio"] == pytest.approx(document["best"]["value"])
    seeds = {row["seed"] for entry in document["rounds"] for row in entry["measurements"]}
    assert seeds.isdisjoint(row["seed"] for row in document["final_pairs"])
    assert document["state"] == "finished"
    assert run.world.labs[0].open_servers == set()


@pytest.mark.parametrize(
    ("direction", "first", "best", "again", "measured_again"),
    [
        ("higher", 240, 250, 260, True),
        ("higher", 260, 250, 1000, False),
        ("lower", 1.2, 1.0, 0.9, True),
        ("lower", 0.9, 1.0, 0.1, False),
    ],
)
def test_a_limit_that_the_best_beats_is_made_of_rates_measured_again(
    scenario: Any, direction: str, first: float, best: float, again: float, measured_again: bool
) -> None:
    reference = Behaviour(25, spread=0, facts={"limit.value": first})
    run = scenario({"c0": reference, "c1": Behaviour(best, spread=0)}, TWO[:1], direction=direction, limit_again=again)
    document = run.run()
    assert ("limit again" in run.world.labs[0].acts) is measured_again
    limit = document["limit"]
    counted = again if measured_again else first
    assert limit["value"] == counted
    assert limit["fraction"] == pytest.approx(best / counted if direction == "higher" else counted / best)
    assert limit["fraction"] < 1
    assert ("note" in limit) is measured_again
    assert limit.get("first_value") == (first if measured_again else None)
    assert any(f"limit      {counted:.4g}" in line and "best is at" in line for line in summary(document))


def test_a_limit_that_stays_too_low_says_so(scenario: Any) -> None:
    reference = Behaviour(25, spread=0, facts={"limit.value": 200})
    document = scenario({"c0": reference, "c1": Behaviour(250, spread=0)}, TWO[:1]).run()
    assert document["limit"]["value"] == 200
    assert "first_value" not in document["limit"]
    assert "measured too low" in document["limit"]["note"]


def test_a_round_is_compared_with_the_incumbent_not_with_the_reference(scenario: Any) -> None:
    document = scenario({"c0": Behaviour(25), "c1": Behaviour(250), "c2": Behaviour(100, spread=0)}, TWO).run()
    assert verdicts(document) == ["kept", "kept", "not-better"]
    assert "of c1's value" in document["rounds"][2]["reason"]
    assert document["best"]["candidate"] == "c1"


def test_a_silent_window_of_the_other_server_is_no_fault_of_the_candidates(scenario: Any) -> None:
    document = scenario({"c0": Behaviour(25, silent=(3,)), "c1": Behaviour(250)}, TWO[:1]).run()
    assert verdicts(document) == ["kept", "kept"]
    windows = [row["window_s"] for row in document["rounds"][1]["measurements"] if row["kind"] == "pair"]
    assert max(windows) == 3 * min(windows)
    assert windows.count(max(windows)) == 2


def test_where_the_other_server_stays_silent_the_reason_says_so(scenario: Any) -> None:
    document = scenario({"c0": Behaviour(25, silent=tuple(range(2, 40))), "c1": Behaviour(250)}, TWO[:1]).run()
    assert verdicts(document) == ["kept", "failed-run"]
    assert "c0, which c1 is compared against, could not be measured" in document["rounds"][1]["reason"]


def test_equals_are_not_better(scenario: Any) -> None:
    document = scenario({"c0": Behaviour(25), "c1": Behaviour(25)}, TWO[:1]).run()
    assert verdicts(document) == ["kept", "not-better"]
    assert document["best"]["candidate"] == "c0"
    assert document["improvement"] | {"reason": ""} == {
        "ratio": 1.0, "ci95": None, "pairs": 0, "verdict": "kept", "reason": ""
    }  # fmt: skip


def test_lower_is_better_where_the_metric_says_so(scenario: Any) -> None:
    behaviours = {"c0": Behaviour(4.0), "c1": Behaviour(0.5), "c2": Behaviour(2.0)}
    document = scenario(behaviours, TWO, direction="lower").run()
    assert verdicts(document) == ["kept", "kept", "not-better"]
    assert document["improvement"]["ratio"] == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize(
    ("behaviour", "verdict", "reason"),
    [
        (Behaviour(99, start="not ready within 600 s"), "failed-start", "not ready"),
        (Behaviour(99, check=False), "rejected-accuracy", "cases failed"),
        (Behaviour(99, check=None), "failed-run", "could not be run"),
        (Behaviour(99, probes={"sentinel": False}), "rejected-integrity", "sentinel"),
        (Behaviour(99, probes_after={"sentinel": False}), "rejected-integrity", "sentinel after its pairs"),
        (Behaviour(99, answers=False), "rejected-accuracy", "answers under load"),
        (Behaviour(99, failed=3), "failed-run", "3 requests failed"),
        (Behaviour(99, dies="ended by signal 9"), "failed-run", "signal 9"),
    ],
)
def test_each_failure_is_its_verdict(scenario: Any, behaviour: Behaviour, verdict: str, reason: str) -> None:
    document = scenario({"c0": Behaviour(1), "c1": behaviour, "c2": Behaviour(2)}, TWO).run()
    assert verdicts(document) == ["kept", verdict, "kept"]
    assert reason in document["rounds"][1]["reason"]
    assert document["rounds"][2]["parent"] == "c0"


def test_a_checker_that_cannot_prove_sampled_answers_does_not_reject(scenario: Any) -> None:
    document = scenario({"c0": Behaviour(1), "c1": Behaviour(2, answers=None), "c2": Behaviour(1)}, TWO).run()
    assert verdicts(document) == ["kept", "kept", "not-better"]
    gates = {gate["name"]: gate["ok"] for gate in document["rounds"][1]["gates"]}
    assert gates["answers under load"] is None
    assert gates["probe sentinel after its pairs"] is True
    assert "answers under load" not in {gate["name"] for gate in document["rounds"][2]["gates"]}


def test_a_change_that_changes_nothing_is_no_candidate(scenario: Any) -> None:
    document = scenario({"c0": Behaviour(1)}, [{"techniques": ["nothing"]}]).run()
    assert verdicts(document) == ["kept", "failed-start"]
    assert "as its parent was" in document["rounds"][1]["reason"]


def test_a_technique_that_is_not_seen_at_work_proves_nothing(scenario: Any) -> None:
    condition = {"fact": "feature.batching", "op": ">=", "value": 1, "why": ""}
    proposals = [{"techniques": ["batching"], "activation": [condition]}]
    off = scenario({"c0": Behaviour(1), "c1": Behaviour(9, facts={"feature.batching": 0})}, proposals, "off").run()
    on = scenario({"c0": Behaviour(1), "c1": Behaviour(9, facts={"feature.batching": 1})}, proposals, "on").run()
    silent = scenario({"c0": Behaviour(1), "c1": Behaviour(9)}, proposals, "silent").run()
    assert verdicts(off)[1] == verdicts(silent)[1] == "failed-run"
    assert verdicts(on)[1] == "kept"
    assert "not reported" in silent["rounds"][1]["reason"]


def test_tampering_ends_the_run(scenario: Any) -> None:
    run = scenario({"c0": Behaviour(1), "c1": Behaviour(9, tampers=True), "c2": Behaviour(2)}, TWO)
    with pytest.raises(CheckError, match=r"changed what it is measured with"):
        run.run()
    with RunView(run.directory) as view:
        assert view.run().state == "failed"
        assert [row.verdict for row in view.decisions()] == ["kept", "rejected-integrity"]
    assert run.world.labs[-1].open_servers == set()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Behaviour(start="no such module"), "did not start: no such module"),
        (Behaviour(check=False), "does not pass its own checker"),
        (Behaviour(check=None), "could not be checked"),
        (Behaviour(dies="ended by signal 11"), "could not be measured"),
    ],
)
def test_a_reference_that_fails_ends_the_run(scenario: Any, behaviour: Behaviour, words: str) -> None:
    with pytest.raises(CheckError, match=words):
        scenario({"c0": behaviour}, TWO).run()


def test_a_winner_that_is_not_confirmed_is_not_reported(scenario: Any) -> None:
    class Fading(Behaviour):
        pass

    run = scenario({"c0": Behaviour(10), "c1": Behaviour(20)}, TWO[:1])
    run.begin()
    calls = {"c1": 0}

    def die(act: str) -> None:
        if act == "window c1":
            calls["c1"] += 1
            if calls["c1"] == 8:  # after its screen, its five pairs and its new life
                run.behaviours["c1"] = run.behaviours["c1"]
                object.__setattr__(run.behaviours["c1"], "value", 5.0)

    document = run.go_on(die=die)
    assert verdicts(document) == ["kept", "kept"]
    assert document["best"]["candidate"] == "c0"
    assert document["improvement"]["verdict"] == "not-better"
    assert "slower than the reference on fresh pairs" in document["improvement"]["reason"]


def test_returning_to_a_parent_takes_later_files_away(scenario: Any) -> None:
    proposals = [{"techniques": ["a"]}, {"techniques": ["b"]}, {"techniques": ["c"], "parent": "c1"}]
    run = scenario({"c0": Behaviour(1), "c1": Behaviour(2), "c2": Behaviour(4), "c3": Behaviour(8)}, proposals)
    run.run()
    assert sorted(path.name for path in (run.directory / "candidates" / "c3").iterdir()) == [
        "a.txt", "c.txt", "reference.py"
    ]  # fmt: skip


def test_rounds_and_budget_end_the_search(scenario: Any) -> None:
    many = [{"techniques": [f"t{number}"]} for number in range(50)]
    behaviours = {"c0": Behaviour(1)} | {f"c{number}": Behaviour(1) for number in range(1, 51)}
    by_rounds = scenario(behaviours, many, "rounds", rounds=2).run()
    assert len(by_rounds["rounds"]) == 3
    assert by_rounds["stopped"]["kind"] == "rounds"
    by_budget = scenario(behaviours, many, "budget", budget_s=900.0).run()
    assert 2 <= len(by_budget["rounds"]) < 20
    assert by_budget["stopped"]["kind"] == "budget"
    assert by_budget["elapsed_s"] <= 900


def test_the_budget_holds_with_the_final_comparison_in_it(scenario: Any) -> None:
    many = [{"techniques": [f"t{number}"]} for number in range(50)]
    behaviours = {"c0": Behaviour(1)} | {f"c{number}": Behaviour(1.2**number) for number in range(1, 51)}
    document = scenario(behaviours, many, budget_s=480.0).run()
    assert document["elapsed_s"] <= 480
    assert document["improvement"]["pairs"] == 5
    assert len(document["rounds"]) >= 3


def test_a_budget_that_is_no_search_is_said_before(scenario: Any) -> None:
    run = scenario({"c0": Behaviour(1), "c1": Behaviour(2)}, TWO[:1], budget_s=30.0)
    run.begin()
    assert any("that is no search" in text for text in run.told)


def test_the_store_names_every_value(scenario: Any) -> None:
    run = scenario({"c0": Behaviour(1), "c1": Behaviour(2)}, TWO[:1])
    document = run.run()
    with RunView(run.directory) as view:
        rows = view.measurements()
    assert {row.kind for row in rows} == {"baseline", "screen", "pair", "restart", "final", "curve"}
    assert all(row.provenance == "measured" and row.seed and row.document for row in rows)
    firsts = [row.candidate for row in rows if row.kind == "pair" and row.place == 0]
    assert sorted(firsts.count(name) for name in ("c0", "c1")) == [2, 3]
    assert [row["provenance"] for row in document["final_pairs"]] == ["measured"] * 10


def test_requests_that_make_no_sense() -> None:
    from vibeserve.search.request import Request

    for arguments in ({}, {"bundle": "b", "ref": "r"}, {"bundle": "b", "rounds": 0}, {"bundle": "b", "budget_s": 0.0}):
        with pytest.raises(InputError):
            Request(**arguments)


def test_a_reference_that_yields_nothing_in_a_window_gets_longer_ones(scenario: Any) -> None:
    run = scenario({"c0": Behaviour(0.0, spread=0.0), "c1": Behaviour(20)}, TWO[:1])
    run.begin()
    windows: list[str] = []

    def slow(act: str) -> None:
        if act == "window c0":
            windows.append(act)
            object.__setattr__(run.behaviours["c0"], "value", 0.0 if len(windows) == 1 else 10.0)

    document = run.go_on(die=slow)
    assert verdicts(document) == ["kept", "kept"]
    lengths = [row["window_s"] for row in document["rounds"][0]["measurements"]]
    assert lengths == [15.0, 60.0]
    assert {row["window_s"] for row in document["final_pairs"]} == {60.0}
