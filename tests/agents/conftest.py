"""Runs with coding agents: stand-ins that speak the real wire form, a scripted laboratory, the real search around them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.agents.stand_in_http import Endpoint

from vibeserve.agents import confine, make_agent
from vibeserve.base.clock import LogicalClock
from vibeserve.search.request import Request
from vibeserve.search.scripted import Behaviour, ScriptedLab, ScriptedWorld
from vibeserve.search.start import Outside, Prepared, begin, go_on

CLIS = ("claude", "codex", "gemini", "opencode")
LOGINS = ("ANTHROPIC_API_KEY", "CODEX_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY")
SERVERS = {"c0": Behaviour(25), "c1": Behaviour(250), "c2": Behaviour(300), "c3": Behaviour(290, spread=0)}
needs_sandbox = pytest.mark.skipif(confine.here() is None, reason="not run: bubblewrap does not run here")


def put_on_path(folder: Path, name: str, behaviour: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in as an executable of this name, first on PATH, logged in."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    here = Path(__file__).parent
    shutil.copy(here / "stand_in.py", folder / "stand_in.py")
    source = (here / ("stand_in_acp.py" if name == "acp-agent" else "stand_in.py")).read_text(encoding="utf-8")
    program.write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
    program.chmod(0o755)
    (folder / "behaviour.json").write_text(json.dumps(dict(behaviour)))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for variable in LOGINS:
        monkeypatch.setenv(variable, "a-key")
    return program


class AgentWorld(ScriptedWorld):
    """A scripted laboratory with a real coding agent and a real sandbox."""

    def prepare(self, request: Request, directory: Path) -> Prepared:
        lab = self.make_lab()
        self.labs.append(lab)
        agent = make_agent(request.agent)
        agent.driver.ready()  # type: ignore[attr-defined]
        environment = dict(self.environment)
        return Prepared(self.goal, lab, agent, self.reference, environment, {"device": "none"}, sandbox=confine.here())


class AgentRun:
    """One run of an agent that can be begun and gone on with; servers are scripted by candidate."""

    def __init__(self, folder: Path, agent: str, servers: Mapping[str, Behaviour] = SERVERS, **request: Any):
        self.folder = folder
        reference = folder / "reference"
        reference.mkdir(parents=True, exist_ok=True)
        (reference / "reference.py").write_text("print('reference')\n")
        self.clock = LogicalClock()
        self.told: list[str] = []
        self.world = AgentWorld(lambda: ScriptedLab(servers, self.clock), lambda: None, reference)  # type: ignore[arg-type,return-value]
        self.request = Request(bundle="scripted", agent=agent, **request)
        self.directory = Path()

    def outside(self) -> Outside:
        return Outside(self.world, self.clock, lambda at_s, kind, text: self.told.append(text), pid=1)

    def run(self) -> dict[str, Any]:
        self.directory = begin(self.request, self.folder / "runs", self.outside())
        return go_on(self.directory, self.outside())


@pytest.fixture
def agent_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AgentRun]]:
    """A run with the stand-in of an agent."""

    endpoints: list[Endpoint] = []

    def make(agent: str, behaviour: Mapping[str, str] | None = None, name: str = "one", **rest: Any) -> AgentRun:
        program = "acp-agent" if agent == "acp:acp-agent" else agent.partition(":")[0]
        put_on_path(tmp_path / name / "bin", program, behaviour or {}, monkeypatch)
        if program == "openai":
            endpoints.append(Endpoint(dict(behaviour or {})))
            monkeypatch.setenv("OPENAI_BASE_URL", endpoints[-1].url)
        return AgentRun(tmp_path / name, agent, **rest)

    yield make
    for endpoint in endpoints:
        endpoint.close()
