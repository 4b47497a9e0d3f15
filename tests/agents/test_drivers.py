"""Every driver against a stand-in that misbehaves: what is told, what is recorded, and that nothing is left running."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.agents.conftest import CLIS, put_on_path
from tests.agents.stand_in_http import Endpoint

from vibeserve.agents import confine, parse_agent
from vibeserve.agents.answers import Design, Work
from vibeserve.agents.calls import ask
from vibeserve.agents.desk import AgentError, Desk, Limits, Spent, Task, Usage
from vibeserve.agents.drivers.cli import forms
from vibeserve.agents.drivers.make import make_driver
from vibeserve.base.errors import InputError, MissingError
from vibeserve.base.processes import GROUP_MARK, SystemRunner

pytestmark = pytest.mark.skipif(confine.here() is None, reason="not run: bubblewrap does not run here")
AGENTS = [*CLIS, "acp:acp-agent", "openai:small"]
#: The command lines share all but their readers: the others' turn comes with the slow tests.
SOME = [
    "claude", "acp:acp-agent", "openai:small", *(pytest.param(name, marks=pytest.mark.slow) for name in CLIS[1:])
]  # fmt: skip
PROMPTS = {
    "design": "You design it.\nRound 1.\nThe best candidate is c0.",
    "implement": "You implement it.\n# The hypothesis\nIdea 1.",
}


class Rows:
    """Calls in memory."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def open(self, **values: Any) -> int:
        self.rows.append({**values, "state": "running"})
        return len(self.rows) - 1

    def close(self, call: int, state: str, usage: Usage, *, detail: str = "", reply: Any) -> None:
        assert self.rows[call]["state"] == "running"
        self.rows[call] |= {"state": state, "usage": usage, "detail": detail, "reply": reply}

    def answered(self, number: int, task: str) -> Mapping[str, Any] | None:
        return None

    def tries(self, number: int, task: str) -> int:
        return len(self.rows)

    def spent(self) -> Spent:
        return Spent()

    def states(self) -> list[str]:
        return [row["state"] for row in self.rows]


