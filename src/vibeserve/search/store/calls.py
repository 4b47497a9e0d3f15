"""The rows of agents' calls: opened before the program starts, closed once, never taken away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vibeserve.base.jsonio import dumps
from vibeserve.search.store.columns import from_row
from vibeserve.search.store.database import Database
from vibeserve.search.store.rows import CallRow, ClaimRow

_CLOSES = ("state", "detail", "model", "took_s", "input_tokens", "output_tokens", "cost_usd")


class CallReader:
    """Calls and claims as they stand; an older store has none."""

    _db: Database

    def calls(self) -> list[CallRow]:
        """All calls, in the order they began."""
        if self._db.version < 2:
            return []
        return [from_row(CallRow, row) for row in self._db.connection.execute("SELECT * FROM calls ORDER BY id")]

    def claims(self) -> list[ClaimRow]:
        """What agents said, in order."""
        if self._db.version < 2:
            return []
        return [from_row(ClaimRow, row) for row in self._db.connection.execute("SELECT * FROM claims ORDER BY id")]


class CallWriter(CallReader):
    """Opens and closes calls, each in a transaction of its own: no step of the run has to end for them to be kept."""

    def open_call(self, values: Mapping[str, Any]) -> int:
        """A new row in state running; `attempt` is the next one of its round and task."""
        columns = {"state": "running", **values}
        with self._db.transaction("call") as connection:
            query = "SELECT coalesce(max(attempt), 0) + 1 FROM calls WHERE round = ? AND task = ?"
            columns["attempt"] = connection.execute(query, (values["round"], values["task"])).fetchone()[0]
            names, marks = ", ".join(columns), ", ".join("?" * len(columns))
            row = connection.execute(f"INSERT INTO calls ({names}) VALUES ({marks})", tuple(columns.values()))
            return int(row.lastrowid or 0)

    def close_call(self, call: int, values: Mapping[str, Any], reply: Mapping[str, Any] | None) -> None:
        """How it ended; each field of the reply becomes a claim. Raises LookupError where it is not running."""
        columns = {name: values[name] for name in _CLOSES if name in values}
        columns["reply"] = None if reply is None else dumps(reply, indent=None)
        changes = ", ".join(f"{name} = ?" for name in columns)
        with self._db.transaction("call end") as connection:
            query = f"UPDATE calls SET {changes} WHERE id = ? AND state = 'running'"
            if connection.execute(query, (*columns.values(), call)).rowcount != 1:
                raise LookupError(f"call {call} is not running")
            for name, value in (reply or {}).items():
                said = (call, name, dumps(value, indent=None))
                connection.execute(
                    "INSERT INTO claims (call, name, value, provenance) VALUES (?, ?, ?, 'claimed')", said
                )
