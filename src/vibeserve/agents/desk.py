"""What a coding agent is given to work with: where its calls are recorded, what it may spend, where it is confined.

The search makes one desk a run and sets `round` before each step. A driver makes one call at a time on a `Task`, and
answers with a `Reply`, or raises `AgentError`; everything else (retries, budgets, records) is `vibeserve.agents.calls`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from vibeserve.agents.agent import SearchState
from vibeserve.base.errors import VibeServeError
from vibeserve.base.processes import Process, ProcessRunner


@dataclass(frozen=True)
class Usage:
    """What a call used, by the agent's own word; None where it gave none. Cost in US dollars."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    model: str = ""


@dataclass(frozen=True)
class Reply:
    """An agent's answer: its text, the document in it where the agent gives one apart from the text, and its usage."""

    text: str
    document: Mapping[str, Any] | None = None
    usage: Usage = Usage()


class AgentError(VibeServeError):
    """A call that came to nothing. `state` is the word for the record: failed | timed out | malformed."""

    code = "agent"

    def __init__(self, message: str, *, state: str = "failed", usage: Usage | None = None, hint: str = ""):
        super().__init__(message, hint=hint)
        self.state = state
        self.usage = usage or Usage()


class SpentError(AgentError):
    """The budget of time, tokens or money does not allow another call."""

    code = "budget"


@dataclass(frozen=True)
class Task:
    """One thing asked of an agent. `work` is the directory that it sees as its own; it may write there where `writes`.

    `answer` is the model of the answer; `folder` gets the transcript; `readable` are further directories to read.
    `check` says what is wrong with a document that fits the model all the same (a parent that is not there); else "".
    """

    name: str
    role: str
    prompt: str
    answer: type[BaseModel]
    work: Path
    folder: Path
    writes: bool
    timeout_s: float
    readable: tuple[Path, ...] = ()
    check: Callable[[Mapping[str, Any]], str] = lambda document: ""

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the answer."""
        return self.answer.model_json_schema()


@dataclass(frozen=True)
class Box:
    """What a confined program may see: its work, a home of its own, what it may read, and whether there is a network.

    `hidden` are directories inside what it may read that are empty to it.
    """

    work: Path
    writes: bool
    home: Path
    readable: tuple[Path, ...] = ()
    network: bool = False
    hidden: tuple[Path, ...] = ()


class Sandbox(Protocol):
    """Confines a program. `name` is what the record calls it."""

    name: str

    def wrap(self, argv: Sequence[str], box: Box) -> tuple[str, ...]:
        """The command line that runs `argv` confined to `box`."""
        ...


@dataclass(frozen=True)
class Spent:
    """What all calls of the run have used. `silent` calls said nothing of their tokens, `unpriced` ones of their cost."""

    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    silent: int = 0
    unpriced: int = 0


class Records(Protocol):
    """Where calls are kept. A row is there before the call begins, whatever becomes of it."""

    def open(self, *, number: int, task: str, role: str, agent: str, sandbox: str, transcript: Path) -> int:
        """A new call of round `number`; returns the call's own id."""
        ...

    def close(self, call: int, state: str, usage: Usage, *, detail: str = "", reply: Mapping[str, Any] | None) -> None:
        """How it ended."""
        ...

    def answered(self, number: int, task: str) -> Mapping[str, Any] | None:
        """The reply that this task of this round already got (before a kill), or None."""
        ...

    def tries(self, number: int, task: str) -> int:
        """How many calls this task has had."""
        ...

    def spent(self) -> Spent:
        """What the run has used so far."""
        ...


@dataclass(frozen=True)
class Remembered:
    """A hypothesis as the agents' memory shows it."""

    round: int
    title: str
    hypothesis: str
    state: str
    parent: str
    mechanism: str = ""


@dataclass(frozen=True)
class Limits:
    """What agents may use: tokens and dollars over the whole run (None: no limit), and seconds a call."""

    tokens: int | None = None
    cost_usd: float | None = None
    call_s: float = 1800.0
    tries: int = 3
    parallel: int = 1


@dataclass
class Desk:
    """One run's desk. `folder` is where transcripts and copies lie; `round` is set by the search."""

    records: Records
    runner: ProcessRunner
    sandbox: Sandbox | None
    folder: Path
    group: str
    state: Callable[[int], SearchState]
    memory: Callable[[], Sequence[Remembered]]
    time_left_s: Callable[[], float]
    limits: Limits = Limits()
    readable: tuple[Path, ...] = ()
    round: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)

    def wait(self, process: Process, timeout_s: float) -> int | None:
        """A process's exit code; None where it still runs after `timeout_s`, or all calls were cancelled."""
        deadline = time.monotonic() + timeout_s
        while not self.cancelled.is_set():
            code = process.wait(max(0.0, min(0.5, deadline - time.monotonic())))
            if code is not None or time.monotonic() >= deadline:
                return code
        return None


class Driver(Protocol):
    """How one kind of agent is reached. `conformance` of a driver is in tests/agents/test_drivers.py."""

    @property
    def name(self) -> str:
        """As it is recorded."""
        ...

    @property
    def confined(self) -> bool:
        """Whether it starts a program that needs the sandbox."""
        ...

    @property
    def tells_cost(self) -> bool:
        """Whether its replies say what they cost."""
        ...

    def ready(self) -> None:
        """See that it is installed and that there is a login. Raises MissingError with what to do."""
        ...

    def call(self, task: Task, desk: Desk) -> Reply:
        """Do the task. Raises AgentError; whatever was started is gone when this returns or raises."""
        ...