class Bench:
    """One driver with a desk, in a folder of its own; `work` lies where a run's would."""

    def __init__(self, agent: str, folder: Path, tries: int, call_s: float):
        self.driver = make_driver(parse_agent(agent))
        self.rows = Rows()
        self.folder = folder
        self.work = folder / "agents" / "r1" / "work-1"
        self.work.mkdir(parents=True)
        (self.work / "reference.py").write_text("print('reference')\n")
        (folder / "run.db").write_text("secret")
        self.group = f"test-{folder}"
        limits = Limits(call_s=call_s, tries=tries)
        self.desk = Desk(
            self.rows, SystemRunner(), confine.here(), folder / "agents", self.group, lambda number: None,  # type: ignore[arg-type,return-value]
            list, lambda: 600.0, limits, round=1,
        )  # fmt: skip

    def ask(self, role: str, **rest: Any) -> dict[str, Any]:
        answer = Design if role == "design" else Work
        task = Task(
            role, role, PROMPTS[role], answer, self.work, self.folder / "agents" / "r1", role == "implement",
            self.desk.limits.call_s, **rest,
        )  # fmt: skip
        return ask(self.driver, self.desk, task)

    def left(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(GROUP_MARK) == self.group and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    endpoints: list[Endpoint] = []
    benches: list[Bench] = []

    def make(agent: str, behaviour: dict[str, str], tries: int = 1, call_s: float = 60.0) -> Bench:
        program = "acp-agent" if agent.startswith("acp:") else agent.partition(":")[0]
        put_on_path(tmp_path / "bin", program, behaviour, monkeypatch)
        if program == "openai":
            endpoints.append(Endpoint(behaviour))
            monkeypatch.setenv("OPENAI_BASE_URL", endpoints[-1].url)
        benches.append(Bench(agent, tmp_path / "run", tries, call_s))
        return benches[-1]

    yield make
    for endpoint in endpoints:
        endpoint.close()
    assert [left for one in benches for left in one.left()] == []


@pytest.mark.parametrize("agent", SOME)
def test_one_that_hangs_is_ended_in_time(bench: Any, agent: str) -> None:
    it = bench(agent, {"design": "hang"}, call_s=2.0)
    with pytest.raises(AgentError, match=r"no answer|in time"):
        it.ask("design")
    assert it.rows.states() == ["timed out"]
    assert it.left() == []


@pytest.mark.parametrize("agent", SOME)
def test_one_that_crashes_is_told_with_its_last_words(bench: Any, agent: str) -> None:
    it = bench(agent, {"design": "crash"}, tries=2)
    with pytest.raises(AgentError, match=r"exit code 13|broke off|stream"):
        it.ask("design")
    assert len(it.rows.rows) == 2
    assert set(it.rows.states()) <= {"failed", "malformed"}


@pytest.mark.parametrize("agent", SOME)
def test_one_that_floods_is_ended(bench: Any, agent: str) -> None:
    it = bench(agent, {"design": "flood"})
    with pytest.raises(AgentError, match=r"more than|more output|exceed|limit"):
        it.ask("design")
    assert it.rows.states() == ["failed"]


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("mode", ["half", "wrong"])
def test_a_malformed_reply_costs_a_retry_that_says_what_was_wrong(bench: Any, agent: str, mode: str) -> None:
    it = bench(agent, {"design": f"{mode} once"}, tries=2)
    assert it.ask("design")["hypotheses"][0]["title"] == "Idea 1"
    assert it.rows.states() == ["malformed", "answered"]
    assert it.rows.rows[0]["detail"]
    prompts = sorted((it.folder / "agents" / "r1").glob("design-*/prompt.md"))
    assert it.rows.rows[0]["detail"] in prompts[1].read_text()


@pytest.mark.parametrize("agent", [*CLIS, "openai:small"])
def test_a_refused_login_is_told_in_the_agents_words(bench: Any, agent: str) -> None:
    it = bench(agent, {"design": "refused"})
    with pytest.raises(AgentError, match=r"401|Invalid API key|Incorrect API key"):
        it.ask("design")
    assert it.rows.states() == ["failed"]


@pytest.mark.parametrize("agent", CLIS)
def test_silence_and_questions_are_no_answers(bench: Any, agent: str) -> None:
    it = bench(agent, {"design": "empty", "implement": "permission"})
    with pytest.raises(AgentError, match="before it had answered"):
        it.ask("design")
    with pytest.raises(AgentError, match="no answer came on a closed standard input"):
        it.ask("implement")
    assert it.rows.states() == ["malformed", "failed"]


def test_a_permission_that_the_protocol_asks_for_is_given_and_recorded(bench: Any) -> None:
    it = bench("acp:acp-agent", {"implement": "permission"})
    it.ask("implement")
    transcript = (it.folder / "agents" / "r1" / "implement-1" / "output.jsonl").read_text()
    assert '{"permission": "rm -rf /", "given": true}' in transcript


@pytest.mark.parametrize("agent", SOME)
def test_nothing_is_written_or_seen_outside(bench: Any, agent: str, tmp_path: Path) -> None:
    it = bench(agent, {"implement": "outside"})
    it.ask("implement")
    escapes = it.work / "escapes.json"
    if escapes.exists():
        # Directories above the work are the sandbox's own, empty and gone with it.
        assert json.loads(escapes.read_text())["seen"] == []
    assert list(tmp_path.rglob("escaped.txt")) == []
    assert not Path("/usr/lib/escaped.txt").exists()
    assert not Path("/etc/escaped.txt").exists()
    if agent == "openai:small":
        said = (it.folder / "agents" / "r1" / "implement-1" / "output.jsonl").read_text()
        assert said.count("lies outside of") == 3
        assert "there is no tool 'no-such-tool'" in said
        assert "error: old: Field required" in said


@pytest.mark.parametrize("agent", [*CLIS, "acp:acp-agent"])
def test_it_is_told_of_our_own_tools_and_they_work_inside_its_sandbox(bench: Any, agent: str) -> None:
    it = bench(agent, {"implement": "tools"})
    it.ask("implement")
    used = json.loads((it.work / "tools.json").read_text())
    assert {"docs_search", "roofline", "lint", "simulate", "profile_sql"} <= set(used["tools"])
    assert "batching" in used["found"]
    assert used["judge"] == [], "the judge's probes are not there to be read"
    assert not list(it.work.rglob("*mcp*")), "the set-up lies in the home of the call"


@pytest.mark.parametrize("agent", ["claude", "acp:acp-agent"])
def test_one_that_takes_too_much_memory_is_ended(bench: Any, agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vibeserve.agents.drivers.cli.MEMORY_BYTES", 200 << 20)
    monkeypatch.setattr("vibeserve.agents.drivers.acp.MEMORY_BYTES", 200 << 20)
    it = bench(agent, {"design": "hog"})
    with pytest.raises(AgentError, match="more memory than it may"):
        it.ask("design")
    assert it.rows.states() == ["failed"]


FORMS = {
    "claude": ["claude", "-p", "--dangerously-skip-permissions", "--output-format", "stream-json", "--verbose"],
    "codex": ["codex", "exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", "--json"],
    "gemini": ["gemini", "-y", "-o", "stream-json"],
    "opencode": ["opencode", "run", "{prompt}", "--format=json"],
}
ANSWERS = {"claude": ["--json-schema", "{schema}"], "codex": ["--output-schema", "{schema_file}"]}


@pytest.mark.parametrize("agent", CLIS)
def test_the_headless_forms_to_the_letter(agent: str) -> None:
    form = forms()[agent]
    assert list(form.argv) == FORMS[agent] + ANSWERS.get(agent, [])
    assert form.model == ("--model", "{model}")


@pytest.mark.parametrize("agent", SOME)
def test_a_reader_cannot_write(bench: Any, agent: str) -> None:
    it = bench(agent, {})
    it.ask("design")
    assert [path.name for path in it.work.iterdir()] == ["reference.py"]


def test_the_users_own_login_is_copied_and_nothing_else_of_the_home_is_seen(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".claude").mkdir(parents=True)
    (home / ".claude" / ".credentials.json").write_text("{}")
    (home / ".claude" / "settings.json").write_text("{}")
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    it = bench("claude", {})
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    import dataclasses

    it.driver = dataclasses.replace(it.driver, home=home)
    it.driver.ready()
    furnished = tmp_path / "furnished"
    furnished.mkdir()
    it.driver._furnish(furnished)
    names = [str(path.relative_to(furnished)) for path in furnished.rglob("*") if path.is_file()]
    assert names == [".claude/.credentials.json"]
    with pytest.raises(AgentError, match="it printed nothing"):  # the stand-in has no key
        it.ask("design")
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


def test_without_program_or_login_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("claude", "acp:agent-that-is-not-there"):
        with pytest.raises(MissingError, match="is not installed"):
            make_driver(parse_agent(name)).ready()
    put_on_path(tmp_path / "bin", "codex", {}, monkeypatch)
    monkeypatch.delenv("CODEX_API_KEY")
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(MissingError, match="codex has no login here") as caught:
        make_driver(parse_agent("codex")).ready()
    assert "codex login" in caught.value.hint
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(MissingError, match="no endpoint"):
        make_driver(parse_agent("openai:m")).ready()


@pytest.mark.parametrize("name", ["", "claud", "openai", "openai:", "acp", "acp: ", "acp:'x", "claude:", "playbook:x"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        parse_agent(name)
