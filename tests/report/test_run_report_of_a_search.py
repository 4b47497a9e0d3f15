"""The report of runs that the search really made (on a scripted laboratory): its document is what the report expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.search.conftest import Scenario

from vibeserve.search import RunView, document
from vibeserve.search.run_report import gather, report_html, report_markdown, write_report
from vibeserve.search.scripted import Behaviour

PROPOSALS = [
    {"techniques": ["batching"], "title": "Batch the requests", "settings": {"max_batch": 16}},
    {"techniques": ["cheating"], "title": "Answer from memory"},
    {"techniques": ["slower"], "title": "Do it twice"},
    {"techniques": ["broken"], "title": "Do not start"},
]
BEHAVIOURS = {
    "c0": Behaviour(24.0),
    "c1": Behaviour(140.0, facts={"batch.rows_per_step": 12.0}),
    "c2": Behaviour(900.0, probes={"fresh prompts": False}),
    "c3": Behaviour(120.0),
    "c4": Behaviour(1.0, start="it ended with exit code 3"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    scenario = Scenario(tmp_path_factory.mktemp("search"), BEHAVIOURS, PROPOSALS, rounds=4)
    found = scenario.run()
    assert scenario.directory is not None
    return found, scenario.directory


def test_every_round_with_its_verdict(made: tuple[dict[str, Any], Path]) -> None:
    found, directory = made
    page, text = write_report(found, directory)
    markdown = text.read_text(encoding="utf-8")
    html = page.read_text(encoding="utf-8")
    for title, verdict in (
        ("Batch the requests", "kept"),
        ("Answer from memory", "rejected integrity"),
        ("Do it twice", "not better"),
        ("Do not start", "failed start"),
    ):
        assert f"{title}** — {verdict}" in markdown
        assert title in html
    assert "it ended with exit code 3" in markdown
    assert "batching.txt" in markdown
    assert "max_batch" in markdown
    assert "c1" in markdown.split("## How to run it")[0]
    ratio = found["improvement"]["ratio"]
    assert ratio > 5
    assert f"{ratio:.3g}× the reference server" in markdown.splitlines()[0]


def test_diffs_come_from_the_workspace(made: tuple[dict[str, Any], Path]) -> None:
    found, directory = made
    materials = gather(found, directory)
    assert "+batching" in materials.diffs["c1"]
    assert "cheating.txt" in materials.diffs["c2"]
    assert "batching.txt" not in materials.diffs["c3"], "against its parent, not against nothing"


@pytest.mark.parametrize("after", [0, 3, 9, 17])
def test_a_run_that_was_broken_off_has_a_report(tmp_path: Path, after: int) -> None:
    class KilledError(Exception):
        pass

    scenario = Scenario(tmp_path, BEHAVIOURS, PROPOSALS, rounds=4)
    directory = scenario.begin()
    acts: list[str] = []

    def die(act: str) -> None:
        acts.append(act)
        if len(acts) > after:
            raise KilledError(act)

    with pytest.raises(KilledError):
        scenario.go_on(die=die)
    with RunView(directory) as view:
        found = document(view)
    assert "in progress" in report_markdown(found).splitlines()[0]
    assert "resume" in report_html(found, gather(found, directory))
