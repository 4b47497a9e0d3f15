"""The run store: one SQLite file a run, a single writer, every change a transaction."""

from __future__ import annotations

from vibeserve.search.store.database import SCHEMA_VERSION, Database, WriteHook
from vibeserve.search.store.rows import (
    CallRow,
    CandidateRow,
    ClaimRow,
    DecisionRow,
    EvidenceRow,
    GateRow,
    HypothesisRow,
    MeasurementRow,
    RunRow,
)
from vibeserve.search.store.runstore import RunStore, RunView

__all__ = [
    "SCHEMA_VERSION",
    "CallRow",
    "CandidateRow",
    "ClaimRow",
    "Database",
    "DecisionRow",
    "EvidenceRow",
    "GateRow",
    "HypothesisRow",
    "MeasurementRow",
    "RunRow",
    "RunStore",
    "RunView",
    "WriteHook",
]
