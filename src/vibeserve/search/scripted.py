"""A laboratory, an agent and a world for tests: no process is started, a script says what each server is worth.

Every act moves the logical clock, every value depends on seeds alone, so a run can be compared field by field with one
that was killed and resumed. `die` is called at each act and may raise, as a kill in the middle of a measurement would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vibeserve.agents.agent import Edit, Fact, Goal, Proposal, SearchState, Stop
from vibeserve.base.clock import LogicalClock
from vibeserve.base.randomness import stream
from vibeserve.measure import RunError, StartError
from vibeserve.search.lab import Gate, Window
from vibeserve.search.request import Request
from vibeserve.search.start import Prepared

GOAL = Goal(
    slug="scripted",
    modality="text -> text",
    api="openai-completions",
    metric="output_tokens_per_s",
    unit="tokens/s",
    direction="higher",
    hardware="cpu",
    hardware_kind="cpu",
    dtypes=("float32",),
    architecture="LlamaForCausalLM",
)


@dataclass(frozen=True)
class Behaviour:
    """What a candidate does: its true value, the spread of a window, and how it fails where it does."""

    value: float = 1.0
    spread: float = 0.01
    start: str = ""
    check: bool | None = True
    probes: Mapping[str, bool] = field(default_factory=lambda: {"sentinel": True})
    probes_after: Mapping[str, bool] | None = None  # after its pairs, where they are others
    answers: bool | None = True
    failed: int = 0
    dies: str = ""
    silent: tuple[int, ...] = ()  # the windows, counted from 1, in which nothing comes
    facts: Mapping[str, float] = field(default_factory=dict)
    shows_after_s: float = 0.0  # a shorter window ends before most requests have a token, and its counters show nothing
    tampers: bool = False
    start_s: float = 5.0
    next_lives: float = 1.0  # what its value is multiplied by once it was started again


@dataclass
class ScriptedServer:
    """A server that is only a name."""

    name: str
    behaviour: Behaviour
    ready_s: float
    open_servers: set[str]

    @property
    def alive(self) -> bool:
        return self.name in self.open_servers

    def close(self) -> None:
        self.open_servers.discard(self.name)


class ScriptedLab:
    """Behaviours by candidate name (c0, c1, …). `open_servers` is empty when all that was started has been closed."""

    def __init__(
        self,
        behaviours: Mapping[str, Behaviour],
        clock: LogicalClock,
        *,
        die: Callable[[str], None] = lambda act: None,
        facts: Mapping[str, Fact] | None = None,
        direction: str = "higher",
        limit_again: float | None = None,
    ):
        self._behaviours = behaviours
        self._clock = clock
        self._die = die
        self._facts = dict(facts or {})
        self._direction = direction
        self._limit_again = limit_again
        self._tampered = False
        self.open_servers: set[str] = set()
        self.acts: list[str] = []
        self.lives: dict[str, int] = {}

    def _act(self, act: str, seconds: float) -> None:
        self.acts.append(act)
        self._die(act)
        self._clock.advance(seconds)

    def recover(self) -> None:
        """Nothing outlives a script."""

    def start(self, name: str, directory: Path, *, log: Path) -> ScriptedServer:
        behaviour = self._behaviours[name]
        if not directory.is_dir():
            raise AssertionError(f"{directory} is not there")
        self._act(f"start {name}", behaviour.start_s)
        if behaviour.start:
            raise StartError(behaviour.start)
        self.open_servers.add(name)
        self.lives[name] = self.lives.get(name, 0) + 1
        return ScriptedServer(name, behaviour, behaviour.start_s, self.open_servers)

    def check(self, server: Any, *, seed: int, log: Path, reference: bool = False) -> Gate:
        self._act(f"check {server.name}", 10.0)
        self._tampered = self._tampered or server.behaviour.tampers
        words = {True: "3 of 3 cases passed", False: "1 of 3 cases failed", None: "the checker could not run"}
        return Gate("check", server.behaviour.check, words[server.behaviour.check], {"seed": seed})

    def probe(self, server: Any, *, seed: int, oracle: Any) -> Sequence[Gate]:
        self._act(f"probe {server.name}", 5.0)
        assert oracle.name == "c0"
        behaviour = server.behaviour
        loaded = self.acts.count(f"window {server.name}") > 1
        probes = behaviour.probes if behaviour.probes_after is None or not loaded else behaviour.probes_after
        return [Gate(f"probe {name}", ok, "as scripted") for name, ok in probes.items()]

    def answers(self, server: Any, document: str, *, log: Path) -> Gate:
        self._act(f"answers {server.name}", 8.0)
        assert document.startswith("logs/")
        return Gate("answers under load", server.behaviour.answers, "as scripted", {"of": document})

    def integrity(self) -> dict[str, str]:
        return {"accuracy_checker/checker.py": "changed" if self._tampered else "as it was"}

    def window(
        self, server: Any, others: Sequence[Any], *, seed: int, window_s: float, log: Path, again: bool = False
    ) -> Window:
        self._act(f"window {server.name}", window_s + 1.0)
        behaviour = server.behaviour
        if behaviour.dies:
            raise RunError(f"{server.name}: {behaviour.dies}")
        if self.acts.count(f"window {server.name}") in behaviour.silent:
            raise RunError(f"{server.name}: nothing was measured")
        noise = 1.0 + behaviour.spread * stream(seed, server.name).gauss(0.0, 1.0)
        worth = behaviour.value * (behaviour.next_lives if self.lives[server.name] > 1 else 1.0)
        return Window(worth * noise, failed=behaviour.failed, document=f"logs/{log.name}")

    def observe(self, server: Any, *, seed: int, window_s: float, log: Path) -> Window:
        window = self.window(server, [], seed=seed, window_s=window_s, log=log)
        shown = window_s >= server.behaviour.shows_after_s
        told = server.behaviour.facts if shown else dict.fromkeys(server.behaviour.facts, 0.0)
        facts = {name: Fact(value, "", "measured", "scripted") for name, value in told.items()}
        waiting = 0.0 if shown else 0.9
        return Window(window.value, window.failed, document=window.document, waiting=waiting, facts=facts)

    def curve(self, server: Any, *, concurrency: int, seed: int, window_s: float, log: Path) -> Window:
        window = self.window(server, [], seed=seed + concurrency, window_s=window_s, log=log)
        return Window(window.value, document=window.document, facts={"ttft_p50_s": Fact(0.1, "s", "measured")})

    def facts(self) -> dict[str, Fact]:
        self._act("facts", 2.0)
        return self._facts

    def limit_again(self, known: Mapping[str, Fact]) -> dict[str, Fact]:
        self._act("limit again", 15.0)
        assert not self.open_servers
        return (
            {} if self._limit_again is None else {"limit.value": Fact(self._limit_again, "", "hand-counted", "again")}
        )


class ScriptedAgent:
    """Proposes the techniques of a list in order, over whatever incumbent there is, then stops."""

    name = "scripted"

    def __init__(self, proposals: Sequence[Mapping[str, Any]]):
        self._proposals = proposals

    def propose(self, state: SearchState) -> Proposal | Stop:
        """The proposal of this round; `parent` in a script goes back to an earlier candidate."""
        if state.round > len(self._proposals):
            return Stop("plateau", "the script has ended")
        script = self._proposals[state.round - 1]
        return Proposal(
            techniques=tuple(script["techniques"]),
            title=script.get("title", f"try {', '.join(script['techniques'])}"),
            parent=script.get("parent", state.incumbent),
            hypothesis="it is faster",
            expected_effect="more tokens",
            expected_ratio=script.get("expected_ratio", 2.0),
            falsification="the interval holds 1",
            activation=tuple(script.get("activation", ())),
            settings={**state.settings, **script.get("settings", {})},
            why=f"value so far {state.incumbent_value}",
        )

    def edit(self, proposal: Proposal, worktree: Path) -> Edit:
        """Adds one file a technique; `nothing` changes nothing."""
        if proposal.techniques == ("nothing",):
            return Edit("changed nothing")
        for technique in proposal.techniques:
            (worktree / f"{technique}.txt").write_text(f"{technique} {sorted(proposal.settings.items())}\n")
        return Edit(f"wrote {', '.join(proposal.techniques)}")

    def floor(self, state: SearchState) -> list[dict[str, Any]]:
        """One entry, so that reports have something to show."""
        return [{"technique": "batching", "title": "batching", "state": "missing", "reason": "scripted"}]


@dataclass
class ScriptedWorld:
    """Hands out one laboratory for each time that a run is begun or gone on with."""

    make_lab: Callable[[], ScriptedLab]
    make_agent: Callable[[], ScriptedAgent]
    reference: Path
    goal: Goal = GOAL
    environment: dict[str, Any] = field(default_factory=lambda: {"cpu": "scripted"})
    labs: list[ScriptedLab] = field(default_factory=list)

    def prepare(self, request: Request, directory: Path) -> Prepared:
        """The scripted laboratory and agent."""
        lab = self.make_lab()
        self.labs.append(lab)
        return Prepared(self.goal, lab, self.make_agent(), self.reference, dict(self.environment), {"device": "none"})
