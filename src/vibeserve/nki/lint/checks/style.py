"""Conventions: structured messages, docstrings, shape checks first, names that say something."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import Source

_LONG, _MANY = 25, 4


@check
def bare_assert(source: Source) -> Iterator[Hit]:
    """assert in kernel code."""
    for node in source.nodes:
        if isinstance(node, ast.Assert):
            yield Hit(node)


@check
def kernel_docstring(source: Source) -> Iterator[Hit]:
    """A kernel of more than 25 lines without 'Args' and 'Returns' in its docstring."""
    for function in source.entry_points:
        text = ast.get_docstring(function) or ""
        if (function.end_lineno or 0) - function.lineno > _LONG and not ("Args" in text and "Return" in text):
            yield Hit(function, function.name)


@check
def shape_checks(source: Source) -> Iterator[Hit]:
    """A kernel of more than 25 lines that checks nothing."""
    for function in source.entry_points:
        if (function.end_lineno or 0) - function.lineno <= _LONG:
            continue
        names = {source.resolve(node.func) or "" for node in ast.walk(function) if isinstance(node, ast.Call)}
        asserts = any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(function))
        if not asserts and not any("assert" in name or "check" in name or "validate" in name for name in names):
            yield Hit(function, function.name)


@check
def short_names(source: Source) -> Iterator[Hit]:
    """A kernel of more than 25 lines in which four or more of its own names, and more than half, are one letter."""
    for function in source.entry_points:
        if (function.end_lineno or 0) - function.lineno <= _LONG:
            continue
        bound = {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id != "_"
        }
        short = sorted(name for name in bound if len(name) == 1)
        if len(short) >= _MANY and 2 * len(short) > len(bound):
            yield Hit(function, f"{', '.join(short)} of {function.name}")
