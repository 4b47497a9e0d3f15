"""SQL over one profile: one SELECT, its own tables, limits on time, memory and rows, one connection a request."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vibeserve.base.errors import InputError
from vibeserve.profiles import guard, schema
from vibeserve.profiles.profile import Profile

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class Limits:
    """What a query may use."""

    seconds: float = 20.0
    rows: int = 100_000
    memory_bytes: int = 2 * 2**30
    value_characters: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of a query. `truncated` says that there were more than the limit."""

    columns: list[dict[str, str]]
    rows: list[tuple[Any, ...]]
    truncated: bool

    def document(self) -> dict[str, Any]:
        """The JSON of `profile sql`: columns, data (objects), rowCount, truncated."""
        names = [column["name"] for column in self.columns]
        data = [dict(zip(names, row, strict=True)) for row in self.rows]
        return {"columns": self.columns, "data": data, "rowCount": len(data), "truncated": self.truncated}


def query(profile: Profile, text: str, limits: Limits | None = None) -> Result:
    """Run one SELECT over the profile's tables. Raises InputError for what is refused, wrong or too big."""
    import duckdb

    limits = limits or Limits()
    with _locked(profile, limits) as connection:
        guard.check(guard.parse(connection, text), profile.table_names())
        expired = threading.Event()

        def stop() -> None:
            expired.set()
            connection.interrupt()

        timer = threading.Timer(limits.seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            cursor = connection.execute(text)
            described = cursor.description or []
            rows = cursor.fetchmany(limits.rows + 1)
        except duckdb.InterruptException:
            raise InputError(
                f"the query took longer than {limits.seconds:g} s and was stopped",
                hint="narrow it",
                code="query-timeout",
            ) from None
        except (duckdb.OutOfMemoryException, MemoryError):
            raise InputError(
                f"the query needs more than {limits.memory_bytes / 2**20:.0f} MiB",
                hint="narrow it",
                code="query-memory",
            ) from None
        except (duckdb.Error, OverflowError, ValueError, RuntimeError) as error:
            raise InputError(
                f"SQL: {guard.first_line(error)}", hint=_hint(profile, str(error)), code="query-failed"
            ) from None
        finally:
            timer.cancel()
    columns = [{"name": str(item[0]), "type": str(item[1])} for item in described]
    names = _distinct([column["name"] for column in columns])
    columns = [{**column, "name": name} for column, name in zip(columns, names, strict=True)]
    kept = [tuple(_plain(value, limits) for value in row) for row in rows[: limits.rows]]
    return Result(columns, kept, truncated=len(rows) > limits.rows)


@contextmanager
def _locked(profile: Profile, limits: Limits) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that sees the profile's tables as views, cannot reach any other file, and cannot be reconfigured."""
    connection = profile.connect(complete=False)
    try:
        if profile.directory is not None:
            folder = str(profile.directory).replace("'", "''")
            connection.execute(f"SET allowed_directories=['{folder}/']")
        connection.execute(f"SET memory_limit='{limits.memory_bytes // 2**20}MiB'")
        connection.execute("SET temp_directory=''")
        connection.execute("SET enable_external_access=false")
        connection.execute("SET lock_configuration=true")
        yield connection
    finally:
        connection.close()


def _plain(value: Any, limits: Limits) -> Any:
    """A value as JSON knows it: NaN and infinity are null, times are text, long text is cut with a notice."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case str():
            if len(value) > limits.value_characters:
                return value[: limits.value_characters] + f"… ({len(value)} characters)"
            return value
        case list() | tuple():
            return [_plain(item, limits) for item in value]
        case dict():
            return {str(key): _plain(item, limits) for key, item in value.items()}
        case bytes():
            return value.hex()
    return str(value)


def _distinct(names: list[str]) -> list[str]:
    """Column names without twins: the second `x` becomes `x_1`."""
    seen: dict[str, int] = {}
    taken = set(names)
    out = []
    for name in names:
        if name not in seen:
            seen[name] = 0
            out.append(name)
            continue
        while True:
            seen[name] += 1
            candidate = f"{name}_{seen[name]}"
            if candidate not in taken:
                break
        taken.add(candidate)
        out.append(candidate)
    return out


def _hint(profile: Profile, message: str) -> str:
    if "not found" in message or "does not exist" in message:
        return f"'vibeserve profile schema {profile.name} TABLE' lists the columns"
    return "see the message for the place"


def describe(profile: Profile, table: str | None = None) -> dict[str, Any]:
    """The tables of a profile (or one of them) with their columns: name, type, unit, description.

    Columns that the schema knows and the profile lacks are not listed; those it has beyond the schema are, undescribed.
    """
    import pyarrow.parquet as pq

    from vibeserve.profiles.profile import parquet_files

    names = profile.table_names()
    if table is not None:
        found = {name.lower(): name for name in names}.get(table.lower())
        if found is None:
            raise InputError(f"profile '{profile.name}' has no table '{table}'", hint=f"it has {', '.join(names)}")
        names = [found]
    out = []
    for name in names:
        if name in profile.tables:
            arrow = profile.tables[name].schema
        else:
            assert profile.directory is not None
            arrow = pq.read_schema(parquet_files(profile.directory)[name][0])
        known = schema.tables().get(name)
        columns = []
        for item in arrow:
            column = known.columns.get(item.name) if known else None
            kind = column.type if column else str(item.type)
            columns.append(
                {
                    "name": item.name,
                    "type": kind,
                    "unit": column.unit if column else None,
                    "description": column.meaning if column else "not in the schema: kept as it came",
                    "pitfall": column.pitfall if column else None,
                    "required": column.required if column else False,
                }
            )
        out.append(
            {"name": name, "about": known.about if known else "", "rows": profile.rows(name), "columns": columns}
        )
    return {"profile": profile.name, "tables": out}
