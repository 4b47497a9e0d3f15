"""Runs the rules over a file, a text or a tree of files."""

from __future__ import annotations

import ast
import difflib
import fnmatch
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.files import read_toml
from vibeserve.nki.lint import checks
from vibeserve.nki.lint.rules import CHECKS, DEFAULT_VERSION, VERSIONS, Finding, Hit, Rule, rules
from vibeserve.nki.lint.source import Source

assert checks.__all__  # importing them registers them

_IGNORE = re.compile(r"#\s*nki:\s*ignore(?:\[([\w\s,-]+)\])?")
_SKIPPED = {".git", ".venv", "node_modules", "__pycache__", ".hypothesis", "build", "dist"}


@dataclass(frozen=True, slots=True)
class Options:
    """What to report: version None means deduced from the file's imports, else the default; `only` and `never` are
    patterns of rule ids."""

    version: str | None = None
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def wants(self, rule: str) -> bool:
        """Whether a rule is asked for."""
        if any(fnmatch.fnmatchcase(rule, pattern) for pattern in self.never):
            return False
        return not self.only or any(fnmatch.fnmatchcase(rule, pattern) for pattern in self.only)


def configured(folder: Path, options: Options) -> Options:
    """The options with `[tool.vibeserve.lint]` of the nearest pyproject.toml: nki-version, select, ignore.

    Raises InputError for a broken file, an unknown key or an unknown version.
    """
    for place in (folder.resolve(), *folder.resolve().parents):
        path = place / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            table = read_toml(path).get("tool", {}).get("vibeserve", {}).get("lint")
        except ValueError as error:
            raise InputError(f"{path}: {error}", hint="mend the TOML") from None
        if table is None:
            return options
        unknown = set(table) - {"nki-version", "select", "ignore"}
        if unknown:
            raise InputError(
                f"{path}: unknown key '{sorted(unknown)[0]}' in [tool.vibeserve.lint]",
                hint="nki-version, select, ignore",
            )
        return Options(
            version=options.version or checked_version(table.get("nki-version")),
            only=options.only or checked_rules(_listed(path, table, "select")),
            never=(*options.never, *checked_rules(_listed(path, table, "ignore"))),
        )
    return options


def _listed(path: Path, table: dict[str, Any], key: str) -> list[str]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise InputError(f"{path}: '{key}' in [tool.vibeserve.lint] is no list of rules", hint=f'{key} = ["P-*"]')
    return found


def checked_version(version: str | None) -> str | None:
    """The version, if there is one and it is known. Raises InputError otherwise."""
    if version is None or version in VERSIONS:
        return version
    if version.count(".") == 2 and version.rpartition(".")[0] in VERSIONS:
        return version.rpartition(".")[0]
    raise InputError(f"unknown NKI version '{version}'", hint=f"one of {', '.join(VERSIONS)}")


def checked_rules(patterns: Iterable[str]) -> tuple[str, ...]:
    """The patterns, if each means a rule. Raises InputError otherwise: a rule that is misspelt would be left out in silence."""
    held = tuple(patterns)
    for pattern in held:
        if not any(fnmatch.fnmatchcase(rule, pattern) for rule in rules()):
            near = difflib.get_close_matches(pattern, list(rules()), 3) or ["P-*"]
            raise InputError(f"no lint rule is called '{pattern}'", hint=f"such as {', '.join(near)}")
    return held


BYTE_ORDER_MARK = "\ufeff"


def deduce_version(source: Source) -> str:
    """The version that a file is written for: 0.6 where it uses what 0.6 brought, else the default."""
    names = {source.resolve(node) for node in source.nodes if isinstance(node, ast.Attribute)}
    if names & {"nki.language.fori_loop", "nki.language.while_loop"}:
        return "0.6"
    return DEFAULT_VERSION


