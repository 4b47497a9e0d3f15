"""Decides whether a text is one SELECT over a profile's own tables and nothing else.

DuckDB itself parses the text; we walk the tree that it gives. A table must be one of the profile's (or a name that the
query itself defines), a table function one of three harmless ones, and no function may look outside (files, settings,
environment, catalogs). Whatever the walk does not know is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from vibeserve.base.errors import InputError

if TYPE_CHECKING:
    import duckdb

MAX_QUERY_CHARACTERS = 100_000
_TABLE_FUNCTIONS = frozenset({"unnest", "range", "generate_series"})
_SOURCES = frozenset(
    {
        "BASE_TABLE",
        "SUBQUERY",
        "JOIN",
        "TABLE_FUNCTION",
        "EMPTY",
        "EMPTY_FROM",
        "EXPRESSION_LIST",
        "SHOW_REF",
        "CTE",
        "PIVOT",
        "COLUMN_DATA",
    }
)
_CLOSED_FUNCTIONS = frozenset(
    {
        "getenv", "current_setting", "set_config", "getvariable", "glob", "query", "query_table", "nextval", "currval",
        "json_execute_serialized_sql", "json_serialize_plan", "write_log", "add_parquet_key", "current_user", "user",
        "session_user", "current_role", "current_database", "current_catalog", "current_schema", "current_schemas",
        "in_search_path", "txid_current", "current_query", "current_connection_id", "current_transaction_id",
        "current_query_id", "version", "sleep_ms", "which_secret", "from_substrait", "from_substrait_json",
    }
)  # fmt: skip
_CLOSED_PREFIXES = (
    "read_",
    "pg_",
    "duckdb_",
    "pragma_",
    "parquet_",
    "sniff_",
    "sql_auto",
    "has_",
    "checkpoint",
    "force_",
)
# Functions whose result grows with a number: which argument it is (None: any of them), and the most that it may be.
_GROWING: dict[str, tuple[int | None, int]] = {
    "repeat": (1, 10_000),
    "lpad": (1, 10_000),
    "rpad": (1, 10_000),
    "bar": (3, 10_000),
    "range": (None, 10_000_000),
    "generate_series": (None, 10_000_000),
    "array_resize": (1, 10_000),
    "list_resize": (1, 10_000),
}


def _refuse(message: str, hint: str = "one SELECT (or WITH … SELECT) over the profile's own tables") -> InputError:
    return InputError(message, hint=hint, code="query-refused")


def parse(connection: duckdb.DuckDBPyConnection, text: str) -> Any:
    """The syntax tree of the one statement in `text`. Raises InputError for anything but one SELECT."""
    import duckdb

    if len(text) > MAX_QUERY_CHARACTERS:
        raise _refuse(f"the query has {len(text)} characters, at most {MAX_QUERY_CHARACTERS} are read")
    if "\x00" in text:
        raise _refuse("the query holds a NUL character")
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error as error:
        raise _refuse(f"not SQL that DuckDB reads: {first_line(error)}", "see the message for the place") from None
    if len(statements) != 1:
        raise _refuse(f"{len(statements)} statements: exactly one is run")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise _refuse(f"{statements[0].type.name} is not a SELECT")
    row = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    tree = json.loads(row[0]) if row else {"error": True, "error_message": "no tree"}
    if tree.get("error"):
        raise _refuse(f"this kind of statement is not run: {tree.get('error_message')}")
    return tree["statements"]


def check(tree: Any, tables: Collection[str]) -> None:
    """Raise InputError unless every name in the tree is one of `tables` or defined by the query itself."""
    own = {name.lower() for name in tables}
    defined = {str(item["key"]).lower() for node in _nodes(tree) for item in _cte_items(node)}
    defined |= {str(node["cte_name"]).lower() for node in _nodes(tree) if node.get("cte_name")}
    for node in _nodes(tree):
        _check_source(node, own, defined, tables)
        _check_function(node)


def _check_source(node: dict[str, Any], own: set[str], defined: set[str], tables: Collection[str]) -> None:
    kind = node.get("type")
    is_source = "sample" in node and "alias" in node and "query_location" in node and "class" not in node
    if is_source and kind not in _SOURCES:
        raise _refuse(f"a {kind} is not read from")
    if kind in ("BASE_TABLE", "SHOW_REF") and is_source:
        path = node.get("qualified_name", {}).get("path") or [node.get("table_name", "")]
        name = str(path[-1]).strip('"').lower()
        if kind == "SHOW_REF" and (node.get("query") or name == "tables"):
            return
        qualified = len(path) > 1 and [str(part).lower() for part in path[:-1]] != ["main"]
        if qualified or node.get("catalog_name") or name not in own | defined:
            shown = ".".join(str(part) for part in path)
            raise _refuse(f"no table {shown!r} in this profile", f"its tables: {', '.join(sorted(tables)) or 'none'}")
    if kind == "TABLE_FUNCTION" and is_source:
        name = str(node.get("function", {}).get("function_name", "")).lower()
        if name not in _TABLE_FUNCTIONS:
            raise _refuse(f"table function {name!r} is not run")


def _check_function(node: dict[str, Any]) -> None:
    if node.get("class") not in ("FUNCTION", "WINDOW"):
        return
    name = str(node.get("function_name", "")).lower()
    if name in _CLOSED_FUNCTIONS or name.startswith(_CLOSED_PREFIXES):
        raise _refuse(f"function {name!r} is not run: it looks outside the profile")
    if name in _GROWING:
        position, most = _GROWING[name]
        arguments = [item.get("expression", item) for item in node.get("arguments", node.get("children", []))]
        for argument in arguments if position is None else arguments[position : position + 1]:
            number = _constant(argument)
            if (number is None and position is not None) or (number is not None and abs(number) > most):
                raise _refuse(f"function {name!r} would grow without bound here", f"give it a number up to {most}")


def _constant(node: Any) -> float | None:
    literal = node.get("literal") if isinstance(node, dict) else None
    if not isinstance(literal, dict):
        return None
    try:
        return float(literal.get("text", ""))
    except ValueError:
        return None


def _cte_items(node: dict[str, Any]) -> list[dict[str, Any]]:
    held = node.get("cte_map")
    return [item for item in held.get("map", []) if "key" in item] if isinstance(held, dict) else []


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object in the tree."""
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def first_line(error: BaseException) -> str:
    """What DuckDB said, in one line."""
    return " ".join(str(error).split())[:400]
