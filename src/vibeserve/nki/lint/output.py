"""Findings for people, for GitHub's annotations, and as SARIF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import vibeserve
from vibeserve.nki.lint.rules import Finding, rules

_LEVEL = {"error": "error", "warn": "warning", "perf": "note", "info": "note", "style": "note"}
_GITHUB = {"error": "error", "warn": "warning", "perf": "notice", "info": "notice", "style": "notice"}


def human(findings: Sequence[Finding]) -> str:
    """One line a finding: place, rule, what, and what instead."""
    return "\n".join(
        f"{item.file}:{item.line}:{item.column}: {item.severity} {item.rule}: {item.message} → {item.instead}{' [fixable]' if item.fixable else ''}"
        for item in findings
    )


def github(findings: Sequence[Finding]) -> str:
    """Workflow commands that GitHub shows beside the lines."""

    def escaped(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    return "\n".join(
        f"::{_GITHUB[item.severity]} file={item.file},line={item.line},col={item.column},title={item.rule}::{escaped(f'{item.message} → {item.instead}')}"
        for item in findings
    )


def sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """A SARIF 2.1.0 log."""
    used = sorted({item.rule for item in findings})
    known = rules()
    described = [
        {
            "id": name,
            "shortDescription": {"text": known[name].message if name in known else "the file cannot be read as Python"},
            "help": {"text": known[name].instead if name in known else "mend the syntax"},
        }
        for name in used
    ]
    results = [
        {
            "ruleId": item.rule,
            "ruleIndex": used.index(item.rule),
            "level": _LEVEL[item.severity],
            "message": {"text": f"{item.message}. Instead: {item.instead}"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": item.file.replace("\\", "/")},
                        "region": {"startLine": item.line, "startColumn": item.column},
                    }
                }
            ],
        }
        for item in findings
    ]
    driver = {"name": "vibeserve nki lint", "version": vibeserve.__version__, "rules": described}
    return {
        "version": "2.1.0",
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
