"""The rows of the run store as frozen values. Names and meanings are those of schema.sql."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vibeserve.base.provenance import Provenance

MEASURED = Provenance.MEASURED.value


@dataclass(frozen=True)
class RunRow:
    """What was asked, where, in which environment."""

    name: str
    state: str
    reason: str
    bundle: str
    request: dict[str, Any]
    environment: dict[str, Any]
    device: dict[str, Any]
    started: str
    seed: int


@dataclass(frozen=True)
class HypothesisRow:
    """One proposal of an agent, as it was made, and what became of it."""

    round: int
    techniques: tuple[str, ...]
    title: str
    parent: str
    hypothesis: str
    expected_effect: str
    expected_ratio: float | None
    falsification: str
    activation: tuple[dict[str, Any], ...]
    settings: dict[str, Any]
    why: str
    not_others: tuple[dict[str, Any], ...]
    proposed_by: str
    state: str = "in progress"
    mechanism: str = ""


@dataclass(frozen=True)
class CandidateRow:
    """A candidate: its commit in workspace/ (none for the reference, which lies in the bundle)."""

    id: str
    round: int
    parent: str | None
    commit: str | None
    tree: str | None
    techniques: tuple[str, ...]
    settings: dict[str, Any]
    summary: str
    at_s: float


@dataclass(frozen=True)
class GateRow:
    """One gate on one candidate: passed, failed, or not run (`ok` is None)."""

    round: int
    candidate: str
    name: str
    ok: bool | None
    detail: str
    document: dict[str, Any] = field(default_factory=dict)
    at_s: float = 0.0
    provenance: str = MEASURED


@dataclass(frozen=True)
class MeasurementRow:
    """One window of load on one server."""

    round: int
    candidate: str
    kind: str
    pair: int
    place: int
    metric: str
    unit: str
    value: float | None
    window_s: float | None
    seed: int
    failed: int = 0
    noisy: str = ""
    reason: str = ""
    document: str = ""
    at_s: float = 0.0
    provenance: str = MEASURED


@dataclass(frozen=True)
class EvidenceRow:
    """One number that is known of a candidate."""

    candidate: str
    name: str
    value: float
    unit: str
    provenance: str
    source: str = ""


@dataclass(frozen=True)
class DecisionRow:
    """The verdict of a round (`kind` round), or of the run (`kind` final)."""

    round: int
    kind: str
    candidate: str
    against: str
    verdict: str
    reason: str
    value: float | None
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    pairs: int
    at_s: float


@dataclass(frozen=True)
class CallRow:
    """One call of an agent. Tokens and cost in dollars are the agent's own word (None: it gave none); `took_s` is ours."""

    id: int
    round: int
    task: str
    attempt: int
    role: str
    agent: str
    model: str
    sandbox: str
    state: str
    detail: str
    started: str
    took_s: float | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    transcript: str
    reply: dict[str, Any] | None


@dataclass(frozen=True)
class ClaimRow:
    """Something that an agent said: never a measurement. `value` is any JSON value."""

    call: int
    name: str
    value: Any
    provenance: str = "claimed"
