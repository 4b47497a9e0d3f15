"""Recursions that end, and those that never do."""

from __future__ import annotations

from typing import Any

import pytest

from vibeserve.engine.schema_ends import comes_to_an_end

SELF = {"$ref": "#"}
NODE = {"type": "object", "properties": {"next": SELF}, "required": ["next"]}


@pytest.mark.parametrize(
    ("schema", "ends"),
    [
        (True, True),
        ({"type": "string"}, True),
        (SELF, False),
        (NODE, False),
        (NODE | {"required": []}, True),
        (NODE | {"type": ["object", "null"]}, True),
        ({"anyOf": [{"type": "null"}, SELF]}, True),
        ({"anyOf": [SELF, NODE]}, False),
        ({"allOf": [{"type": "object"}, SELF]}, False),
        ({"type": "array", "items": SELF}, True),
        ({"type": "array", "items": SELF, "minItems": 1}, False),
        ({"type": "array", "prefixItems": [{"type": "null"}, SELF], "minItems": 1}, True),
        ({"type": "array", "prefixItems": [SELF, {"type": "null"}], "minItems": 1}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"const": 1}}}, True),
        ({"$ref": "#/$defs/x~1y", "$defs": {"x/y": {"type": "null"}}}, True),
        ({"$ref": "#/nowhere"}, True),  # whoever compiles it says so
        ({"type": "object", "properties": {"a": SELF}, "required": ["b"]}, True),
    ],
)
def test_whether_any_value_ends(schema: Any, ends: bool) -> None:
    assert comes_to_an_end(schema) is ends
