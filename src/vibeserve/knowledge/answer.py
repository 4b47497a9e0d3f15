"""A question answered: a summary taken from the best page, and the places that it rests on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vibeserve.knowledge import clones
from vibeserve.knowledge.index import Found, Index

_LONGEST = 600
_SHORTEST = 120  # a summary of fewer characters goes on with the next paragraph, cut
_REFERENCES = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """`references` are file:line, the best page's first; `warnings` say what is old, or holds for some generations alone."""

    question: str
    summary: str
    references: tuple[str, ...]
    warnings: tuple[str, ...]
    results: tuple[Found, ...]

    def document(self) -> dict[str, Any]:
        """The JSON of `docs search`."""
        return {
            "query": self.question,
            "summary": self.summary,
            "references": list(self.references),
            "warnings": list(self.warnings),
            "results": [item.document() for item in self.results],
        }


def answer(question: str, index: Index, most: int = 8, kinds: Sequence[str] = ()) -> Answer:
    """Search, and say what the best page says in short. Raises InputError for an empty question."""
    found = index.search(question, most, kinds)
    best = index.page(found[0].id) if found else None
    held = clones.resolve(best.body) if best is not None else clones.Resolved("")
    summary = f"{_heading(best.kind, best.title)}. {_summary(held.text)}" if best is not None else ""
    warnings = [f"{_heading(item.kind, item.title)}: {text}" for item in found[:3] for text in item.warnings]
    references = (*dict.fromkeys(item.place for item in found),)[:_REFERENCES]
    warned = tuple(dict.fromkeys([*held.warnings, *warnings]))
    return Answer(question, summary, (*references, *held.found), warned, tuple(found))


def _heading(kind: str, title: str) -> str:
    """A title; of a symbol its name alone, since its page begins with what it computes."""
    return title.partition(": ")[0] if kind == "symbol" else title


def _summary(body: str) -> str:
    """The first paragraphs of prose (a signature among them), up to a few sentences."""
    chosen: list[str] = []
    for paragraph in re.split(r"\n\s*\n", body):
        text = " ".join(paragraph.split())
        if text.startswith(("#", "|")):
            continue
        text = re.sub(r"```\w* ?|```", "`", text)
        written = sum(map(len, chosen))
        if written > _SHORTEST and written + len(text) > _LONGEST:
            break
        chosen.append(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
    return " ".join(chosen)
