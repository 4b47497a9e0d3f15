"""The facts as data: error codes, messages without a code, flags, variables and tasks; loaded once, typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError

DATA = Path(__file__).parent / "data"
_SHORT = re.compile(r"(?:NCC_)?([EI]?)([A-Z]{3})([0-9]{3})")


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """One error code (or status, or named rule). `generations` empty: it concerns all."""

    code: str
    kind: str
    area: str
    title: str
    meaning: str
    category: str = ""
    causes: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    message: str = ""
    generations: tuple[str, ...] = ()
    reach: str = ""
    seen_by: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    notes: str = ""
    number: int | None = None
    source: tuple[str, ...] = ()
    line: int = 0
    file: str = "errors.yaml"

    def document(self) -> dict[str, Any]:
        """The JSON of `docs error`."""
        return {
            "code": self.code,
            "title": self.title,
            "cause": [self.meaning, *self.causes],
            "fix": list(self.fixes),
            "related": list(self.related),
            "kind": self.kind,
            "category": self.category,
            "generations": list(self.generations),
            "message": self.message,
            "notes": self.notes,
            "source": f"knowledge/data/{self.file}:{self.line}",
            "upstream": list(self.source),
        }


@dataclass(frozen=True, slots=True)
class Signature:
    """A message without a code: `pattern` is its shape, <x> standing for anything; `also` are further shapes of the same."""

    id: str
    kind: str
    pattern: str
    meaning: str
    fix: str
    since: str = ""
    also: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class Flag:
    """A compiler flag or environment variable."""

    name: str
    kind: str
    meaning: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """Something that people want to do, and the names that lead there."""

    id: str
    group: str
    want: str
    topic: str
    apis: tuple[str, ...] = ()
    docs: tuple[str, ...] = ()
    related_errors: tuple[str, ...] = ()
    generations: tuple[str, ...] = ()
    notes: str = ""
    asked: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of PyTorch or NumPy as instructions: `code` computes the tile `out` from tiles named as in `inputs`;
    `expects` is its meaning in NumPy."""

    id: str
    torch: tuple[str, ...]
    numpy: tuple[str, ...]
    engine: str
    inputs: dict[str, str]
    code: str
    expects: str
    note: str = ""
    tolerance: float | None = None
    line: int = 0


def load(name: str) -> Any:
    """A data file as plain values."""
    import yaml

    with (DATA / name).open(encoding="utf-8") as file:
        return yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def lines_of(name: str) -> dict[str, int]:
    """The line at which each entry of a data file begins: keys at two spaces, and `- id:` items."""
    found: dict[str, int] = {}
    for number, text in enumerate((DATA / name).read_text(encoding="utf-8").splitlines(), 1):
        match = re.match(r"  (\S.*):$|- id: (\S+)$", text)
        if match:
            found.setdefault((match.group(1) or match.group(2)).strip("'\""), number)
    return found


@cache
def errors() -> dict[str, ErrorEntry]:
    """Every entry by its code."""
    found = {}
    for file, key in (("errors.yaml", "errors"), ("rules.yaml", "rules")):
        where = lines_of(file)
        for code, entry in load(file)[key].items():
            found[code] = ErrorEntry(code=code, line=where.get(code, 0), file=file, **_tuples(entry))
    return found


@cache
def areas() -> dict[str, str]:
    """The areas of error codes, with what they are about."""
    return dict(load("errors.yaml")["areas"])


@cache
def signatures() -> tuple[Signature, ...]:
    """Every message shape."""
    where = lines_of("signatures.yaml")
    return tuple(Signature(line=where.get(entry["id"], 0), **_tuples(entry)) for entry in load("signatures.yaml"))


@cache
def flags() -> dict[str, Flag]:
    """Compiler flags and environment variables by name; a flag's aliases are found through `find_flag`."""
    data, where = load("flags.yaml"), lines_of("flags.yaml")
    out = {}
    for group, kind in (("flags", "compiler flag"), ("variables", "environment variable")):
        for name, facts in data[group].items():
            out[name] = Flag(name, kind, facts["meaning"], facts, where.get(name, 0))
    return out


@cache
def _asked() -> dict[str, str]:
    return dict(load("asked.yaml"))


def asked(name: str) -> str:
    """How people ask for a thing (by its own name) or for a page (by its id), in everyday words; empty where that is not known."""
    return _asked().get(name, "")


def call_name(name: str) -> str:
    """What the last part of a dotted name has in common over libraries: `nn.LayerNorm`, `layer_norm_` and `jax.nn.layer_norm(x)`
    are all 'layernorm', `Conv2d` and `conv1d` 'conv'."""
    last = re.sub(r"\(.*", "", name).strip().rpartition(".")[2]
    return re.sub(r"[123]d$", "", last.lower().replace("_", ""))


@cache
def calls() -> dict[str, tuple[str, ...]]:
    """The calls of PyTorch, NumPy and JAX that lead to a page beside its own names: `call_name` of each."""
    return {page: tuple(call_name(name) for name in names) for page, names in load("names.yaml").items()}


@cache
def tasks() -> tuple[Task, ...]:
    """Every task."""
    where = lines_of("tasks.yaml")
    return tuple(
        Task(line=where.get(entry["id"], 0), asked=asked(entry["id"]), **_tuples(entry))
        for entry in load("tasks.yaml")["tasks"]
    )


@cache
def operations() -> tuple[Operation, ...]:
    """PyTorch and NumPy operations with what computes them."""
    where = lines_of("operations.yaml")
    return tuple(Operation(line=where.get(entry["id"], 0), **_tuples(entry)) for entry in load("operations.yaml"))


def find_error(text: str) -> ErrorEntry:
    """The entry of a code, in full ('NCC_EVRF001'), short ('EVRF001', '[VRF001]'), by name or by status number.

    Raises InputError, suggesting near ones, where there is none.
    """
    known = errors()
    wanted = text.strip().strip("[]").upper()
    for candidate in _spellings(wanted):
        for code in known:
            if code.upper() == candidate:
                return known[code]
    if wanted.isdecimal() and len(wanted) < 10:
        for entry in known.values():
            if entry.number == int(wanted):
                return entry
    raise InputError(
        f"no error code '{text}'",
        hint=near(text, list(known), "'vibeserve docs error' lists them"),
        code="unknown-code",
    )


def _spellings(code: str) -> list[str]:
    out = [code]
    match = _SHORT.fullmatch(code)
    if match:
        kinds = [match.group(1)] if match.group(1) else ["E", "I"]
        out += [f"NCC_{kind}{match.group(2)}{match.group(3)}" for kind in kinds]
    return out


def find_flag(name: str) -> Flag | None:
    """A flag or variable by name or alias."""
    known = flags()
    if name in known:
        return known[name]
    return next((flag for flag in known.values() if name in (flag.facts.get("aliases") or ())), None)


def near(word: str, known: list[str], otherwise: str) -> str:
    """'did you mean X or Y?', else `otherwise`."""
    import difflib

    lowered = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), list(lowered), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(lowered[name] for name in found)}?" if found else otherwise


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
