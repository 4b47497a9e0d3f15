"""Reading and writing one run's rows."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vibeserve.base.errors import InputError
from vibeserve.base.jsonio import dumps
from vibeserve.search.store.calls import CallReader, CallWriter
from vibeserve.search.store.columns import from_row as _from_row
from vibeserve.search.store.columns import to_columns as _to_columns
from vibeserve.search.store.database import Database, WriteHook
from vibeserve.search.store.rows import (
    CandidateRow,
    DecisionRow,
    EvidenceRow,
    GateRow,
    HypothesisRow,
    MeasurementRow,
    RunRow,
)

Row = HypothesisRow | CandidateRow | GateRow | MeasurementRow | EvidenceRow | DecisionRow
_R = TypeVar("_R")

_TABLES: dict[type, str] = {
    HypothesisRow: "hypotheses",
    CandidateRow: "candidates",
    GateRow: "gates",
    MeasurementRow: "measurements",
    EvidenceRow: "evidence",
    DecisionRow: "decisions",
}


class NotBegunError(InputError, LookupError):
    """A store without a run: its process was ended between making the store and writing the first row."""


class RunView(CallReader):
    """A run as it stands, read from its store; it never writes and never waits for the writer."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._db = Database(directory / "run.db", write=False)

    def __enter__(self) -> RunView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store."""
        self._db.close()

    def _rows(self, cls: type[_R], where: str = "", arguments: Sequence[Any] = (), order: str = "rowid") -> list[_R]:
        query = f"SELECT * FROM {_TABLES[cls]} {where} ORDER BY {order}"
        return [_from_row(cls, row) for row in self._db.connection.execute(query, arguments)]

    def run(self) -> RunRow:
        """The run's own row. Raises NotBegunError for a store whose run was never begun."""
        row = self._db.connection.execute("SELECT * FROM run").fetchone()
        if row is None:
            raise NotBegunError(
                f"{self.directory} holds no run: it was ended before it began",
                hint="nothing was measured in it: begin again with 'vibeserve optimize'",
            )
        return _from_row(RunRow, row)

    def hypotheses(self) -> list[HypothesisRow]:
        """All proposals, by round."""
        return self._rows(HypothesisRow, order="round")

    def candidates(self) -> list[CandidateRow]:
        """All candidates, by round."""
        return self._rows(CandidateRow, order="round")

    def gates(self, candidate: str | None = None) -> list[GateRow]:
        """Gates, in the order they ran."""
        return self._rows(GateRow, *(("WHERE candidate = ?", (candidate,)) if candidate else ()))

    def measurements(self, candidate: str | None = None) -> list[MeasurementRow]:
        """Windows of load, in the order they were measured."""
        return self._rows(MeasurementRow, *(("WHERE candidate = ?", (candidate,)) if candidate else ()))

    def evidence(self, candidate: str) -> list[EvidenceRow]:
        """What is known of a candidate, by name."""
        return self._rows(EvidenceRow, "WHERE candidate = ?", (candidate,), order="name")

    def decisions(self) -> list[DecisionRow]:
        """Verdicts, in the order they were reached."""
        return self._rows(DecisionRow)

    def events(self) -> list[dict[str, Any]]:
        """What happened, in words."""
        rows = self._db.connection.execute("SELECT at_s, kind, text FROM events ORDER BY id")
        return [dict(row) for row in rows]

    def sessions(self) -> list[dict[str, Any]]:
        """The processes that worked on this run."""
        rows = self._db.connection.execute("SELECT pid, started, ended, how FROM sessions ORDER BY id")
        return [dict(row) for row in rows]

    def step(self, key: str) -> Any:
        """What the step `key` returned. Raises KeyError where it has not been done."""
        row = self._db.connection.execute("SELECT value FROM steps WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise KeyError(key)
        return json.loads(row["value"])

    def steps(self) -> list[dict[str, Any]]:
        """The journal: key, began_s, took_s, in order."""
        rows = self._db.connection.execute("SELECT key, began_s, took_s FROM steps ORDER BY position")
        return [dict(row) for row in rows]

    def elapsed_s(self) -> float:
        """Seconds spent in finished steps."""
        return float(self._db.connection.execute("SELECT coalesce(sum(took_s), 0) FROM steps").fetchone()[0])


class RunStore(RunView, CallWriter):
    """The one writer of a run. Opening it takes the run's lock; `hook` is told of every commit."""

    def __init__(self, directory: Path, *, hook: WriteHook | None = None):
        self.directory = directory
        self._db = Database(directory / "run.db", write=True, **({"hook": hook} if hook else {}))

    def begin(self, row: RunRow) -> None:
        """Write the run's own row; nothing happens where it is there already."""
        columns = _to_columns(row)
        with self._db.transaction("begin") as connection:
            connection.execute(
                f"INSERT OR IGNORE INTO run (id, {', '.join(columns)}) VALUES (1{', ?' * len(columns)})",
                tuple(columns.values()),
            )

    def set_state(self, state: str, reason: str = "") -> None:
        """Change the run's state."""
        with self._db.transaction("state") as connection:
            connection.execute("UPDATE run SET state = ?, reason = ?", (state, reason))

    def open_session(self, pid: int, started: str) -> int:
        """Note the process that works on this run; what an earlier one left open ended without a word."""
        with self._db.transaction("session") as connection:
            connection.execute("UPDATE sessions SET how = 'killed' WHERE how IS NULL")
            connection.execute("UPDATE calls SET state = 'killed' WHERE state = 'running'")
            row = connection.execute("INSERT INTO sessions (pid, started) VALUES (?, ?)", (pid, started))
            return int(row.lastrowid or 0)

    def close_session(self, session: int, ended: str, how: str) -> None:
        """Note how this process ended."""
        with self._db.transaction("session end") as connection:
            connection.execute("UPDATE sessions SET ended = ?, how = ? WHERE id = ?", (ended, how, session))

    def event(self, at_s: float, kind: str, text: str) -> None:
        """Something worth reading later that belongs to no step."""
        with self._db.transaction("event") as connection:
            Recorder(connection, "").event(at_s, kind, text)

    @contextlib.contextmanager
    def record(self, key: str) -> Iterator[Recorder]:
        """One step and all its facts, in one transaction."""
        with self._db.transaction(f"step {key}") as connection:
            yield Recorder(connection, key)


class Recorder:
    """Adds rows inside the transaction of one step."""

    def __init__(self, connection: sqlite3.Connection, key: str):
        self._connection = connection
        self._key = key

    def step(self, value: Any, *, began_s: float, took_s: float) -> None:
        """The step itself."""
        self._connection.execute(
            "INSERT INTO steps SELECT ?, coalesce(max(position), 0) + 1, ?, ?, ? FROM steps",
            (self._key, dumps(value, indent=None), began_s, took_s),
        )

    def add(self, row: Row) -> None:
        """One fact."""
        columns = _to_columns(row)
        names = ", ".join(f'"{name}"' for name in columns)
        marks = ", ".join("?" * len(columns))
        self._connection.execute(
            f"INSERT INTO {_TABLES[type(row)]} ({names}) VALUES ({marks})", tuple(columns.values())
        )

    def hypothesis_state(self, round_number: int, state: str, mechanism: str = "") -> None:
        """What became of a round's hypothesis, and why."""
        query = "UPDATE hypotheses SET state = ?, mechanism = ? WHERE round = ?"
        self._connection.execute(query, (state, mechanism, round_number))

    def event(self, at_s: float, kind: str, text: str) -> None:
        """Something worth reading later."""
        self._connection.execute("INSERT INTO events (at_s, kind, text) VALUES (?, ?, ?)", (at_s, kind, text))
