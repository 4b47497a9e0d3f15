"""The run report: every round and figure of the document is in it, finished or not, with its source."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.report.sample_run import BEST_PAIRS, ROUNDS, sample_directory, sample_document

from vibeserve.report import terminal_text
from vibeserve.search.document import summary
from vibeserve.search.run_report import Materials, gather, report_html, report_markdown, run_sections, write_report
from vibeserve.search.run_report.limit import points_of, roofs_of, share
from vibeserve.search.windows import cut_short


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return sample_document()


@pytest.fixture(scope="module")
def made(whole: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    document = copy.deepcopy(whole)
    return document, sample_directory(tmp_path_factory.mktemp("run"), document)


def test_the_answer_comes_first(whole: dict[str, Any]) -> None:
    text = report_markdown(whole)
    head = text[: text.index("## How to run it")]
    assert text.startswith("# smollm2-135m-cpu-chat: 12.5× the reference server")
    for piece in (
        "12.47×",
        "95 % interval 12.27× to 12.67×",
        "5 fresh pairs",
        "302.2 tokens/s",
        "24.24 tokens/s",
        "850 tokens/s",
        "35.55 %",
    ):
        assert piece in head, piece


def test_every_round_is_explained(made: tuple[dict[str, Any], Path]) -> None:
    document, directory = made
    html = report_html(document, gather(document, directory))
    for number, (_, title, verdict, _, _, reason) in enumerate(ROUNDS, 1):
        assert f'id="round-{number}"' in html
        for piece in (title, verdict.replace("-", " "), reason.split("'")[0]):
            assert piece in html, piece
    for piece in (
        "Hypothesis",
        "It would be wrong if",
        "Knobs",
        "Evidence",
        "Gates",
        "not run",
        "Why not another technique",
        "no draft model",
    ):
        assert piece in html, piece


def test_each_candidates_diff_is_shown(made: tuple[dict[str, Any], Path]) -> None:
    document, directory = made
    found = gather(document, directory)
    assert set(found.diffs) == {f"c{n}" for n in range(1, 8) if n != 5}
    assert found.missing == {"c0": "the reference lies in the bundle", "c5": "nothing was built"}
    assert "+block_size = 17" in found.diffs["c1"]
    assert "-block_size = 17" in found.diffs["c2"], "against its parent"
    assert "-block_size = 18" in found.diffs["c6"], "the parent is the one that it was made from, not the one before"
    assert "Diff: 2 files" in report_markdown(document, found)


def test_requests_come_from_the_final_windows(made: tuple[dict[str, Any], Path]) -> None:
    document, directory = made
    found = gather(document, directory)
    assert len(found.requests[("c0", 0)]) == 8, "the one that was cut off is left out"
    assert [request.latency_s is None for request in found.requests[("c0", 0)]].count(True) == 1
    html = report_html(document, found)
    assert "Every request of a final window" in html
    assert "≥ 37.5 s" in html, "a latency that the window cut off is a lower bound"
    assert "16, at least" in html


def test_records_outside_the_run_and_broken_ones_are_left_alone(whole: dict[str, Any], tmp_path: Path) -> None:
    document = copy.deepcopy(whole)
    document["final_pairs"][0]["document"] = "../elsewhere.json"
    (tmp_path / "elsewhere.json").write_text('{"per_request": [{"scheduled_s": 0, "latency_s": 1}]}', encoding="utf-8")
    document["final_pairs"][1]["document"] = "broken.json"
    run = tmp_path / "run"
    run.mkdir()
    (run / "broken.json").write_text("{", encoding="utf-8")
    assert gather(document, run).requests == {}


def test_the_floor_says_its_state_and_reason(whole: dict[str, Any]) -> None:
    text = report_markdown(whole)
    assert "| fused attention | **excused** | attention is 4 % of the time |" in text
    assert "| cuda graphs | **not verified on hardware** | this machine has no GPU |" in text


def test_final_pairs_and_noise_are_listed(whole: dict[str, Any]) -> None:
    text = report_markdown(whole)
    for base, best in BEST_PAIRS:
        assert f"{best:g}" in text
        assert f"{base:g}" in text
    assert "other programs used 31 % of the processors" in text


def test_shares_of_the_limit_follow_the_direction(whole: dict[str, Any]) -> None:
    assert share(whole, 302.2, 850.0) == pytest.approx(0.3555, abs=1e-4)
    lower = whole | {"metric": {"name": "p95_latency_s", "unit": "s", "direction": "lower"}}
    assert share(lower, 2.0, 0.5) == 0.25


def test_the_roofline_has_every_candidate_with_evidence(whole: dict[str, Any]) -> None:
    assert [roof.name for roof in roofs_of(whole)] == ["float32", "bfloat16"]
    points = points_of(whole)
    assert [point.name for point in points] == [
        "0 reference",
        "1 continuous batching",
        "2 packed weights",
        "4 chunked prefill",
        "6 static decode shapes",
        "limit at 16 at once",
    ]
    assert [point.kind for point in points] == ["measured", "candidate", "candidate", "candidate", "best", "counted"]


def test_without_facts_it_says_why_there_is_no_roofline(whole: dict[str, Any]) -> None:
    text = report_markdown(whole | {"facts": {}})
    assert "No roofline: the bandwidth and the peak of this machine were not recorded." in text


def test_a_run_that_has_just_begun() -> None:
    young = sample_document(0) | {
        "state": "running",
        "final_pairs": [],
        "curve": [],
        "floor": [],
        "stopped": None,
        "rounds": [],
    }
    young |= {
        "best": {"candidate": None, "value": None, "commit": None},
        "baseline": {"candidate": "c0", "value": None},
    }
    young |= {"limit": {"value": None, "value_reason": "no physical limit is known", "fraction": None, "argument": ""}}
    young["improvement"] = {"ratio": None, "ratio_reason": "the final comparison has not run", "ci95": None, "pairs": 0}
    text = report_markdown(young)
    assert text.startswith("# smollm2-135m-cpu-chat: a run in progress")
    assert "`vibeserve resume 20261202-071500-smollm2-135m-cpu-chat` goes on with it" in text
    assert "There is no result yet." in text
    assert "no physical limit is known" in text


def test_no_better_server_is_said_plainly(whole: dict[str, Any]) -> None:
    same = whole | {
        "improvement": {
            "ratio": 1.0,
            "ci95": None,
            "pairs": 0,
            "verdict": "kept",
            "reason": "no candidate was better than the reference",
        }
    }
    text = report_markdown(same)
    assert "no better server than the reference was found" in text.splitlines()[0]
    assert "no candidate was better than the reference" in text


def test_another_machine_and_failure_are_said(whole: dict[str, Any]) -> None:
    here = whole | {"request": whole["request"] | {"here": True}}
    assert "this run measured here all the same" in report_markdown(here)
    failed = whole | {"state": "failed", "state_reason": "the reference does not pass its own checker"}
    assert "the reference does not pass its own checker" in report_markdown(failed)
    assert (
        "the run failed"
        in report_markdown(failed | {"improvement": {"ratio": None, "ci95": None, "pairs": 0}}).splitlines()[0]
    )


def test_a_metric_where_lower_is_better(whole: dict[str, Any]) -> None:
    lower = whole | {"metric": {"name": "p95_latency_s", "unit": "s", "direction": "lower"}}
    assert "P95 latency, best server against the reference" in report_html(lower)
    text = report_markdown(lower)
    assert "limit ÷ best" in text
    assert "best ÷ limit" not in text


def test_values_that_a_windows_end_cut_short_are_lower_bounds(made: tuple[dict[str, Any], Path]) -> None:
    document, directory = made
    windows = [(row["candidate"], row["document"]) for row in document["final_pairs"]]
    assert cut_short(directory, windows, "p95_latency_s") == {"c0"}, "the slow reference"
    assert cut_short(directory, windows, document["metric"]["name"]) == set()
    lower = document | {
        "metric": {"name": "p95_latency_s", "unit": "s", "direction": "lower"},
        "baseline": document["baseline"] | {"at_least": True},
    }
    text = report_markdown(lower, gather(lower, directory))
    assert "at least" in next(
        line for line in summary(lower | {"agents": {"calls": []}}) if line.startswith("reference")
    )
    assert "at least" not in next(
        line for line in summary(lower | {"agents": {"calls": []}}) if line.startswith("best")
    )
    assert "or more: the reference's value is a lower bound" in text
    assert text.count("at least: windows ended before its slowest requests did") == 1
    assert "lower bound" not in report_markdown(document, gather(document, directory)).partition("## How to run it")[0]
    both = lower | {"best": document["best"] | {"at_least": True}}
    assert "values are lower bounds: longer windows" in report_markdown(both)


def test_an_interrupted_run_says_so_first(whole: dict[str, Any]) -> None:
    broken = whole | {"state": "interrupted", "improvement": {"ratio": None, "ci95": None, "pairs": 0}}
    assert report_markdown(broken).startswith("# smollm2-135m-cpu-chat: an interrupted run")


def test_hostile_text_from_a_candidate_stays_text(whole: dict[str, Any]) -> None:
    document = copy.deepcopy(whole)
    hostile = "</script><script>alert(1)</script>"
    for entry in document["rounds"]:
        entry |= {"reason": hostile, "hypothesis": hostile, "summary": hostile}
    html = report_html(document, Materials(diffs={"c1": f"diff --git a/x b/x\n+{hostile}"}))
    assert hostile not in html
    assert html.count("<script>") == 1


def test_both_files_are_written_whole(made: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    document, directory = made
    page, text = write_report(document, directory)
    assert (page, text) == (directory / "report.html", directory / "report.md")
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert page.stat().st_size < 1_500_000
    other, twin = write_report(document, directory, html=tmp_path / "deep" / "mine.html")
    assert other.is_file()
    assert twin == tmp_path / "deep" / "mine.md"


def test_the_terminal_form_is_short(whole: dict[str, Any]) -> None:
    text = terminal_text(run_sections(whole))
    assert "12.47×" in text
    assert len(text.splitlines()) < 150


def test_parts_that_came_from_the_engine_are_listed_and_the_rest_is_shown(whole: dict[str, Any]) -> None:
    document = copy.deepcopy(whole)
    document["rounds"][1]["commit"] = "abc123"
    diff = (
        "diff --git a/engine/core.py b/engine/core.py\nnew file mode 100644\n--- /dev/null\n+++ b/engine/core.py\n@@ -0,0 +1,2 @@\n+one\n+two\n"
        "diff --git a/engine/http.py b/engine/http.py\n--- a/engine/http.py\n+++ b/engine/http.py\n@@ -1 +1 @@\n-old\n+changed\n"
        "diff --git a/engine.toml b/engine.toml\nnew file mode 100644\n--- /dev/null\n+++ b/engine.toml\n@@ -0,0 +1 @@\n+max_batch = 16\n"
    )
    text = report_markdown(document, Materials(diffs={"c1": diff}))
    assert "Diff: 3 files, +4 −1 lines" in text
    assert "| `engine/core.py` | 2 |" in text
    assert "+one" not in text
    assert "+changed" in text
    assert text.index("+max_batch = 16") < text.index("+changed"), "settings first"
    assert "workspace show abc123" in text


def test_kills_on_the_way_are_told(whole: dict[str, Any]) -> None:
    killed = whole | {
        "sessions": [{"how": "killed"}, {"how": "finished"}],
        "events": [{"at_s": 3.0, "kind": "again", "text": "lost, and done once more: c1: the server died"}],
    }
    text = report_markdown(killed)
    assert "2 processes worked on this run, one after the other; the earlier ones ended so: killed." in text
    assert "Broken off by a kill from outside, and done once more: 1; the first: lost" in text
    assert "Broken off" not in report_markdown(whole)


def test_more_than_the_limit_is_called_impossible(whole: dict[str, Any]) -> None:
    above = whole | {"limit": whole["limit"] | {"value": 100.0, "fraction": 3.02}}
    assert "More than the limit was measured, which cannot be" in report_markdown(above)
    assert "which cannot be" not in report_markdown(whole)


def test_techniques_on_and_off_are_shown_where_they_were_measured(whole: dict[str, Any], tmp_path: Path) -> None:
    assert "Techniques on and off" not in report_markdown(whole, gather(whole, tmp_path))
    rows = [
        {"load": "chat", "techniques": ["prefix"], "ratio": 0.99, "low": 0.97, "high": 1.01, "rounds": 5},
        {"load": "chat", "techniques": ["prefix", "lookup"], "ratio": 1.2, "low": 1.1, "high": 1.3, "rounds": 5},
        {"load": "edits", "techniques": ["prefix"], "ratio": 1.0, "low": 0.9, "high": 1.1, "rounds": 5},
    ]
    (tmp_path / "ablations.json").write_text(json.dumps({"rows": rows}))
    for text in (report_markdown(whole, gather(whole, tmp_path)), report_html(whole, gather(whole, tmp_path))):
        assert "Techniques on and off" in text
        assert "prefix + lookup" in text
        assert "1.20 (1.10–1.30)" in text
        assert "not measured" in text
    (tmp_path / "ablations.json").write_text('{"rows": [{"load": "chat"}]}')
    assert "Techniques on and off" not in report_markdown(whole, gather(whole, tmp_path))
