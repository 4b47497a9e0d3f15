"""The rules as data, and what they find."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from vibeserve.nki.lint.source import Source

VERSIONS = ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6")
DEFAULT_VERSION = "0.4"
SEVERITIES = ("error", "warn", "perf", "info", "style")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; see rules.toml for the fields."""

    id: str
    scope: str
    severity: tuple[tuple[str, str], ...]
    message: str
    instead: str
    names: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    check: str = ""
    fix: str = ""
    to: str = ""

    def severity_in(self, version: str) -> str | None:
        """How bad it is in an NKI version; None where it does not apply."""
        found = None
        for since, severity in self.severity:
            if VERSIONS.index(since) <= VERSIONS.index(version):
                found = severity
        return found


@dataclass(frozen=True, slots=True)
class Hit:
    """A place where a rule applies; `detail` says what exactly."""

    node: ast.AST
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding, as reported. Columns count from 1."""

    file: str
    line: int
    column: int
    rule: str
    severity: str
    message: str
    instead: str
    fixable: bool
    end_line: int = 0
    end_column: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "rule": self.rule,
            "severity": self.severity,
            "message": self.message,
            "instead": self.instead,
            "fixable": self.fixable,
        }


Check = Callable[[Source], Iterator[Hit]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Register a check under its own name."""
    CHECKS[function.__name__] = function
    return function


@cache
def rules() -> dict[str, Rule]:
    """Every rule by its id. Raises ValueError for one that is written wrongly."""
    with (Path(__file__).parent / "rules.toml").open("rb") as file:
        raw = tomllib.load(file)
    found = {}
    for name, entry in raw.items():
        severity = tuple((since, level) for since, level in entry.pop("severity"))
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        rule = Rule(id=name, severity=severity, **values)
        bad = [level for _, level in severity if level not in SEVERITIES] + [
            v for v, _ in severity if v not in VERSIONS
        ]
        if bad or rule.scope not in ("kernel", "host", "any"):
            raise ValueError(f"rules.toml: {name} is written wrongly: {bad or rule.scope}")
        found[name] = rule
    return found


@dataclass(frozen=True, slots=True)
class Accounted:
    """A rule of the language that no lint rule bears the name of: which rules report it, or what else sees it, and why."""

    id: str
    reason: str
    by: tuple[str, ...] = ()
    seen_by: str = ""


@cache
def accounted() -> dict[str, Accounted]:
    """The rules of accounted.toml by their id."""
    with (Path(__file__).parent / "accounted.toml").open("rb") as file:
        raw = tomllib.load(file)
    return {
        name: Accounted(name, entry["reason"], tuple(entry.get("by", ())), entry.get("seen_by", ""))
        for name, entry in raw.items()
    }
