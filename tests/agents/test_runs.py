"""A whole search with each command line's stand-in: designed, implemented, reviewed, measured, recorded."""

from __future__ import annotations

from typing import Any

import pytest

from vibeserve.agents import confine
from vibeserve.search.store import RunView

pytestmark = pytest.mark.skipif(confine.here() is None, reason="not run: bubblewrap does not run here")
COSTS = {"claude": 0.02, "codex": None, "gemini": None, "opencode": 0.02}


AGENTS = [
    "claude", "acp:acp-agent", "openai:small",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("codex", "gemini:flash", "opencode")),
]  # fmt: skip


@pytest.mark.parametrize("agent", AGENTS)
def test_a_run_completes_and_says_who_did_what_at_which_cost(agent_run: Any, agent: str) -> None:
    run = agent_run(agent, {"rounds": "2"})
    document = run.run()
    assert [entry["verdict"] for entry in document["rounds"]] == ["kept", "kept", "kept"]
    assert document["stopped"]["kind"] == "nothing proposed"
    with RunView(run.directory) as view:
        calls, claims = view.calls(), view.claims()
        measured = view.measurements()
    done = [(row.round, row.task, row.role, row.state) for row in calls]
    assert done == [
        (0, "ready", "check", "answered"),
        (1, "design", "designer", "answered"),
        (1, "implement", "implementer", "answered"),
        (1, "review", "reviewer", "answered"),
        (2, "design", "designer", "answered"),
        (2, "implement", "implementer", "answered"),
        (2, "review", "reviewer", "answered"),
        (3, "design", "designer", "answered"),
    ]
    name = agent.partition(":")[0]
    if name == "openai":
        assert [(row.input_tokens, row.output_tokens) for row in calls[:4]] == [
            (100, 10),
            (300, 30),
            (600, 60),
            (300, 30),
        ]
        assert {row.sandbox for row in calls} == {"runs nothing itself"}
    else:
        assert {(row.input_tokens, row.output_tokens) for row in calls} == {(1000, 50)}
        assert all(row.sandbox.startswith("bubblewrap ") for row in calls)
    assert {row.agent for row in calls} == {agent}
    assert {row.cost_usd for row in calls} == {COSTS.get(name)}
    assert all((run.directory / row.transcript / "prompt.md").is_file() for row in calls)
    assert all((run.directory / row.transcript / "output.jsonl").stat().st_size > 0 for row in calls)
    assert "measured 9999 tokens/s" in str([row.value for row in claims])
    assert {row.provenance for row in claims} == {"claimed"}
    assert {row.provenance for row in measured} == {"measured"}
    assert all(row.value is None or row.value < 400 for row in measured)  # 9999 is nobody's measurement
