"""What a search does with agents: budgets, plateaus, hypotheses side by side, returns to a parent, and failures."""

from __future__ import annotations

import dataclasses
import subprocess
from typing import Any

import pytest
from tests.agents.test_policy import CHAT, state

from vibeserve.agents import Fact, confine
from vibeserve.agents.coding import _gap
from vibeserve.base.errors import InputError, MissingError
from vibeserve.search.request import Request
from vibeserve.search.scripted import Behaviour
from vibeserve.search.store import RunView

pytestmark = pytest.mark.skipif(confine.here() is None, reason="not run: bubblewrap does not run here")


def verdicts(document: dict[str, Any]) -> list[str]:
    return [entry["verdict"] for entry in document["rounds"]]


def calls(run: Any) -> list[tuple[int, str, str]]:
    with RunView(run.directory) as view:
        return [(row.round, row.task, row.state) for row in view.calls()]


def files(run: Any, commit: str) -> dict[str, str]:
    def git(*arguments: str) -> str:
        argv = ["git", "-C", str(run.directory / "workspace"), *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    return {name: git("show", f"{commit}:{name}") for name in git("ls-tree", "-r", "--name-only", commit).splitlines()}


def test_an_agent_that_does_not_answer_ends_it_before_anything_is_measured(agent_run: Any) -> None:
    run = agent_run("claude", {"ready": "refused"})
    with pytest.raises(MissingError, match=r"claude does not answer: claude: exit code 1.*Invalid API key") as caught:
        run.run()
    assert caught.value.exit_code == 3
    directory = next((run.folder / "runs").iterdir())
    with RunView(directory) as view:
        assert [(row.task, row.state) for row in view.calls()] == [("ready", "failed")] * 3
        assert view.measurements() == []


def test_a_designer_that_fails_ends_the_search_with_what_was_found(agent_run: Any) -> None:
    run = agent_run("claude", {"design 2": "crash"})
    document = run.run()
    assert verdicts(document) == ["kept", "kept"]
    assert document["stopped"]["kind"] == "agent failed"
    assert document["best"]["candidate"] == "c1"
    assert document["improvement"]["pairs"] == 5
    assert [state for number, task, state in calls(run) if (number, task) == (2, "design")] == ["failed"] * 3


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("crash", "exit code 13: panic: something broke"),
        ("link", "outside is a link"),
        ("nothing", "as its parent was"),
    ],
)
def test_an_implementer_that_fails_costs_its_round_alone(agent_run: Any, mode: str, reason: str) -> None:
    run = agent_run("claude", {"implement 1": mode, "rounds": "2"})
    document = run.run()
    assert verdicts(document) == ["kept", "failed-start", "kept"]
    assert reason in document["rounds"][1]["reason"]
    with RunView(run.directory) as view:
        first = view.hypotheses()[0]
    assert first.state == "abandoned"
    assert reason in first.mechanism
    memory = (run.directory / "agents" / "r2" / "design-1" / "prompt.md").read_text()
    assert "**Idea 1** (abandoned)" in memory
    assert reason in memory


def test_a_reviewer_that_rejects_is_answered_once(agent_run: Any) -> None:
    run = agent_run("claude", {"verdict": "reject", "rounds": "1"})
    document = run.run()
    assert verdicts(document) == ["kept", "kept"]
    names = [task for number, task, _ in calls(run) if number == 1]
    assert names == ["design", "implement", "review", "implement again", "review again"]
    assert files(run, document["best"]["commit"])["note.txt"] == "Idea 1\nrevised\n"


def test_hypotheses_side_by_side_each_on_its_own_copy(agent_run: Any) -> None:
    run = agent_run("claude", {"rounds": "3"}, parallel=3)
    document = run.run()
    assert verdicts(document) == ["kept", "kept", "kept", "not-better"]
    assert [entry["parent"] for entry in document["rounds"][1:]] == ["c0", "c0", "c0"]
    made = calls(run)
    assert [number for number, task, _ in made if task == "design"] == [1, 4]
    assert sorted(number for number, task, _ in made if task == "implement") == [1, 2, 3]
    assert len(made) == len(set(made))
    for entry in document["rounds"][1:]:
        assert files(run, entry["commit"])["note.txt"] == f"Idea {entry['round']}\n"


def test_what_was_proposed_and_never_came_to_its_round_is_parked(agent_run: Any) -> None:
    run = agent_run("claude", {"rounds": "3"}, parallel=3, tokens=2500)
    document = run.run()
    assert verdicts(document) == ["kept", "failed-start"]
    assert "tokens are used" in document["rounds"][1]["reason"]
    assert document["stopped"]["kind"] == "budget"
    with RunView(run.directory) as view:
        assert [row.state for row in view.hypotheses()] == ["abandoned", "parked", "parked"]
        assert view.hypotheses()[2].mechanism == "the search ended first"


def test_each_role_is_shown_the_evidence_the_gap_and_the_floor(agent_run: Any) -> None:
    servers = {"c0": Behaviour(25, facts={"limit.value": 500.0}), "c1": Behaviour(250)}
    run = agent_run("claude", {"rounds": "1"}, servers=servers)
    run.run()
    for name in ("design-1", "implement-1", "review-1"):
        prompt = (run.directory / "agents" / "r1" / name / "prompt.md").read_text()
        assert "- limit.value: 500 " in prompt
        assert "The best candidate reaches 5.0% of the limit of this machine (500" in prompt
        floor = prompt.split("# The floor of this hardware\n")[1].split("\n\n")[0].splitlines()
        assert [line.split(".")[0] for line in floor] == [
            "- continuous batching: missing",
            "- fused attention: missing",
            "- static decode shapes: missing",
            "- packed weights: missing",
        ]


