"""The names of the kernel language: one page each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.knowledge import catalogue
from vibeserve.knowledge.pages import Page

_GENERATIONS = {"v2": "trn1, inf2", "v3": "trn2", "v4": "trn3"}
# The order of a page's parts, and their headings.
_PARTS = (
    ("params", "Parameters"),
    ("members", "Members"),
    ("methods", "Methods"),
    ("attributes", "Attributes"),
    ("operands", "Operands"),
    ("dtypes", "Dtypes"),
    ("broadcast", "Broadcast"),
    ("rules", "Rules"),
    ("inputs", "Inputs"),
    ("outputs", "Outputs"),
    ("refused", "Refused"),
    ("indirection", "Indirect operands"),
    ("engines", "Engines"),
    ("becomes", "Becomes"),
    ("returns", "Returns"),
    ("instead", "Instead"),
    ("notes", "Notes"),
)


@dataclass(frozen=True, slots=True)
class Symbol:
    """One name: `name` in full (nki.isa.dma_copy), `short` as kernels write it (nisa.dma_copy)."""

    name: str
    short: str
    kind: str
    computes: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    line: int = 0

    @property
    def generations(self) -> list[str]:
        """The generations that have it; empty where it is not restricted."""
        held = self.facts.get("generations") or []
        return [str(item) for item in (held if isinstance(held, list) else [held])]

    def document(self) -> dict[str, Any]:
        """The JSON of `docs symbol`."""
        rules = {
            key: self.facts[key] for key in ("operands", "dtypes", "broadcast", "rules", "refused") if key in self.facts
        }
        errors = [code for code, entry in catalogue.errors().items() if _mentions(entry, self)]
        return {
            "name": self.name,
            "short": self.short,
            "kind": self.kind,
            "signature": self.facts.get("signature"),
            "computes": self.computes,
            "parameters": self.facts.get("params") or {},
            "rules": rules,
            "cost": self.facts.get("cost"),
            "generations": self.generations,
            "errors": errors,
            "example": self.facts.get("example"),
            "instead": self.facts.get("instead"),
            "warnings": list(_warnings(self)),
            "source": f"knowledge/data/symbols.yaml:{self.line}",
        }


def _mentions(entry: catalogue.ErrorEntry, symbol: Symbol) -> bool:
    word = symbol.name.rpartition(".")[2]
    if len(word) < 6:
        return False
    return any(word in text for text in (entry.meaning, *entry.causes, *entry.fixes))


@cache
def symbols() -> dict[str, Symbol]:
    """Every symbol by its full name."""
    where = catalogue.lines_of("symbols.yaml")
    out = {}
    for name, entry in catalogue.load("symbols.yaml")["symbols"].items():
        facts = {key: value for key, value in entry.items() if key not in ("short", "kind", "computes")}
        out[name] = Symbol(name, entry["short"], entry["kind"], entry.get("computes", ""), facts, where.get(name, 0))
    return out


def find_symbol(text: str) -> Symbol:
    """A symbol by its full name, as kernels write it, or by its last word. Raises InputError with near names."""
    known = symbols()
    wanted = text.strip().removesuffix("()")
    if wanted in known:
        return known[wanted]
    matches = [item for item in known.values() if wanted in (item.short, item.name.rpartition(".")[2])]
    if matches:
        return matches[0]
    names = (
        [item.short for item in known.values()]
        + list(known)
        + [item.name.rpartition(".")[2] for item in known.values()]
    )
    raise InputError(
        f"no symbol '{text}'", hint=catalogue.near(wanted, names, "vibeserve docs search WORDS"), code="unknown-symbol"
    )


def pages() -> Iterator[Page]:
    """A page for each symbol."""
    for item in symbols().values():
        parts = [item.computes]
        if item.facts.get("signature"):
            parts.insert(0, f"```python\n{item.facts['signature']}\n```")
        for key, heading in _PARTS:
            if key in item.facts:
                parts.append(f"## {heading}\n\n{_listed(item.facts[key])}")
        if item.facts.get("cost"):
            parts.append(f"## Cost\n\n{_listed(item.facts['cost'])}")
        if item.generations:
            parts.append(
                "On " + "; ".join(f"{name} ({_GENERATIONS.get(name, name)})" for name in item.generations) + "."
            )
        yield Page(
            id=f"symbol/{item.name}",
            title=f"{item.short}: {_first(item.computes)}",
            kind="symbol",
            body="\n\n".join(part for part in parts if part),
            source="knowledge/data/symbols.yaml",
            line=item.line,
            names=(item.name, item.short, item.name.rpartition(".")[2]),
            words=f"{item.kind} {item.facts.get('group', '')} API reference function {catalogue.asked(item.name)}",
            warnings=tuple(_warnings(item)),
        )


def _warnings(item: Symbol) -> Iterator[str]:
    """What to know before using a name: that it is gone or on its way, or that some generations lack it."""
    if item.kind == "removed":
        yield f"This name is gone. Instead: {item.facts.get('instead', 'nothing took its place')}."
    notes = item.facts.get("notes") or ()
    for note in [notes] if isinstance(notes, str) else notes:
        if "deprecated" in str(note):
            yield f"{note}."
    held = item.generations
    if held and set(held) < set(_GENERATIONS):
        yield f"Only on {'; '.join(f'{name} ({_GENERATIONS.get(name, name)})' for name in held)}."


def _first(text: str) -> str:
    sentence = " ".join(text.split()).split(". ")[0]
    return sentence if len(sentence) <= 90 else sentence[:87] + "…"


def _listed(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"- `{key}`: {_inline(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "\n".join(f"- {_inline(item)}" for item in value)
    return str(value)


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_inline(item)}" for key, item in value.items())
    return ", ".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)
