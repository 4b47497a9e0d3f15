"""Lint for NKI kernels: what a kernel may not do in a version of the language, what is slow, and mechanical fixes.

    from vibeserve.nki import lint
    lint.lint_paths([Path("kernels")], lint.Options(version="0.4"))
    lint.fix_text(text).text

Rules are data (rules.toml); what takes more than a name to see is a small function in `checks`.
"""

from vibeserve.nki.lint.engine import (
    Options,
    checked_rules,
    checked_version,
    configured,
    lint_paths,
    lint_text,
    python_files,
    read_source,
)
from vibeserve.nki.lint.fixes import Fixed, fix_text
from vibeserve.nki.lint.likely import Place, likely
from vibeserve.nki.lint.output import github, human, sarif
from vibeserve.nki.lint.rules import DEFAULT_VERSION, VERSIONS, Finding, Rule, rules

__all__ = [
    "DEFAULT_VERSION",
    "VERSIONS",
    "Finding",
    "Fixed",
    "Options",
    "Place",
    "Rule",
    "checked_rules",
    "checked_version",
    "configured",
    "fix_text",
    "github",
    "human",
    "likely",
    "lint_paths",
    "lint_text",
    "python_files",
    "read_source",
    "rules",
    "sarif",
]