@pytest.mark.parametrize(
    ("limit", "value", "direction", "said"),
    [
        (200.0, 50.0, "higher", "25.0%"),
        (1.0, 4.0, "lower", "25.0%"),
        (None, 50.0, "higher", ""),
        (0.0, 1.0, "higher", ""),
    ],
)
def test_the_gap_to_the_limit(limit: float | None, value: float, direction: str, said: str) -> None:
    evidence = {} if limit is None else {"limit.value": Fact(limit, "u", "hand-counted")}
    found = _gap(state(incumbent_value=value, goal=dataclasses.replace(CHAT, direction=direction), evidence={}))
    assert found == ""
    known = dataclasses.replace(state(incumbent_value=value), evidence=evidence)
    found = _gap(dataclasses.replace(known, goal=dataclasses.replace(CHAT, direction=direction)))
    assert (said in found) if said else found == ""
    assert _gap(dataclasses.replace(known, incumbent_value=None)) == ""


def test_probes_that_could_not_run_are_said_and_not_counted_as_passed(agent_run: Any) -> None:
    servers = {"c0": Behaviour(25), "c1": Behaviour(250, probes={"one": None})}
    run = agent_run("claude", {"rounds": "1"}, servers=servers)
    run.run()
    told = next(text for text in run.told if " 0 probes" in text)
    assert told.startswith("round 1: 0 probes, ")
    assert "none failed" not in told


def test_no_more_hypotheses_than_rounds_are_asked_for(agent_run: Any) -> None:
    run = agent_run("claude", {"rounds": "3"}, parallel=3, rounds=2)
    assert verdicts(run.run()) == ["kept", "kept", "kept"]
    with RunView(run.directory) as view:
        assert [row.state for row in view.hypotheses()] == ["proven", "proven"]


def test_a_return_to_an_earlier_parent_is_exactly_its_files(agent_run: Any) -> None:
    servers = {"c0": Behaviour(25), "c1": Behaviour(250), "c2": Behaviour(300)}
    run = agent_run("claude", {"rounds": "2", "parent 2": "c0"}, servers=servers)
    document = run.run()
    assert [entry["parent"] for entry in document["rounds"]] == [None, "c0", "c0"]
    reference = files(run, document["rounds"][0]["commit"])
    second = files(run, document["rounds"][2]["commit"])
    assert set(second) == {*reference, "note.txt", "candidate.toml", "server.py"}
    copied = run.directory / "agents" / "r2" / "work-1"
    assert (copied / "reference.py").read_text() == reference["reference.py"]


def test_a_parent_that_is_not_there_is_asked_for_again(agent_run: Any) -> None:
    run = agent_run("claude", {"rounds": "1", "parent 1": "c7"})
    document = run.run()
    assert document["stopped"]["kind"] == "agent failed"
    assert "there is no candidate 'c7'" in document["stopped"]["reason"]
    assert [state for _, task, state in calls(run) if task == "design"] == ["malformed"] * 3


def test_after_barren_rounds_it_is_told_and_then_ended(agent_run: Any) -> None:
    servers = {f"c{number}": Behaviour(25, check=number == 0) for number in range(9)}
    run = agent_run("claude", {"rounds": "9"}, servers=servers)
    document = run.run()
    assert verdicts(document) == ["kept", *["rejected-accuracy"] * 6]
    assert document["stopped"]["kind"] == "plateau"
    prompts = [(run.directory / "agents" / f"r{number}" / "design-1" / "prompt.md").read_text() for number in (3, 4)]
    assert ["brought nothing better" in prompt for prompt in prompts] == [False, True]


def test_a_budget_of_tokens_ends_the_search_and_is_accounted_for(agent_run: Any) -> None:
    run = agent_run("claude", {}, tokens=4000)
    document = run.run()
    assert document["stopped"] == {"kind": "budget", "reason": "4200 of 4000 tokens are used", "not_others": []}
    assert verdicts(document) == ["kept", "kept"]
    assert "4000 tokens may not buy two rounds" in " ".join(run.told)
    total = document["agents"]["total"]
    assert (total["calls"], total["tokens"], total["cost_usd"]) == (4, 4200, pytest.approx(0.08))
    roles = {entry["role"]: entry["calls"] for entry in document["agents"]["roles"]}
    assert roles == {"check": 1, "designer": 1, "implementer": 1, "reviewer": 1}


def test_a_budget_of_money_needs_an_agent_that_says_what_it_costs(agent_run: Any) -> None:
    document = agent_run("claude", {}, cost_usd=0.05).run()
    assert document["stopped"]["reason"] == "0.06 of 0.05 dollars are spent" or "dollars" in str(document["rounds"])
    with pytest.raises(MissingError, match="does not say what it costs"):
        agent_run("codex", {}, "two", cost_usd=5.0).run()


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"cost_usd": -1.0}, {"parallel": 0}, {"call_s": 0}])
def test_budgets_must_be_above_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Request(bundle="b", agent="claude", **wrong)
    with pytest.raises(InputError, match="neither tokens nor money"):
        Request(bundle="b", tokens=5)


def test_what_buys_one_proposal_is_said_to_be_no_search() -> None:
    for amounts in ({"rounds": 1}, {"tokens": 5000}, {"cost_usd": 0.1}):
        assert "that is no search" in Request(bundle="b", agent="claude", **amounts).warning()
    assert Request(bundle="b", agent="claude", rounds=2, tokens=10_000_000, cost_usd=50.0).warning() == ""


def test_the_playbook_needs_no_sandbox_and_a_cli_does(agent_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = agent_run("claude", {})
    monkeypatch.setattr(confine, "here", lambda: None)
    with pytest.raises(MissingError, match="needs a sandbox"):
        run.run()
