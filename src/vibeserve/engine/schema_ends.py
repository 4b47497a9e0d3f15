"""Whether any value of a JSON schema comes to an end: a recursion that must always go on has none."""

from __future__ import annotations

from typing import Any

_ALL = ("allOf",)
_ANY = ("anyOf", "oneOf")


def comes_to_an_end(schema: Any) -> bool:
    """False where every value that keeps to the schema would be infinitely deep.

    The least fixed point over the schema's references: a reference ends where its target does, and none is taken to end
    before that is shown. What the schema says beside structure (types, ranges) is not looked at.
    """
    targets: dict[str, bool] = {}
    while True:
        before = dict(targets)
        ends = _ends(schema, schema, targets)
        for pointer in list(targets):
            targets[pointer] = _ends(_at(schema, pointer), schema, targets)
        if targets == before:
            return ends


def _ends(node: Any, root: Any, targets: dict[str, bool]) -> bool:
    if not isinstance(node, dict) or "enum" in node or "const" in node:
        return True
    if isinstance(node.get("$ref"), str):
        pointer = node["$ref"]
        if not pointer.startswith("#") or _at(root, pointer) is None:
            return True  # said by whoever compiles it
        if not targets.setdefault(pointer, False):
            return False
    if not all(_ends(one, root, targets) for name in _ALL for one in _listed(node.get(name))):
        return False
    for name in _ANY:
        branches = _listed(node.get(name))
        if branches and not any(_ends(one, root, targets) for one in branches):
            return False
    properties = node.get("properties")
    kinds = node.get("type", "object" if isinstance(properties, dict) else "")
    if kinds not in ("object", "array", ["object"], ["array"], ""):
        return True  # another type may be taken, or it has no structure
    if isinstance(properties, dict):
        for name in _listed(node.get("required")):
            if isinstance(name, str) and not _ends(properties.get(name), root, targets):
                return False
    least = node.get("minItems", 0)
    items = [*_listed(node.get("prefixItems")), node.get("items")]
    if isinstance(least, int) and least > 0:
        return all(_ends(one, root, targets) for one in items[:least])
    return True


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _at(root: Any, pointer: str) -> Any:
    """What a JSON pointer leads to; None where it leads nowhere."""
    node = root
    for part in [one for one in pointer.removeprefix("#").split("/") if one]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        elif isinstance(node, dict) and name in node:
            node = node[name]
        else:
            return None
    return node