def lint_text(text: str, file: str = "<text>", options: Options | None = None) -> list[Finding]:
    """The findings of one file, in order. A file that is no Python has one finding, SYNTAX."""
    options = options or Options()
    text = text.removeprefix(BYTE_ORDER_MARK)
    try:
        source = Source.parse(Path(file), text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
        message = f"not Python: {getattr(error, 'msg', None) or error or type(error).__name__}"
        return [Finding(file, line, max(1, column), "SYNTAX", "error", message, "mend the syntax", False)]
    if not source.speaks_nki:
        return []
    version = options.version or deduce_version(source)
    ignored = _ignored_lines(text)
    found: dict[tuple[int, int, str], Finding] = {}
    later: list[tuple[int, int, str]] = []
    for rule in rules().values():
        severity = rule.severity_in(version)
        if severity is None or not options.wants(rule.id):
            continue
        for hit in _hits(rule, source):
            finding = _finding(file, rule, severity, hit, _fixable(source, rule, hit))
            held = ignored.get(finding.line)
            if held is not None and (not held or rule.id in held):
                continue
            found.setdefault((finding.line, finding.column, rule.id), finding)
            if rule.fix and not finding.fixable:
                later.append((finding.line, finding.column, rule.id))
    for key in later and _fixed_later(text, file, options, later):
        found[key] = replace(found[key], fixable=True)
    return [found[key] for key in sorted(found)]


def _fixed_later(
    text: str, file: str, options: Options, findings: list[tuple[int, int, str]]
) -> list[tuple[int, int, str]]:
    """Those findings whose rule finds nothing any more once all fixes are made: a place may need another fix first."""
    from vibeserve.nki.lint.fixes import fix_text

    after = Source.parse(Path(file), fix_text(text, file, options).text)
    left = {rule for rule in {rule for *_, rule in findings} if any(True for _ in _hits(rules()[rule], after))}
    return [key for key in findings if key[2] not in left]


def lint_paths(paths: Iterable[Path], options: Options | None = None) -> list[Finding]:
    """The findings of files and of every .py file below directories. Raises InputError for a path that is not there."""
    found: list[Finding] = []
    for path in python_files(paths):
        try:
            text = read_source(path)
        except (UnicodeDecodeError, OSError) as error:
            found.append(Finding(str(path), 1, 1, "SYNTAX", "error", f"cannot be read: {error}", "UTF-8 text", False))
            continue
        found += lint_text(text, str(path), configured(path.parent, options or Options()))
    return found


def read_source(path: Path) -> str:
    """The text of a Python file with its line ends as they are. Raises UnicodeDecodeError or OSError."""
    return path.read_bytes().decode("utf-8")


def python_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Files as given, and the .py files below directories, in order."""
    for path in paths:
        if path.is_file():
            yield path
        elif path.is_dir():
            found = [
                item
                for item in sorted(path.rglob("*.py"))
                if item.is_file() and not _SKIPPED & set(item.relative_to(path).parts)
            ]
            if not found:
                raise InputError(f"no Python file in {path}", hint="give Python files, or directories that hold some")
            yield from found
        else:
            raise InputError(f"no such file or directory: {path}", hint="give Python files or directories")


_OF_OPERANDS = ("S-", "P-", "L-UNINIT", "B1-DST-FIRST")


def _hits(rule: Rule, source: Source) -> Iterator[Hit]:
    if rule.check:
        hits = CHECKS[rule.check](source)
    elif rule.modules:
        hits = _module_hits(rule, source)
    elif rule.keywords:
        hits = _keyword_hits(rule, source)
    else:
        hits = _name_hits(rule, source)
    for hit in hits:
        if rule.id.startswith(_OF_OPERANDS) and source.in_old_form(hit.node):
            continue  # its operands stand one place further left: they are judged once it has been rewritten
        inside = source.in_kernel(hit.node)
        if rule.scope == "any" or inside == (rule.scope == "kernel"):
            yield hit


def _module_hits(rule: Rule, source: Source) -> Iterator[Hit]:
    for node in source.nodes:
        names = []
        if isinstance(node, ast.Import):
            names = [item.name for item in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{item.name}" for item in node.names)]
        if any(name == module or name.startswith(f"{module}.") for name in names for module in rule.modules):
            yield Hit(node)


def _keyword_hits(rule: Rule, source: Source) -> Iterator[Hit]:
    for call, name in source.calls:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in rule.calls):
            for keyword in call.keywords:
                if keyword.arg in rule.keywords:
                    yield Hit(keyword, f"{keyword.arg}= of {name.rpartition('.')[2]}")


def _name_hits(rule: Rule, source: Source) -> Iterator[Hit]:
    for node, name in source.names:
        if any(name == wanted or name.startswith(f"{wanted}.") for wanted in rule.names):
            yield Hit(node, name)
    for imported in source.from_imports:
        module = (imported.module or "").removeprefix("neuronxcc.")
        for item in imported.names:
            if f"{module}.{item.name}" in rule.names:
                yield Hit(item, f"{module}.{item.name}")


def _fixable(source: Source, rule: Rule, hit: Hit) -> bool:
    from vibeserve.nki.lint.fixes import can_fix

    return can_fix(source, rule, hit)


def _finding(file: str, rule: Rule, severity: str, hit: Hit, fixable: bool) -> Finding:
    node = hit.node
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
    return Finding(
        file=file,
        line=line,
        column=column,
        rule=rule.id,
        severity=severity,
        message=f"{rule.message}: {hit.detail}" if hit.detail else rule.message,
        instead=rule.instead,
        fixable=fixable,
        end_line=getattr(node, "end_lineno", line) or line,
        end_column=(getattr(node, "end_col_offset", column) or column) + 1,
    )


def _ignored_lines(text: str) -> dict[int, frozenset[str]]:
    """Lines with `# nki: ignore` (empty: every rule) or `# nki: ignore[ID, ID]`."""
    found: dict[int, frozenset[str]] = {}
    if "nki:" not in text:
        return found
    try:
        for token in tokenize.generate_tokens(StringIO(text).readline):
            if token.type == tokenize.COMMENT and (match := _IGNORE.search(token.string)):
                ids = match.group(1) or ""
                found[token.start[0]] = frozenset(item.strip() for item in ids.split(",") if item.strip())
    except (tokenize.TokenError, SyntaxError):
        return found
    return found
