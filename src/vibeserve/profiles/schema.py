"""The schema of a profile as data: tables, columns, types, units, meaning, pitfalls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = "7.4.0"
_DATA = Path(__file__).parent / "data" / "tables.yaml"
_TYPES = ("int64", "int32", "double", "string", "bool", "list<int64>", "list<string>")


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `legacy` is its name in the older one-object JSON; `scale` is 'fraction' for percents in 0..1."""

    name: str
    type: str
    required: bool
    meaning: str
    unit: str | None = None
    pitfall: str | None = None
    formula: str | None = None
    scale: str | None = None
    legacy: str | None = None


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One table: what its rows are, and its columns in order."""

    name: str
    kind: str
    core: bool
    about: str
    columns: Mapping[str, Column]
    notes: tuple[str, ...] = field(default=())


@cache
def tables() -> dict[str, TableSchema]:
    """Every table that a profile may have, by name."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with _DATA.open(encoding="utf-8") as file:
        raw: dict[str, Any] = yaml.load(file, loader)
    found = {}
    for name, table in raw.items():
        columns = {key: Column(name=key, **value) for key, value in table["columns"].items()}
        bad = [column.name for column in columns.values() if column.type not in _TYPES]
        if bad:
            raise ValueError(f"tables.yaml: {name} has columns of unknown type: {bad}")
        found[name] = TableSchema(
            name, table["kind"], table["core"], table["about"], columns, tuple(table.get("notes", ()))
        )
    return found


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type of a column."""
    import pyarrow as pa

    return {
        "int64": pa.int64(),
        "int32": pa.int32(),
        "double": pa.float64(),
        "string": pa.string(),
        "bool": pa.bool_(),
        "list<int64>": pa.list_(pa.int64()),
        "list<string>": pa.list_(pa.string()),
    }[column.type]


def build(name: str, columns: Mapping[str, Any], rows: int | None = None) -> pa.Table:
    """An Arrow table of schema table `name` from column arrays (lists, NumPy or Arrow).

    Schema columns that are not given are null; given columns that the schema does not know are kept. `rows` is needed
    only where no column is given.
    """
    import pyarrow as pa

    schema = tables()[name]
    size = rows if rows is not None else (len(next(iter(columns.values()))) if columns else 0)
    names, arrays = [], []
    for column in schema.columns.values():
        names.append(column.name)
        kind = arrow_type(column)
        given = columns.get(column.name)
        if given is None:
            arrays.append(pa.nulls(size, kind))
        elif isinstance(given, pa.Array | pa.ChunkedArray):
            arrays.append(given if given.type == kind or pa.types.is_dictionary(given.type) else given.cast(kind))
        else:
            arrays.append(pa.array(given, type=kind, from_pandas=True))
    for key, given in columns.items():
        if key not in schema.columns:
            names.append(key)
            arrays.append(given if isinstance(given, pa.Array | pa.ChunkedArray) else pa.array(given))
    return pa.table(arrays, names=names)


@dataclass(frozen=True, slots=True)
class Conformance:
    """How a table compares with the schema."""

    table: str
    missing_required: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    wrong_type: tuple[str, ...]


def conform(name: str, table: pa.Table) -> tuple[pa.Table, Conformance]:
    """`table` with known columns cast to the schema's types; unknown columns are kept, missing ones reported.

    Raises ValueError where a known column cannot be cast without loss.
    """
    import pyarrow as pa

    schema = tables().get(name)
    if schema is None:
        return table, Conformance(name, (), (), tuple(table.column_names), ())
    wrong = []
    for index, key in enumerate(table.column_names):
        column = schema.columns.get(key)
        if column is None:
            continue
        kind = arrow_type(column)
        data = table.column(index)
        inner = data.type.value_type if pa.types.is_dictionary(data.type) else data.type
        if inner == kind or (pa.types.is_large_string(inner) and kind == pa.string()):
            continue
        wrong.append(f"{key}: {data.type}")
        try:
            table = table.set_column(index, key, data.cast(kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"{name}.{key} is {data.type}, not {column.type}: {error}") from None
    present = set(table.column_names)
    missing = tuple(key for key in schema.columns if key not in present)
    return table, Conformance(
        table=name,
        missing_required=tuple(key for key in missing if schema.columns[key].required),
        missing=missing,
        extra=tuple(key for key in table.column_names if key not in schema.columns),
        wrong_type=tuple(wrong),
    )


def schema_fields() -> pa.Table:
    """The SchemaFields table: one row per column of every table."""
    rows = [
        (table, column)
        for table in tables().values()
        for column in table.columns.values()
        if table.name != "SchemaFields"
    ]
    return build(
        "SchemaFields",
        {
            "table_name": [table.name for table, _ in rows],
            "table_description": [table.about for table, _ in rows],
            "field_name": [column.name for _, column in rows],
            "field_description": [column.meaning for _, column in rows],
            "field_type": [column.type for _, column in rows],
            "field_required": [column.required for _, column in rows],
            "field_unit": [column.unit for _, column in rows],
            "field_maximum": [1.0 if column.scale == "fraction" else None for _, column in rows],
        },
    )
