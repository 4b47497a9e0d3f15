"""One whole run in which everything but the agent is real: servers, checker, benchmark, probes, git, sandbox."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.agents.conftest import put_on_path
from tests.e2e.test_optimize import _own_cache, bundle  # noqa: F401 - fixtures

from vibeserve.agents import confine
from vibeserve.measure import fake_server
from vibeserve.search import Outside, Request, RunView, begin, go_on, summary
from vibeserve.search.plan import Plan
from vibeserve.search.run_report import write_report
from vibeserve.search.world import SystemWorld

pytestmark = pytest.mark.skipif(confine.here() is None, reason="not run: bubblewrap does not run here")


class World(SystemWorld):
    """This machine, its limits left unmeasured."""

    def _machine(self) -> None:
        return None


@pytest.mark.slow
def test_an_agents_server_is_checked_measured_and_kept(
    bundle: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Any,
) -> None:
    put_on_path(tmp_path / "bin", "claude", {"rounds": "1"}, monkeypatch)
    shutil.copy(fake_server.__file__, tmp_path / "bin" / "server_source.py")
    outside = Outside(World())
    plan = Plan(None, 2, 5, 0.4, 0.4, 5, 0.4, (), 0.4)
    request = Request(bundle=str(bundle), rounds=2, seed=3, agent="claude")
    directory = begin(request, tmp_path / "runs", outside, plan)
    document: dict[str, Any] = go_on(directory, outside)
    assert [entry["verdict"] for entry in document["rounds"]] == ["kept", "kept"]
    assert document["improvement"]["ratio"] > 1
    assert document["agents"]["total"]["calls"] == 5
    assert "agents     5 calls, 5 of them answered" in "\n".join(summary(document))
    with RunView(directory) as view:
        assert {row.provenance for row in view.measurements()} == {"measured"}
        assert {row.provenance for row in view.gates("c1")} == {"measured"}
    page, text = write_report(document, directory)
    for written in (page.read_text(), text.read_text()):
        assert "Who did what" in written
        assert "5,250 tokens, 0.10 dollars" in written
        assert "9999" not in written.split("Who did what")[0]
    # The verdict is replayed from the commit: the same gates, on other prompts.
    words = ("--candidate", f"{directory}:c1", "--runs-dir", str(directory.parent), "--window", "0.4", "--pairs", "5")
    code, out, err = cli("evaluate", str(bundle), *words, "--json")
    assert code == 0, err
    again = json.loads(out)
    assert again["verdict"] == "kept"
    with RunView(directory) as view:
        once = {row.name.replace(" after its pairs", " after the load"): row.ok for row in view.gates("c1")}
    gates = {gate["name"]: gate["ok"] for gate in again["gates"]}
    replayed = {"start", "check", "restart", *(name for name in once if name.startswith("probe "))}
    assert any(name.endswith(" after the load") for name in replayed)
    assert {name: gates[name] for name in replayed} == {name: once[name] for name in replayed}
    assert gates["integrity"] is True
