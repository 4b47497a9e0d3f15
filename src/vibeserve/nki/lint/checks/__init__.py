"""What takes more than a name to see: one small function a rule, in modules by subject. Importing this registers them all."""

from vibeserve.nki.lint.checks import (
    arguments,
    calls,
    host,
    language,
    launch,
    loops,
    operands,
    patterns,
    performance,
    style,
    tiles,
    values,
    views,
)

__all__ = [
    "arguments",
    "calls",
    "host",
    "language",
    "launch",
    "loops",
    "operands",
    "patterns",
    "performance",
    "style",
    "tiles",
    "values",
    "views",
]
