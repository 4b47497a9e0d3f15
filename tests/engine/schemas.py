"""JSON schemas drawn from a seed: nesting, enums, numbers, patterns, arrays, unions, recursion, Unicode."""

from __future__ import annotations

import random
from typing import Any

WORDS = ["name", "größe", "値", "kind", "list", "ключ", "total", "unit", "émoji", "note"]
VALUES = ["red", "grün", "蓝", "", 'a "quoted" one', "line\nbreak", "🚀", 3, -7, 2.5, True, None]
PATTERNS = ["^[a-z]{2,5}$", "^\\d{3}-\\d{2}$", "^(yes|no|maybe)$", "^[A-F0-9]{4}$", "^x[0-9]?y$"]


def value(generator: random.Random, depth: int) -> dict[str, Any]:
    """Any schema whose values are short."""
    kinds = [text, enum, const, whole, number, flag, pattern]
    if depth < 3:
        kinds += [record, array, union, record, array, recursive]
    return generator.choice(kinds)(generator, depth)


def text(generator: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": generator.randrange(1, 9)}


def enum(generator: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": generator.sample(VALUES, generator.randrange(1, 5))}


def const(generator: random.Random, depth: int) -> dict[str, Any]:
    return {"const": generator.choice(VALUES)}


def whole(generator: random.Random, depth: int) -> dict[str, Any]:
    low = generator.randrange(-200, 200)
    return {"type": "integer", "minimum": low, "maximum": low + generator.randrange(0, 300)}


def number(generator: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": [generator.randrange(100) / 8 for _ in range(3)]}


def flag(generator: random.Random, depth: int) -> dict[str, Any]:
    return {"type": generator.choice(["boolean", "null"])}


def pattern(generator: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "string", "pattern": generator.choice(PATTERNS)}


def record(generator: random.Random, depth: int) -> dict[str, Any]:
    names = generator.sample(WORDS, generator.randrange(1, 5))
    properties = {name: value(generator, depth + 1) for name in names}
    required = [name for name in names if generator.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def array(generator: random.Random, depth: int) -> dict[str, Any]:
    least = generator.randrange(0, 3)
    return {
        "type": "array",
        "items": value(generator, depth + 1),
        "minItems": least,
        "maxItems": least + generator.randrange(0, 3),
    }


def union(generator: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [value(generator, depth + 1) for _ in range(generator.randrange(2, 4))]}


def recursive(generator: random.Random, depth: int) -> dict[str, Any]:
    """A chain; the definition stands at the root (see `schema`)."""
    return {"$ref": "#/$defs/chain"}


def schema(seed: int) -> dict[str, Any]:
    """One whole schema: an object, with a recursive definition that it may use."""
    generator = random.Random(f"schema/{seed}")
    made = record(generator, 0)
    link = {"type": "object", "properties": {"value": whole(generator, 3), "next": {}}, "required": ["value", "next"]}
    link["additionalProperties"] = False
    link["properties"]["next"] = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/chain"}]}  # type: ignore[index]
    return made | {"$defs": {"chain": link}}
