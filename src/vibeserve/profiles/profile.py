"""A profile: its tables, in memory (from a simulator or a reader) or on disk (parquet), read when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vibeserve.base.errors import InputError
from vibeserve.profiles import schema

_SQL_TYPES = {
    "int64": "BIGINT",
    "int32": "INTEGER",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "bool": "BOOLEAN",
    "list<int64>": "BIGINT[]",
    "list<string>": "VARCHAR[]",
}

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(slots=True)
class Profile:
    """The tables of one run of a kernel (or model).

    `tables` holds Arrow tables in memory; `directory` holds `<Table>.parquet` (big ones split as `<Table>_0.parquet`, …).
    `info` is what the store knows: source, note, created, provenance. Values are never changed once made.
    """

    name: str
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    directory: Path | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    def table_names(self) -> list[str]:
        """The tables that there are, in alphabetical order."""
        names = set(self.tables)
        if self.directory is not None:
            names |= set(parquet_files(self.directory))
        return sorted(names)

    def has(self, name: str) -> bool:
        """Whether the table is there (it may be empty)."""
        return name in self.tables or (self.directory is not None and name in parquet_files(self.directory))

    def columns_of(self, name: str) -> list[str]:
        """The columns of a table; none where the table is missing."""
        import pyarrow.parquet as pq

        if name in self.tables:
            return list(self.tables[name].column_names)
        files = parquet_files(self.directory).get(name) if self.directory else None
        return list(pq.read_schema(files[0]).names) if files else []

    def rows(self, name: str) -> int:
        """How many rows a table has; 0 where it is missing."""
        import pyarrow.parquet as pq

        if name in self.tables:
            return int(self.tables[name].num_rows)
        files = parquet_files(self.directory).get(name, []) if self.directory else []
        return sum(pq.read_metadata(path).num_rows for path in files)

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table (or some columns of it) as Arrow; a missing table is empty, a missing known column null."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if name in self.tables:
            found = self.tables[name]
        elif self.has(name):
            assert self.directory is not None
            files = parquet_files(self.directory)[name]
            have = [set(pq.read_schema(path).names) for path in files]
            parts = [
                pq.read_table(path, columns=None if columns is None else [key for key in columns if key in names])
                for path, names in zip(files, have, strict=True)
            ]
            found = pa.concat_tables(parts, promote_options="default")
        else:
            found = schema.build(name, {}, rows=0) if name in schema.tables() else pa.table({})
        if columns is None:
            return found
        known = schema.tables()[name].columns if name in schema.tables() else {}
        for key in columns:
            if key not in found.column_names:
                kind = schema.arrow_type(known[key]) if key in known else pa.null()
                found = found.append_column(key, pa.nulls(found.num_rows, kind))
        return found.select(list(columns))

    def parts(self, name: str) -> Iterator[pa.Table]:
        """A table piece by piece (row group by row group from disk), always at least one, which may be empty."""
        import pyarrow.parquet as pq

        files = parquet_files(self.directory).get(name, []) if self.directory and name not in self.tables else []
        if len(files) != 1:  # several files may differ in their columns: read them together
            yield self.table(name)
            return
        with pq.ParquetFile(files[0]) as file:
            if not file.num_row_groups:
                yield file.read()
            for index in range(file.num_row_groups):
                yield file.read_row_group(index)

    def spans(self, name: str, where: str = "true") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """start_ts and end_ts (ns) of the rows of a table where the SQL condition `where` holds."""
        import numpy as np

        if not self.rows(name):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        with self.connect([name]) as connection:
            found = connection.execute(f"SELECT start_ts, end_ts FROM {name} WHERE {where}").fetchnumpy()
        return np.asarray(found["start_ts"], np.int64), np.asarray(found["end_ts"], np.int64)

    def first(self, name: str) -> dict[str, Any]:
        """The first row of a table as a dict; empty where there is none."""
        table = self.table(name)
        return dict(table.slice(0, 1).to_pylist()[0]) if table.num_rows else {}

    def number(self, name: str, column: str) -> float | None:
        """One number of a one-row table (Summary, Metadata), or None."""
        value = self.first(name).get(column)
        return None if value is None or math.isnan(value) else float(value)

    def connect(self, names: Iterable[str] | None = None, complete: bool = True) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection of our own with each table (or those of `names`) as a view. Not for users' SQL: see `sql`.

        `complete`: a view has every column of the schema, null where the profile lacks it.
        """
        import duckdb

        connection = duckdb.connect()
        connection.execute("SET threads=2")
        for name in self.table_names() if names is None else names:
            lacking = ""
            if complete and name in schema.tables():
                have = set(self.columns_of(name))
                columns = [column for column in schema.tables()[name].columns.values() if column.name not in have]
                lacking = "".join(f', NULL::{_SQL_TYPES[column.type]} AS "{column.name}"' for column in columns)
            if name in self.tables or not self.has(name):
                connection.register(f"__{name}", self.table(name))
                source = f'"__{name}"'
                lacking = lacking if name in self.tables else ""
            else:
                assert self.directory is not None
                files = ", ".join(
                    "'" + str(path).replace("'", "''") + "'" for path in parquet_files(self.directory)[name]
                )
                source = f"read_parquet([{files}], union_by_name=true)"
            connection.execute(f'CREATE VIEW "{name}" AS SELECT *{lacking} FROM {source}')
        return connection


def parquet_files(directory: Path) -> dict[str, list[Path]]:
    """The parquet files of each table in a directory: `<Table>.parquet`, or `<Table>_<n>.parquet` in order of n."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in directory.glob("*.parquet"):
        stem, _, number = path.stem.rpartition("_")
        if stem and number.isdecimal():
            found.setdefault(stem, []).append((int(number), path))
        else:
            found.setdefault(path.stem, []).append((-1, path))
    return {name: [path for _, path in sorted(parts)] for name, parts in sorted(found.items())}


def require(profile: Profile, *names: str) -> None:
    """Raise InputError, naming what is missing, unless the profile has these tables."""
    missing = [name for name in names if not profile.has(name)]
    if missing:
        raise InputError(
            f"profile '{profile.name}' has no table {', '.join(missing)}",
            hint=f"it has {', '.join(profile.table_names()) or 'no table at all'}",
        )
